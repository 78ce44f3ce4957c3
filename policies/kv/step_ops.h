#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/kv/alike_layers.h"
#include "policies/kv/shape_run.h"

namespace kvlab {

// Calls of a step by layer; layers that make the same calls are one class. With any selector but `all`, each layer's last calls are those
// of add_fetches().
struct LayerCalls {
  std::vector<std::int32_t> class_of_layer;  // [num_layers]
  std::vector<std::vector<OpCall>> calls;    // [classes], each in order
  [[nodiscard]] const std::vector<OpCall>& of_layer(std::int32_t layer) const {
    return calls[static_cast<std::size_t>(class_of_layer[static_cast<std::size_t>(layer)])];
  }
};

inline constexpr std::string_view kFetch = "fetch", kReadDisk = "read_disk";
inline bool is_fetch(const OpCall& call) { return call.op == kFetch || call.op == kReadDisk; }
// Appends two calls for the layer's transfers from lower tiers: kFetch has the bytes over the host link, kReadDisk those read from disk.
void add_fetches(const ShapeRun::Result& result, std::size_t layer, std::vector<OpCall>& calls);

// Finds the calls of decode steps without running the parts in each of them. Every count of a call adds up over the sequences of a batch
// and is affine in the tokens that a sequence holds, as long as no page or block is completed. So the parts run on single sequences of a
// few lengths, and a batch is the sum: exactly the result of ShapeRun. If lengths are not on a line, every length is run once and
// remembered, in one layer of those that are alike (AlikeLayers). In a batch whose sequences alone would call different operations (some
// are below the budget, some above), the operations of all run over all rows; a sequence then counts what it adds to a small batch of one
// of each kind. Lengths change by a token in all rows, or, where others are cut in every step, in the rows that are whole.
class StepOps {
 public:
  using Seq = ShapeRun::Seq;
  // Errors as ShapeRun's. Counts that depend on data are at their bounds.
  StepOps(const Recipe& recipe, const ModelShape& model);

  // Calls of a step in which each sequence decodes one token.
  LayerCalls decode(std::span<const Seq> batch);
  // How often the parts were run so far.
  [[nodiscard]] std::int64_t runs() const { return runs_; }

 private:
  static constexpr std::int32_t kBlockTokens = 16, kProvenBlocks = 16;
  static constexpr std::int32_t kTries = 2;  // to find a block's line: from its end there may be none

  using PerLayer = AlikeLayers::PerLayer;
  // Calls at `begin` tokens, and what each further token adds. Both have the same classes.
  struct Line {
    std::int32_t begin = 0, end = 0, kind = 0;  // holds for lengths in [begin, end)
    LayerCalls base, slope;
  };
  // A sequence's calls: those of a line, `further` tokens after its begin.
  struct Place {
    const Line* line = nullptr;
    std::int64_t further = 0;
  };
  struct Block {
    std::int32_t tries = 0;
    std::optional<Line> line;            // over the block, or all of it but one end
    std::map<std::int32_t, Line> exact;  // else by length
  };
  // Properties in which two sequences of one length may differ: the set of kinds that they decode with, the pattern of lengths and of whole
  // rows over layers and heads, the trigger's target now, and, if they matter, the prompt and the lost tokens.
  struct Group {
    std::int32_t company = 0, pattern = 0, target = ShapeRun::kNoCut, prompt = -1, lost = -1;
    auto operator<=>(const Group&) const = default;
  };
  // Kinds of steps that are probed separately, to find if the prompt or the number of lost tokens matters: the first after the prompt,
  // those that keep everything, that cut for the first time, that cut again.
  enum Stage : std::uint8_t { kFirst, kKeeps, kCutsWhole, kCuts, kStages };

  // The state of a sequence from which its group, and its place in it, follow.
  struct Standing {
    std::int32_t target = ShapeRun::kNoCut;
    Stage stage = kKeeps;
    bool only_whole_grow = false;  // some rows are whole, and the others are cut to what they were
    std::int32_t length = 0;       // of a row that grows
  };

  [[nodiscard]] Standing standing(const Seq& seq) const;
  std::int32_t pattern_of(const Seq& seq, const Standing& at);
  Group group(const Seq& seq, const Standing& at, std::int32_t company);
  Place find(const Seq& seq, std::int32_t company);
  std::optional<Line> fit(const Seq& seq, const Standing& now, std::int32_t company, const Group& group);
  std::optional<Line> fit(const Seq& seq, const Standing& now, std::int32_t company, const Group& group, std::int32_t begin,
                          std::int32_t end);
  std::optional<PerLayer> added(const Seq& seq, std::int32_t company);
  PerLayer run(std::span<const Seq> batch);
  PerLayer run(std::span<const Seq> batch, std::span<const std::int32_t> layers);
  std::int32_t kind_of(const PerLayer& calls, const Seq& seq, std::int32_t company);
  [[nodiscard]] LayerCalls sum(std::span<const Place> places) const;
  std::int32_t company_of(std::span<const Place> places);
  void probe_prompts();
  void compare(const Seq& reference, const Seq& other);

  ModelShape model_;
  Budget budget_;
  bool fetches_;
  ShapeRun shapes_;
  std::vector<std::int32_t> every_layer_;
  std::vector<AlikeLayers> alike_;  // [sets of stages in a batch], of sequences whose rows are alike
  std::int64_t runs_ = 0;
  bool lines_hold_ = true;  // no checked block had a length off its line
  std::array<bool, kStages> prompt_matters_{}, lost_matters_{};
  std::map<std::vector<std::int32_t>, std::int32_t> patterns_;
  std::map<std::vector<std::string_view>, std::int32_t> kinds_;  // by the operations of all layers
  std::vector<std::optional<Seq>> member_;                       // [kinds] a sequence that alone is of this kind
  std::vector<std::int32_t> proven_;                             // [kinds] blocks in which every length was checked
  struct Company {
    std::vector<Seq> members;  // one of each kind
    PerLayer calls;            // of these together
  };
  std::map<std::vector<std::int32_t>, std::int32_t> company_ids_;
  std::vector<Company> companies_;  // 0: alone
  std::map<std::pair<Group, std::int32_t>, Block> blocks_;
};

}  // namespace kvlab
