#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/registry.h"
#include "kernels/attention/attend/attend.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"
#include "kernels/select/guess_queries/guess_queries.h"
#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/budget.h"
#include "policies/kv/fetch_beside.h"
#include "policies/kv/kv_keeper.h"
#include "policies/kv/kv_store.h"
#include "policies/kv/needs.h"
#include "policies/kv/step_key.h"

// The parts that a KV policy is made of; those that act on prompts alone have headers of their own (prefill_selector.h, prompt_pruner.h,
// prompt_rewriter.h). A part sees one layer of a ragged batch at a time and computes only through Ops, so
// the same object runs on recorded tensors, in a model, and on shapes alone: it never reads tensor data itself, and where
// Ops does not compute, data pointers are null. Registered parts are named in YAML: `scorer: {window_attention: {...}}`.
namespace kvlab {

// A sequence in this step.
struct SeqStep {
  std::int32_t index = 0;        // in the batch
  std::int32_t seen_tokens = 0;  // before the step, kept or not
  std::int32_t new_tokens = 0;   // appended in this step
  std::int32_t prompt_tokens = 0;
  std::int32_t question_begin = -1;  // position in the prompt; -1: unknown
  std::uint64_t draws = 0;           // key of its random draws, the same at every place in a batch
  [[nodiscard]] std::int32_t end() const { return seen_tokens + new_tokens; }
  [[nodiscard]] bool decoding() const { return seen_tokens >= prompt_tokens; }
  [[nodiscard]] bool completes_prompt() const { return !decoding() && end() >= prompt_tokens; }
};

// The tensors that the needs asked for, in one layer; spans have one element per sequence of the step. Counts and positions are valid
// without data too.
struct Observed {
  std::span<const Queries> step;  // [count, q_heads, head_dim]
  std::span<const Queries> window;
  std::span<const Queries> pre_rope_queries;    // positions [0, prompt_tokens)
  std::span<const float* const> pre_rope_keys;  // per sequence [end, kv_heads, head_dim] by position
  std::span<const Queries> future;
  std::span<const float* const> hidden;         // per sequence [new_tokens, hidden_dim]
  std::span<const float* const> hidden_before;  // in decode: of the layer before; empty in layer 0
  std::span<const std::int32_t* const> ids;     // per sequence [end]
  const float* w_o = nullptr;                   // [hidden_dim, q_heads * head_dim]
  QueryWeights w_q;
  std::span<const std::span<const PassQueries>> pass;  // per sequence its chunks
};

// Tokens of each row, ascending; index null: all of them or none, as the user of the selection states.
struct Selection {
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;
};

// One layer in one step, with the sequences that take part.
struct LayerStep {
  Ops& ops;
  const ModelShape& model;
  std::int32_t layer = 0;
  std::span<const SeqStep> seqs;  // seqs[kv.sequence(row)]
  KvRows kv;                      // this step's tokens are appended already
  Observed in;
  std::uint64_t seed = 0;
  TensorMemory memory = {};    // the memory of operations' tensors and of a part's state between steps
  KvKeeper* keeper = nullptr;  // null: not recorded
  Selection exact = {};        // tokens that Format::store leaves as they are (Selector::exact_tokens)

