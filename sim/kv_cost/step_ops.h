#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policies/kv/footprint.h"
#include "sim/kv_cost/shape_run.h"

namespace kvlab {

// Equal calls form a class. A layer's last calls are add_fetches()'s, except with selector `all`.
struct LayerCalls {
  std::vector<std::int32_t> class_of_layer;  // [num_layers]
  std::vector<std::vector<OpCall>> calls;    // [classes], in order
  [[nodiscard]] const std::vector<OpCall>& of_layer(std::int32_t layer) const {
    return calls[static_cast<std::size_t>(class_of_layer[static_cast<std::size_t>(layer)])];
  }
  friend bool operator==(const LayerCalls&, const LayerCalls&) = default;
};

// Numbers of calls without their names. Shared bytes count once.
class CallRow {
 public:
  CallRow() = default;
  explicit CallRow(std::span<const OpCall> calls);
  [[nodiscard]] bool empty() const { return numbers_.empty(); }
  [[nodiscard]] std::size_t num_calls() const { return num_calls_; }
  // Of as many calls. Without counts: sums of bytes and FLOPs only.
  void clear(std::size_t num_calls, bool has_counts);
  void add(const CallRow& more, std::int64_t times);
  // In calls with the names; bytes of those without a name stay.
  void write(std::vector<OpCall>& calls) const;
  [[nodiscard]] bool adds_nothing() const;
  [[nodiscard]] bool shares() const { return !shared_.empty(); }

 private:
  static constexpr std::size_t kWork = 2, kCounts = 3;
  std::size_t num_calls_ = 0;
  std::vector<std::int64_t> numbers_;  // per call: bytes without shared ones, flops; then per call: rows, tokens, outputs
  std::vector<std::int64_t> shared_;   // bytes per call; empty: none
};

inline constexpr std::string_view kFetch = "fetch", kReadDisk = "read_disk";
// Hosts price it themselves.
inline bool is_attention(const OpCall& call) { return call.op == "attend"; }
inline bool is_fetch(const OpCall& call) { return call.op == kFetch || call.op == kReadDisk; }
// kFetch over the host link, kReadDisk from disk.
void add_fetches(const ShapeRun::Result& result, std::size_t layer, std::vector<OpCall>& calls);
// Without attention and empty fetches.
void add_calls(std::vector<PolicyOp>& ops, const OpCall& call, std::int64_t times, FetchBeside beside = FetchBeside::kNothing);

// Parts run once per kind of layer and KvPart::step_key, or at two lengths if costs between are affine. A batch is the exact sum over its
// sequences, unless these call different operations.
class StepOps {
 public:
  using Seq = ShapeRun::Seq;
  // Errors as ShapeRun. Counts at their bounds. has_counts: calls of a batch have rows, tokens and outputs.
  StepOps(const Recipe& recipe, const ModelShape& model, bool has_counts = true);

  // Before step i, rows that lost tokens have grown by grown[i], whole ones by i. Empty: one step.
  struct Walk {
    Seq seq;
    std::vector<std::int32_t> grown = {0};
    [[nodiscard]] std::int32_t grown_by(std::size_t step) const { return step < grown.size() ? grown[step] : 0; }
  };
  struct Read {
    std::int64_t bytes = 0, flops = 0;
    friend bool operator==(const Read&, const Read&) = default;
  };
  // One token per sequence and step. Adds to `reads` [steps * batch].
  std::vector<LayerCalls> decode(std::span<const Walk> batch, std::size_t steps, std::span<Read> reads = {});
  LayerCalls decode(std::span<const Seq> batch);
  [[nodiscard]] std::int64_t runs() const { return runs_; }

