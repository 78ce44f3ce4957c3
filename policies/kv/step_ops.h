#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policies/kv/shape_run.h"

namespace kvlab {

// Calls of a step by layer; layers that make the same calls are one class. With any selector but `all`, each layer's last call is named
// kFetch and has the bytes that come from lower tiers.
struct LayerCalls {
  std::vector<std::int32_t> class_of_layer;  // [num_layers]
  std::vector<std::vector<OpCall>> calls;    // [classes], each in order
  [[nodiscard]] const std::vector<OpCall>& of_layer(std::int32_t layer) const {
    return calls[static_cast<std::size_t>(class_of_layer[static_cast<std::size_t>(layer)])];
  }
};

inline constexpr std::string_view kFetch = "fetch";

// The calls of decode steps, looked up by the keys that the parts declare (KvPart::step_key). The parts run once for each kind of layer and
// key, or at two lengths where they declare that costs between these are affine. Every count of a call adds up over the sequences of a
// batch, so a batch is the sum: exactly the result of ShapeRun. In a batch whose sequences alone would call different operations (some are
// below the budget, some above), the operations of all run over all rows; a sequence then counts what it adds to a small batch of one of
// each kind.
class StepOps {
 public:
  using Seq = ShapeRun::Seq;
  // Errors as ShapeRun's. Counts that depend on data are at their bounds.
  StepOps(const Recipe& recipe, const ModelShape& model);

  // What attention reads for a sequence of the batch, over all layers.
  struct Read {
    std::int64_t bytes = 0, flops = 0;
  };
  // Calls of a step in which each sequence decodes one token; `reads` [batch], if given, is added to. on_lines, if given, becomes false
  // where a sequence that its parts declare affine is on no line.
  LayerCalls decode(std::span<const Seq> batch, std::span<Read> reads = {}, bool* on_lines = nullptr);
  // How often the parts were run so far.
  [[nodiscard]] std::int64_t runs() const { return runs_; }

 private:
  using PerLayer = std::vector<std::vector<OpCall>>;
  // Calls of a unit's layers at `begin` tokens of a row that grows, and what each further token adds.
  struct Line {
    std::int32_t begin = 0, kind = 0;  // the operations that are called
    PerLayer base, slope;              // slope empty: one length
    Read read, read_slope;
  };
  // A sequence's calls: those of a line, `further` tokens after its begin. null: they are no sum.
  struct Place {
    const Line* line = nullptr;
    std::int64_t further = 0;
  };
  // A sequence in a unit: layers that run together.
  struct Member {
    const Seq* seq;
    std::span<const std::int32_t> rows;  // held before the step, of the unit's layers, or one number for all
  };
  struct Standing {
    StepKey key;                   // without unit and company
    Lengths range;                 // of this key's line, around `length`
    std::int32_t length = 0;       // of a row that grows, this step's token included
    bool only_whole_grow = false;  // rows that lost nothing grow, others are cut to what they were
    bool is_first = false;
  };
  struct Unit {
    std::vector<std::int32_t> layers;  // that run
    std::int64_t times = 1;            // layers that one of them stands for, if all rows are alike
    std::map<std::vector<std::int32_t>, std::int32_t> company_ids;
    struct Company {
      std::vector<Seq> members;  // one of each kind
      PerLayer calls;            // of these together
    };
    std::vector<Company> companies = std::vector<Company>(1);  // 0: alone
    std::map<std::vector<std::string_view>, std::int32_t> kinds;
    std::vector<std::optional<Seq>> member;  // [kinds] a sequence that alone is of this kind
    std::unordered_map<StepKey, Line, StepKey::Hash> lines;
  };

  [[nodiscard]] Standing standing(const Unit& unit, const Member& m);
  [[nodiscard]] Seq seq_of(const Unit& unit, const Member& m) const;
  [[nodiscard]] std::optional<Seq> moved(const Unit& unit, const Member& m, const Standing& at, std::int32_t length);
  Place find(Unit& unit, const Member& m, std::int32_t company);
  Place place(const Line& line, const Standing& at);
  Line make(Unit& unit, const Member& m, const Standing& at, std::int32_t company, PerLayer calls);
  PerLayer run(const Unit& unit, std::span<const Seq> batch);
  std::optional<PerLayer> added(const Unit& unit, const Seq& seq, std::int32_t company);
  std::int32_t kind_of(Unit& unit, const PerLayer& calls, const Seq& seq, std::int32_t company);
  std::int32_t company_of(Unit& unit, std::span<const Place> places);
  PerLayer decode(Unit& unit, std::span<const Member> batch, std::int64_t times, std::span<Read> reads);

  ModelShape model_;
  bool fetches_, acts_in_decode_, is_joint_;
  bool on_lines_ = true;  // of the batch under way
  ShapeRun shapes_;
  std::vector<std::int32_t> unit_of_layer_;
  std::vector<Unit> units_;  // one of all layers, or one for each kind of layer
  const Unit* running_ = nullptr;
  std::int64_t runs_ = 0;
  std::map<std::vector<std::int32_t>, std::int32_t> patterns_;
};

}  // namespace kvlab