  // Brings the selection's tokens on lower tiers into the rows, for a selector that reads them before attention does.
  void fetch(const Selection& selection) const {
    if (keeper != nullptr) keeper->fetch(*this, selection);
  }
  // An operation that fills the listed vectors from codes.
  template <class Op>
  void decode(const Op& op) const {
    ops(op);
    if (keeper != nullptr) keeper->keep(*this, DecodeOpOf<Op>(op));
  }
};

class TrainedTensors;

class KvPart {
 public:
  virtual ~KvPart() = default;
  [[nodiscard]] virtual Needs needs() const { return {}; }
  // Statistics kept per token and KV head, 4 bytes each, from channel first_word() on; new tokens start at 0, evicted tokens
  // lose theirs.
  [[nodiscard]] virtual std::int32_t num_words() const { return 0; }
  // Those of them that a cache really stores: a mark that follows from the place of storage takes no memory.
  [[nodiscard]] virtual std::int32_t resident_words() const { return num_words(); }
  virtual void bind(std::int32_t first_word) { first_word_ = first_word; }
  // Why this part cannot run with these sizes ("" if it can), asked once before the first step.
  [[nodiscard]] virtual std::string refuses(const ModelShape&) const { return ""; }
  // Layers of one kind are treated in the same way and independently: rows of equal length make the same calls in them. If layers depend on
  // each other, or differ by more than a few kinds, each is a kind of its own: `layer`. Costs are taken from one layer of each kind.
  [[nodiscard]] virtual std::int32_t layer_kind(std::int32_t /*layer*/) const { return 0; }
  // Adds the numbers on which this part's work in a decode step depends beside the lengths of the rows, the trigger's target and whether
  // the step is the first after the prompt. The costs of decode steps are kept by these.
  virtual void step_key(const SeqStep&, StepKey&) const {}
  // Row lengths around `len` over which calls and bytes of a decode step are affine while the step's key is the same: costs between them
  // follow from two of them. In steps that cut rows, this holds only for scorers with cuts_affinely().
  [[nodiscard]] virtual Lengths affine_lengths(std::int32_t /*len*/) const { return Lengths::all(); }
  // kFound, kLeft: the part computes over all KV heads of a layer together and needs equal numbers of tokens in them, in the rows that it
  // finds when the policy acts (kFound) or also in those that the policy leaves (kLeft).
  enum class EqualHeads : std::uint8_t { kNotNeeded, kFound, kLeft };
  [[nodiscard]] virtual EqualHeads equal_heads() const { return EqualHeads::kNotNeeded; }
  // True: disposals and selectors that attend to more than tokens of the rows (add_segments).
  [[nodiscard]] virtual bool adds_segments() const { return false; }
  // True: KV heads of a layer may keep different numbers of tokens by what this part says.
  [[nodiscard]] virtual bool splits_heads() const { return false; }
  // kIfGiven: it reads tensors of the recipe's `weights` file where there is one; kAlways: and cannot compute without.
  enum class TakesWeights : std::uint8_t { kNo, kIfGiven, kAlways };
  [[nodiscard]] virtual TakesWeights takes_weights() const { return TakesWeights::kNo; }
  // Told once, right after it was made. refuses() compares shapes. InputError: a tensor is missing.
  virtual void set_weights(const std::shared_ptr<const TrainedTensors>&) {}
  // The sequence at this index of the batch is gone or moved away: its state must not be used for the next one there.
  virtual void forget(std::int32_t /*index*/) {}

 protected:
  [[nodiscard]] std::int32_t first_word() const { return first_word_; }