 private:
  using Calls = std::vector<OpCall>;  // a unit's layers, each begun by a call without name
  // At `begin` tokens of a growing row, and per further token.
  struct Line {
    std::int32_t begin = 0, end = 0, kind = 0;  // end: the first length on `next`; kind: operations called
    CallRow base, slope;                        // slope empty: one length
    Read read, read_slope;
    Line* next = nullptr;  // while the key lasts; null: not known
    // Batch: sequences, tokens after `begin`, tokens gained per step.
    std::int64_t count = 0, further = 0, gains = 0;
    bool is_further = false, grows = false;
  };
  struct Place {
    Line* line = nullptr;  // null: no sum
    std::int64_t further = 0;
    [[nodiscard]] std::int64_t left() const { return line->end - line->begin - further; }
    // To the line of its length. False: not known.
    bool follow();
  };
  // In a unit's layers, or one number if equal.
  struct Member {
    const Seq* seq;
    std::span<const std::int32_t> rows;  // before the step
  };
  struct Standing {
    StepKey key;
    Lengths range;
    std::int32_t length = 0;       // growing row, this token included
    bool only_whole_grow = false;  // rows that lost tokens are cut back
    bool is_first = false, is_cut = false;
  };
  // Equal rows, from `seen` and `held` tokens, for `lasts` steps with a token each or without.
  struct Trail {
    std::int32_t prompt = -1, seen = 0, held = 0;
    std::int64_t lasts = 0;
    Place alone, joint;  // joint: in `company`; 0: none yet
    std::int32_t company = 0;
    [[nodiscard]] bool holds(std::int32_t prompt_tokens, std::int32_t seen_tokens, std::int32_t held_tokens) const {
      const std::int32_t by = seen_tokens - seen, more = held_tokens - held;
      return prompt == prompt_tokens && by >= 0 && by < lasts && (more == by || (more == 0 && held < seen));
    }
    // Its places are those of now.
    void move(std::int32_t seen_tokens, std::int32_t held_tokens) {
      lasts -= seen_tokens - seen;
      joint.further += held_tokens - held;
      seen = seen_tokens, held = held_tokens;
    }
  };
  struct Cursor {
    const Walk* walk = nullptr;
    std::int32_t prompt = 0, seen_before = 0, held_before = 0;  // in the walk's first step
    std::size_t first_row = 0, num_rows = 0;                    // of walk->seq.held
    std::size_t at = 0;
    Place alone, joint;
    std::size_t until = 0, lasts = 0;  // first step without these, or with another key
    std::int32_t usual = 1;            // tokens per step where the walk does not tell
    std::int32_t grows = 0, cut = 0;   // tokens per step: the line's row, cut rows
    std::int32_t company = 0;
    Trail* trail = nullptr;  // null: rows differ, or a later step
    [[nodiscard]] std::int32_t seen() const { return walk->seq.seen_tokens + static_cast<std::int32_t>(at); }
    [[nodiscard]] std::int32_t held(std::size_t row) const;
    [[nodiscard]] bool gains_as_before(std::size_t step) const { return walk->grown[step] - walk->grown[step - 1] == cut; }
    void stay(std::size_t step);
    // From the step before, with its places.
    [[nodiscard]] bool leads_to(const Walk& next) const {
      return num_rows == 1 && prompt == next.seq.prompt_tokens && seen_before + 1 == next.seq.seen_tokens;
    }
    // And its places last.
    [[nodiscard]] bool goes_on_to(const Walk& next) const;
    void pass_to(const Walk& next);
    [[nodiscard]] Seq seq() const;
    [[nodiscard]] Member member(const Seq& seq) const { return {&seq, std::span(seq.held).subspan(first_row, num_rows)}; }
  };
  // The last step's sequences, and the sum of their lines.
  struct Batch {
    std::vector<Cursor> cursors, before;
    CallRow total, slope;  // now, and per step
    std::int32_t company = 0;
    bool is_sum = false, is_flat = false;
  };
  struct Unit {
    std::vector<std::int32_t> layers;
    std::int64_t times = 1;  // layers per entry, if rows are equal
    std::map<std::vector<std::int32_t>, std::int32_t> company_ids;
    struct Company {
      std::vector<Seq> members;  // one of each kind
      Calls calls;
    };
    std::vector<Company> companies = std::vector<Company>(1);  // 0: alone
    std::map<std::vector<std::string_view>, std::int32_t> kinds;
    std::vector<Calls> names;                // [kinds] calls without numbers
    std::vector<std::optional<Seq>> member;  // [kinds]; has only this kind
    std::unordered_map<StepKey, Line, StepKey::Hash> lines;
    std::vector<Trail> trails = std::vector<Trail>(kTrails);  // by prompt and tokens held or lost
    std::size_t calls_per_line = 0;
    Batch batch;  // of single steps
    void forget() { lines.clear(), trails.assign(kTrails, {}), batch = {}; }
  };

