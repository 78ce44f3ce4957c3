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

// Calls of a step by layer; layers that make the same calls are one class. With any selector but `all`, each layer's last calls are those
// of add_fetches().
struct LayerCalls {
  std::vector<std::int32_t> class_of_layer;  // [num_layers]
  std::vector<std::vector<OpCall>> calls;    // [classes], each in order
  [[nodiscard]] const std::vector<OpCall>& of_layer(std::int32_t layer) const {
    return calls[static_cast<std::size_t>(class_of_layer[static_cast<std::size_t>(layer)])];
  }
};

// a += times * b; both have the same operations. Bytes that calls share count once.
void add_times(std::vector<OpCall>& a, const std::vector<OpCall>& b, std::int64_t times);

inline constexpr std::string_view kFetch = "fetch", kReadDisk = "read_disk";
inline bool is_fetch(const OpCall& call) { return call.op == kFetch || call.op == kReadDisk; }
// Appends two calls for the layer's transfers from lower tiers: kFetch has the bytes over the host link, kReadDisk those read from disk.
void add_fetches(const ShapeRun::Result& result, std::size_t layer, std::vector<OpCall>& calls);

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

  // A sequence in successive decode steps. Rows that lost tokens have grown[i] tokens more before step i than before step 0, whole ones i.
  // Empty: there is one step.
  struct Walk {
    Seq seq;  // before step 0
    std::vector<std::int32_t> grown = {0};
    [[nodiscard]] std::int32_t grown_by(std::size_t step) const { return step < grown.size() ? grown[step] : 0; }
  };
  // Attention of a sequence, over all layers.
  struct Read {
    std::int64_t bytes = 0, flops = 0;
    friend bool operator==(const Read&, const Read&) = default;
  };
  // Calls of the first steps of a batch, `steps` of them, in each of which all sequences decode one token. `reads` [steps * batch], if
  // given, is added to.
  std::vector<LayerCalls> decode(std::span<const Walk> batch, std::size_t steps, std::span<Read> reads = {});
  LayerCalls decode(std::span<const Seq> batch);  // of one step
  // How often the parts were run so far.
  [[nodiscard]] std::int64_t runs() const { return runs_; }

 private:
  using Calls = std::vector<OpCall>;  // of a unit's layers, one after the other; each begins with a call that has no name
  // Calls at `begin` tokens of a row that grows, and the increment per further token.
  struct Line {
    std::int32_t begin = 0, kind = 0;  // the operations that are called
    Calls base, slope;                 // slope empty: one length
    Read read, read_slope;
    // While a batch is summed: its sequences on this line, their tokens after `begin`, and the tokens that they gain in a step.
    std::int64_t count = 0, further = 0, gains = 0;
    bool is_further = false, grows = false;  // any of them
  };
  struct Place {
    Line* line = nullptr;      // null: the calls are no sum
    std::int64_t further = 0;  // tokens after its begin
  };
  // The part of a sequence that a unit sees: the rows of its layers, or one number where these are alike.
  struct Member {
    const Seq* seq;
    std::span<const std::int32_t> rows;  // held before the step
  };
  struct Standing {
    StepKey key;                   // without company
    Lengths range;                 // of this key's line, around `length`
    std::int32_t length = 0;       // of a row that grows, this step's token included
    bool only_whole_grow = false;  // rows that lost nothing grow, others are cut to their former length
    bool is_first = false, is_cut = false;
  };
  // The places of a sequence whose rows are all alike, from a step on in which it had seen `seen` tokens and held `held`, for `lasts` steps
  // in which it holds no more, or for `on_line` steps in each of which it gains a token. Later batches find it here without a key.
  struct Trail {
    std::int32_t prompt = -1, seen = 0, held = 0;
    std::int64_t lasts = 0, on_line = 0;
    Place alone, joint;  // in company `company`; 0: none was looked up
    std::int32_t company = 0;
    [[nodiscard]] bool holds(std::int32_t prompt_tokens, std::int32_t seen_tokens, std::int32_t held_tokens) const {
      const std::int32_t by = seen_tokens - seen, more = held_tokens - held;
      return prompt == prompt_tokens && by >= 0 && by < lasts && (more == by ? by < on_line : more == 0 && held < seen);
    }
  };
  // A walk on its way through a unit.
  struct Cursor {
    const Walk* walk = nullptr;
    std::size_t first_row = 0, num_rows = 0;  // of walk->seq.held
    std::size_t at = 0;
    Place alone, joint;               // in company `company`
    std::size_t until = 0;            // step from which on these hold no longer
    std::int32_t grows = 0, cut = 0;  // tokens per step of the line's row, and of rows that lost some
    std::int32_t company = 0;
    Trail* trail = nullptr;  // null: rows differ
    [[nodiscard]] std::int32_t seen() const { return walk->seq.seen_tokens + static_cast<std::int32_t>(at); }
    [[nodiscard]] std::int32_t held(std::size_t row) const;  // before step `at`
    [[nodiscard]] Seq seq() const;
    [[nodiscard]] Member member(const Seq& seq) const { return {&seq, std::span(seq.held).subspan(first_row, num_rows)}; }
  };
  // Layers that run together.
  struct Unit {
    std::vector<std::int32_t> layers;
    std::int64_t times = 1;  // layers that each of them represents, if all rows are alike
    std::map<std::vector<std::int32_t>, std::int32_t> company_ids;
    struct Company {
      std::vector<Seq> members;  // one of each kind
      Calls calls;               // of these together
    };
    std::vector<Company> companies = std::vector<Company>(1);  // 0: alone
    std::map<std::vector<std::string_view>, std::int32_t> kinds;
    std::vector<std::optional<Seq>> member;  // [kinds] a sequence that alone is of this kind
    std::unordered_map<StepKey, Line, StepKey::Hash> lines;
    std::vector<Trail> trails = std::vector<Trail>(kTrails);  // by hashes of the prompt and of the tokens held, or lost
    void forget() { lines.clear(), trails.assign(kTrails, {}); }
  };

  [[nodiscard]] static Read read_of(const Calls& calls);
  [[nodiscard]] Standing standing(const Unit& unit, const Member& m);
  [[nodiscard]] Seq seq_of(const Unit& unit, const Member& m) const;
  [[nodiscard]] std::optional<Seq> moved(const Unit& unit, const Member& m, const Standing& at, std::int32_t length);
  Place find(Unit& unit, const Member& m, const Standing& at, std::int32_t company);
  Line make(Unit& unit, const Member& m, const Standing& at, std::int32_t company, Calls calls);
  Calls run(const Unit& unit, std::span<const Seq> batch);
  std::optional<Calls> added(const Unit& unit, const Seq& seq, std::int32_t company);
  std::int32_t kind_of(Unit& unit, const Calls& calls, const Seq& seq, std::int32_t company);
  std::int32_t company_of(Unit& unit, std::span<const Cursor> cursors);
  // The place of a trail by the tokens that a sequence lost, which stay if it gains one in each step, or by those that it holds.
  static Trail& trail_at(Unit& unit, std::int32_t prompt, std::int32_t number);
  void look_up(Unit& unit, Cursor& c, std::size_t step);
  bool join(Unit& unit, Cursor& c, std::int32_t company);
  void put(Unit& unit, Cursor& c, std::size_t step);
  void sum(const Unit& unit, std::span<const Cursor> cursors, Calls& total, Calls& slope);
  void sum_lines(std::span<const Cursor> cursors, Calls& total, Calls& slope);
  [[nodiscard]] Calls calls_of(const Unit& unit, const Place& at) const;
  [[nodiscard]] Calls add_stored(const Unit& unit, Calls calls, std::int32_t len, std::int64_t times) const;
  bool join(Unit& unit, std::span<Cursor> cursors, std::size_t step);
  void advance(Unit& unit, std::span<Cursor> cursors, std::size_t step);
  void add_reads(const Unit& unit, std::span<const Cursor> cursors, std::int64_t times, std::span<Read> reads) const;
  bool exchange_lines(Unit& unit, std::span<Cursor> cursors, std::size_t step, Calls& total, Calls& slope);
  static void add_line(const Place& at, std::int32_t grows, std::int64_t sign, Calls& total, Calls& slope);
  std::vector<Calls> decode(Unit& unit, std::span<Cursor> cursors, std::size_t steps, std::int64_t times, std::span<Read> reads);

  static constexpr std::size_t kTrails = 512;
  ModelShape model_;
  bool fetches_, acts_in_decode_, is_joint_;
  ShapeRun shapes_;
  std::vector<std::int32_t> unit_of_layer_;
  std::vector<Unit> units_;  // one of all layers, or one for each kind of layer
  const Unit* running_ = nullptr;
  struct Changed {
    Cursor* cursor;
    Place before;
    std::int32_t grows;
  };
  std::vector<Changed> changed_;     // by advance()
  std::int32_t company_ = 0;         // of the last sum
  std::vector<Line*> summed_;        // by sum_lines()
  std::vector<std::int32_t> kinds_;  // of a batch, in company_of()
  std::vector<Cursor> cursors_;
  std::int64_t runs_ = 0;
  std::map<std::vector<std::int32_t>, std::int32_t> patterns_;
};

}  // namespace kvlab