 private:
  std::int32_t first_word_ = 0;
};

// Importance of each cached token, per KV head; higher stays.
class Scorer : public KvPart {
 public:
  // The budget as the experiment gives it, before it is rounded to tokens of a row. Told once, before the first step.
  virtual void set_budget(const Budget&) {}
  // After the layer's attention in every step: keeps statistics up to date.
  virtual void observe(LayerStep&) {}
  // scores [kv.total()], to be overwritten.
  virtual void score(LayerStep& step, float* scores) = 0;
  // Second stage, once the counts are known (keep [kv.num_rows]); protected tokens have +infinity. May lower the counts, or set them
  // where only whole chunks stay; counts that depend on data pass through ops.settle.
  virtual void refine(LayerStep&, std::int32_t* /*keep*/, float* /*scores*/) {}
  [[nodiscard]] virtual Protected protects() const { return {}; }
  // True: calls are affine in the lengths of rows that grow while others are cut.
  [[nodiscard]] virtual bool cuts_affinely() const { return false; }
  // True: scores of different heads and layers can be ranked together.
  [[nodiscard]] virtual bool comparable_across_heads() const { return true; }
  // True: refine() ranks tokens anew, so an allocator must not have chosen all of them before.
  [[nodiscard]] virtual bool ranks_after_counts() const { return false; }
};

// One layer with scores, waiting for counts.
struct ScoredLayer {
  std::int32_t layer = 0;
  KvRows kv;
  // [kv.total()], protected tokens +infinity; where the scorer protects a share of what a row keeps, that of the target.
  const float* scores = nullptr;
  const std::int32_t* target = nullptr;  // [num_sequences] tokens per KV head that the budget allows on average, protected ones included
  const std::int32_t* full = nullptr;    // [num_sequences] to which rows cut to the target may fill up again; null: to the target
  std::int32_t* keep = nullptr;          // [num_rows] out, at most the row's length
  const Observed* in = nullptr;          // of the layer, for the same sequences
  float* marks = nullptr;                // the array `scores` for an allocator that fixes tokens; null: the scorer protects a share
};

// How many tokens each layer and head keeps.
class Allocator : public KvPart {
 public:
  // kLayer: called with one layer. kCascade: after each layer with all layers so far, and may shrink earlier ones. kModel: after
  // the last layer with all of them.
  enum class Scope : std::uint8_t { kLayer, kCascade, kModel };
  [[nodiscard]] virtual Scope scope() const { return Scope::kLayer; }
  // False: shares out once, when the prompt is complete, and cannot be asked again in decode.
  [[nodiscard]] virtual bool in_decode() const { return scope() == Scope::kLayer; }
  // True: shares out once, and in decode leaves rows as long as they were. It goes with triggers that do so too (Trigger::keeps_counts).
  [[nodiscard]] virtual bool keeps_counts() const { return false; }
  // The budget as the experiment gives it, before it is rounded to tokens of a row. Told once, before the first step.
  virtual void set_budget(const Budget&) {}
  virtual void allocate(Ops& ops, const ModelShape& model, std::span<const SeqStep> seqs, std::span<ScoredLayer> layers) = 0;
  // The same without scores: what a row of `layer` keeps of a sequence of n tokens at this target; where that depends on data, the mean, or
  // counts of the layers' rows that together are what they hold.
  [[nodiscard]] virtual std::int32_t expected(const ModelShape& model, std::int32_t layer, std::int32_t head, std::int32_t target,
                                              std::int32_t n) const = 0;
  [[nodiscard]] virtual bool depends_on_data() const { return false; }
  // kSome, kAll: allocate() chooses some of the tokens that stay, or all of them, and writes this to ScoredLayer::marks.
  enum class FixesTokens : std::uint8_t { kNone, kSome, kAll };
  [[nodiscard]] virtual FixesTokens fixes_tokens() const { return FixesTokens::kNone; }
  // True: a share of the prompt is rounded once for the whole model, so a row holds up to one token more than its own share.
  [[nodiscard]] virtual bool rounds_for_model() const { return false; }
  // expected() of rows that lose a part of their shares at once: the share of `full` in proportion, so that rows that are alike before stay
  // alike. full <= target: the share of the target.
  [[nodiscard]] std::int32_t expected_part(const ModelShape& model, std::int32_t layer, std::int32_t head, std::int32_t target,
                                           std::int32_t full, std::int32_t n) const {
    if (full <= target) return expected(model, layer, head, target, n);
    return static_cast<std::int32_t>(std::int64_t{expected(model, layer, head, full, n)} * target / full);
  }
  // True: the same number of tokens in every layer and head.
  [[nodiscard]] virtual bool is_uniform() const { return false; }
  // True: rows have unequal shares of the budget, most of them known without data; over_shares() compares rows with theirs.
  [[nodiscard]] virtual bool has_shares() const { return !depends_on_data(); }
  // For these: true if a row of the layer holds more than its share at this target; the rows hold `len` [kv_heads] of n tokens.
  [[nodiscard]] virtual bool over_shares(const ModelShape& model, std::int32_t layer, std::span<const std::int32_t> len,
                                         std::int32_t target, std::int32_t n) const;
};

// The tokens that a layer's rows of one sequence hold, as triggers see them.
class Held {
 public:
  Held(std::int32_t tokens) : longest_(tokens) {}  // NOLINT: rows alike, with equal shares
  // `len` [kv_heads] of `n` tokens of the sequence; the arguments outlive this.
  Held(const Allocator& allocator, const ModelShape& model, std::int32_t layer, std::span<const std::int32_t> len, std::int32_t n);
  // Tokens of the longest row.
  [[nodiscard]] std::int32_t tokens() const { return longest_; }
  // True: a row holds more than its share if rows may hold `target` on average. Shares that depend on data count as equal; a sequence that
  // is not longer than the target never exceeds it.
  [[nodiscard]] bool exceeds(std::int32_t target) const;