  [[nodiscard]] static Read read_of(const Calls& calls);
  [[nodiscard]] Standing standing(const Unit& unit, const Member& m);
  [[nodiscard]] Seq seq_of(const Unit& unit, const Member& m) const;
  [[nodiscard]] std::optional<Seq> moved(const Unit& unit, const Member& m, const Standing& at, std::int32_t length);
  // before: a line with the same key, or null.
  Place find(Unit& unit, const Member& m, const Standing& at, std::int32_t company, Line* before);
  Line make(Unit& unit, const Member& m, const Standing& at, std::int32_t company, Calls calls);
  Calls run(const Unit& unit, std::span<const Seq> batch);
  std::optional<Calls> added(const Unit& unit, const Seq& seq, std::int32_t company);
  std::int32_t kind_of(Unit& unit, const Calls& calls, const Seq& seq, std::int32_t company);
  std::int32_t company_of(Unit& unit, std::span<const Cursor> cursors);
  // number: tokens lost, constant as a row grows, or held.
  static Trail& trail_at(Unit& unit, std::int32_t prompt, std::int32_t number);
  void look_up(Unit& unit, Cursor& c, std::size_t step, Line* before);
  bool join(Unit& unit, Cursor& c, std::int32_t company);
  void put(Unit& unit, Cursor& c, std::size_t step);
  static bool move_on(Cursor& c, std::size_t step);
  void take(Batch& batch, std::span<const Walk> walks);
  void take_layer(Batch& batch, std::span<const Walk> walks, std::size_t layer);
  void sum(const Unit& unit, Batch& batch);
  void sum_lines(Batch& batch);
  [[nodiscard]] Calls calls_of(const Unit& unit, const Place& at) const;
  [[nodiscard]] Calls add_stored(const Unit& unit, Calls calls, std::int32_t len, std::int64_t times) const;
  bool join(Unit& unit, Batch& batch, std::size_t step);
  void advance(Unit& unit, std::span<Cursor> cursors, std::size_t step);
  void add_reads(const Unit& unit, std::span<const Cursor> cursors, std::int64_t times, std::span<Read> reads) const;
  bool exchange_lines(Unit& unit, Batch& batch);
  static void add_line(Batch& batch, const Place& at, std::int32_t grows, std::int64_t sign);
  Calls run_all(Unit& unit, std::span<Cursor> cursors, std::size_t step);
  std::vector<Calls> decode(Unit& unit, Batch& batch, std::size_t steps, std::int64_t times, std::span<Read> reads);
  [[nodiscard]] bool check(std::span<const Walk> batch) const;

  static constexpr std::uint32_t kTrails = 2048;
  ModelShape model_;
  bool has_counts_, fetches_, acts_in_decode_, is_joint_;
  ShapeRun shapes_;
  std::vector<std::int32_t> unit_of_layer_;
  std::vector<Unit> units_;
  const Unit* running_ = nullptr;
  struct Changed {
    Cursor* cursor;  // null: it left
    Place before;    // null line: it is new
    std::int32_t grows;
  };
  std::vector<Changed> changed_;
  std::vector<Line*> summed_;
  std::vector<std::int32_t> kinds_;
  Batch passing_;  // of several steps, or of one layer
  std::int64_t runs_ = 0;
  std::map<std::vector<std::int32_t>, std::int32_t> patterns_;
};

}  // namespace kvlab