 private:
  std::int32_t longest_, layer_ = 0, n_ = 0;
  std::span<const std::int32_t> len_ = {};
  const Allocator* allocator_ = nullptr;
  const ModelShape* model_ = nullptr;
};

// When a policy acts, and down to how many tokens.
class Trigger : public KvPart {
 public:
  // The most a sequence holds after a step: `tokens` per row on average, of the `end` tokens that it had at the cut, and `grown` tokens in
  // each row since.
  struct Bound {
    std::int32_t tokens = 0, end = 0, grown = 0;
  };
  // Tokens per KV head that may stay now on average in rows that hold `held`, or nothing: no action. Asked after each layer's attention.
  [[nodiscard]] virtual std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const = 0;
  // The most that may stay; nothing: all tokens.
  [[nodiscard]] virtual std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const = 0;
  // Tokens to which rows fill up on average before they are cut to a smaller target(); 0: the target.
  [[nodiscard]] virtual std::int32_t full(const SeqStep&, const Budget&) const { return 0; }
  // Acts while the prompt is incomplete: later prompt tokens are computed over a cut cache.
  [[nodiscard]] virtual bool inside_prefill() const { return false; }
  [[nodiscard]] virtual bool in_decode() const { return false; }
  // True: in decode one token goes for each new one.
  [[nodiscard]] virtual bool keeps_counts() const { return false; }
  // Decode: how many more tokens a row may hold beyond the budget before the trigger acts again.
  [[nodiscard]] virtual std::int32_t slack_tokens() const { return 0; }
  // For how many decode steps, this one included, target() stays as it is while uncut rows grow by a token in each. Asked of triggers that
  // act in decode, where all rows have equal shares.
  [[nodiscard]] virtual std::int64_t lasts(const SeqStep&, std::int32_t /*held*/, const Budget&) const { return 1; }
  [[nodiscard]] virtual Protected protects(const SeqStep&) const { return {}; }
  // Why no cut leaves so few tokens, as the end of a sentence about the budget; "" where one can.
  [[nodiscard]] virtual std::string refuses_budget(std::int32_t /*tokens*/) const { return ""; }
  // False: the allocator alone says how many tokens stay.
  [[nodiscard]] virtual bool needs_budget() const { return true; }
  // False: target() never returns anything.
  [[nodiscard]] virtual bool acts() const { return true; }
};

// Which tokens of each row stay: indices ascending, keep[row] of them from index_first[row] on.
struct Kept {
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;
  const std::int32_t* keep = nullptr;  // [num_rows]
};

// Bytes by tier.
struct TierBytes {
  std::int64_t gpu = 0, host = 0, disk = 0;
  TierBytes& operator+=(const TierBytes& o) {
    gpu += o.gpu, host += o.host, disk += o.disk;
    return *this;
  }
  friend bool operator==(const TierBytes&, const TierBytes&) = default;
};

// How kept tokens are stored.
class Format : public KvPart {
 public:
  // After the policy acted in a layer: tokens that are due are encoded; the rows then hold what decoding gives.
  virtual void store(LayerStep&) {}
  // True: K and V stay as the model computes them.
  [[nodiscard]] virtual bool is_native() const { return false; }
  // False: store() does nothing, rows hold all that there is of K and V.
  [[nodiscard]] virtual bool encodes() const { return true; }
  // True: store() leaves keys of LayerStep::exact as they are.
  [[nodiscard]] virtual bool leaves_exact() const { return false; }
  // True: store() reads and writes no more than the prompt's keys, once, when it is complete.
  [[nodiscard]] virtual bool stores_prompt_keys_alone() const { return false; }
  // Bytes of K and V of a row that holds `tokens`, the newest ones in full precision where the format says so.
  [[nodiscard]] virtual std::int64_t row_bytes(const ModelShape& model, std::int32_t layer, std::int32_t tokens) const = 0;
  // Bytes of such a row on its way to another tier or node, and there.
  [[nodiscard]] virtual std::int64_t transfer_bytes(const ModelShape& model, std::int32_t layer, std::int32_t tokens) const {
    return row_bytes(model, layer, tokens);
  }
  // None: marks of encoded tokens follow from where these are stored.
  [[nodiscard]] std::int32_t resident_words() const override { return 0; }
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return Lengths::only(len); }
};

// Bytes moved between tiers in a step, and hits on the GPU.
struct Traffic {
  std::int64_t fetched_bytes = 0;               // from a lower tier
  std::int64_t asked_units = 0, hit_units = 0;  // tokens, pages or clusters wanted, and how many were on the GPU already
  std::int64_t stored_bytes = 0;                // to a lower tier
  std::int64_t disk_bytes = 0;                  // read from disk for fetched tokens, in the form in which they are stored there
  std::int64_t in_place_bytes = 0;              // of fetched_bytes: used where they are stored, so that they cross no link
  Traffic& operator+=(const Traffic& o) {
    fetched_bytes += o.fetched_bytes, asked_units += o.asked_units, hit_units += o.hit_units;
    stored_bytes += o.stored_bytes, disk_bytes += o.disk_bytes, in_place_bytes += o.in_place_bytes;
    return *this;
  }
};

// The treatment of tokens that are not kept, "the others".
class Disposal : public KvPart {
 public:
  // After the layer's attention in every step, before tokens are ranked: keeps statistics up to date.
  virtual void observe(LayerStep&) {}
  // Lowers the scores [kv.total()] of tokens that it disposed of earlier and that still are in their rows, so that they are not kept
  // again; protected tokens have +infinity.
  virtual void rank(LayerStep&, float* /*scores*/) {}
  // Leaves the kept tokens, changed or not, at the front of their rows; the caller then shortens the rows.
  virtual void dispose(LayerStep& step, const Kept& kept) = 0;
  // True: deletes the others, and nothing else.
  [[nodiscard]] virtual bool only_drops() const { return false; }
  // False: the others stay too, in low precision, and dispose() only marks them.
  [[nodiscard]] virtual bool shrinks() const { return true; }
  // True: tokens that stay are encoded.
  [[nodiscard]] virtual bool encodes() const { return false; }
  // More to attend to than the rows: compensation tokens. Appended to `segments`; kept alive by the part until the next step.
  virtual void add_segments(LayerStep&, std::vector<Segment>& /*segments*/) {}
  // True: all its work is done in observe(), and nothing is evicted.
  [[nodiscard]] virtual bool acts_alone() const { return false; }
  // Bytes of K and V of a layer's rows and of what this part keeps beside them; `rows` is the format's own count.
  [[nodiscard]] virtual TierBytes resident(const ModelShape&, std::int32_t /*layer*/, std::span<const SeqStep> /*seqs*/, const KvRows&,
                                           const Format&, const TierBytes& rows) const {
    return rows;
  }
  // Traffic to other tiers since the last call.
  virtual Traffic take_traffic(const ModelShape&, const Format&) { return {}; }
};

// Chooses the tokens that a decode step attends to. Prefill attends to all held tokens.
class Selector : public KvPart {
 public:
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return Lengths::only(len); }
  // Which of a layer's tensors are kept off the GPU between decode steps. Tokens read by the last step and those of stays() remain on the
  // GPU.
  enum class Lower : std::uint8_t { kNothing, kValues, kKeysAndValues };
  // If any are, select() and update() read only new tokens and those of the last step, or call LayerStep::fetch() for more.
  [[nodiscard]] virtual Lower lower(std::int32_t /*layer*/) const { return Lower::kNothing; }
  // After a step: tokens that stay on the GPU whether the step read them or not; of a prompt, those that its first decode step always
  // reads. index null: none. The result's memory comes from step.ops or the part.
  virtual Selection stays(LayerStep&) { return {}; }
  // The budget that the experiment gives, in tokens per KV head: replaces the selector's own. False: the selector has none.
  virtual bool set_budget(std::int32_t /*tokens*/) { return false; }
  // After a layer's new tokens are appended and others evicted, before the format encodes any: keeps page bounds, clusters and the like up
  // to date. Summaries of older tokens must not be computed again from their keys, which may be encoded.
  virtual void update(LayerStep&) {}
  // After update() in a step with prompt tokens, of formats that can leave keys as they are: tokens whose keys stay exact because they are
  // kept apart; index null: none. The part's resident() counts them. The result's memory comes from step.ops or the part.
  virtual Selection exact_tokens(LayerStep&) { return {}; }
  // In decode, before the layer's attention, with this step's token appended: the tokens that it attends to; index null: all. Memory as
  // above.
  virtual Selection select(LayerStep& step) = 0;
  virtual Traffic take_traffic() { return {}; }  // since the last call
  // The computation during which a layer's transfer from lower tiers runs, as the method's paper states it.
  [[nodiscard]] virtual FetchBeside fetches_beside() const { return FetchBeside::kNothing; }
  // Bytes beside K and V, and of K and V by tier: moves some of `kv` (all on the GPU) to the tier where it is stored.
  [[nodiscard]] virtual TierBytes resident(const ModelShape&, const KvRows&, const TierBytes& kv) const { return kv; }
  // The same where layers differ.
  [[nodiscard]] virtual TierBytes resident_in_layer(std::int32_t /*layer*/, const ModelShape& model, const KvRows& rows,
                                                    const TierBytes& kv) const {
    return resident(model, rows, kv);
  }
  // After select(), more to attend to than tokens of the rows: low-bit copies, compensation tokens. Kept alive by the part until the
  // next step. The first segment is the selection, whose tokens may get weights here.
  virtual void add_segments(LayerStep&, std::vector<Segment>& /*segments*/) {}
  [[nodiscard]] virtual bool selects_all() const { return false; }
};

using ScorerRegistry = Registry<Scorer>;
using AllocatorRegistry = Registry<Allocator>;
using TriggerRegistry = Registry<Trigger>;
using DisposalRegistry = Registry<Disposal>;
using FormatRegistry = Registry<Format>;
using SelectorRegistry = Registry<Selector>;

}  // namespace kvlab
