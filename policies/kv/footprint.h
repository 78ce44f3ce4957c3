#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policies/kv/fetch_beside.h"

namespace kvlab {

// The form in which attention reads a packed token: its codes, decoded on the way; K and V in the model's own type, which stay decoded
// between steps; or K and V that each step decodes again, because only codes stay.
enum class KvReads : std::uint8_t { kStored, kDecoded, kUnpacked };

// A sequence before a step, and its share of it, in tokens.
struct SeqState {
  std::int32_t seen_tokens = 0;  // tokens whose KV was computed, kept or not
  std::int32_t prompt_tokens = 0;
  std::int32_t held_tokens = 0;  // in the first row (a layer's KV head) that lost something; `pattern` tells how others differ
  std::int32_t pattern = 0;      // a footprint's own number; 0: all rows hold the same
  bool left_hashed = false;      // it evicted before: its pages are private
  bool recomputes = false;       // it had private pages, was preempted by recompute and is computed again
  bool is_named = false;         // its blocks are hashed, so that others can find them, until its first eviction
  std::int32_t new_tokens = 0;   // appended in this step
  // Set by charge(): the cached tokens, in the model's own KV type, that one layer and KV head reads for it (the mean over all; its own new
  // token not counted).
  std::int32_t attended_tokens = 0;

  [[nodiscard]] SeqState taking(std::int32_t tokens) const {
    SeqState seq = *this;
    seq.new_tokens = tokens;
    return seq;
  }
};

// The effect of a step on a sequence's memory. Pages are those of one layer and KV head (MemorySetup::pages_per_block make a block).
struct FootprintStep {
  std::int64_t peak_pages = 0;                // private pages while the step runs; reserved before it
  std::int64_t kept_pages = 0;                // private pages once its output is processed; the rest goes back to the pool
  std::int32_t kept_tokens = 0;               // that the kept pages hold, as tokens of a block; for sequences that evicted
  std::int32_t held_tokens = 0, pattern = 0;  // after the step
  // The sequence's first eviction: from here on all its pages are private and unhashed, and the step counts the old blocks and the new
  // pages together. Before it, private pages exist beside the blocks: residual windows and the like. Tokens that are rewritten in place
  // need no new pages during the step: kept_pages, here above peak_pages, then replace the blocks.
  bool leaves_hashed = false;
  // The policy takes the prompt to end with this step; for sequences that are computed again.
  bool ends_prompt = false;

  // The sequence after its step.
  [[nodiscard]] SeqState after(SeqState seq) const {
    seq.seen_tokens += seq.new_tokens;
    seq.left_hashed |= leaves_hashed;
    seq.held_tokens = seq.left_hashed ? held_tokens : seq.seen_tokens;
    seq.pattern = seq.left_hashed ? pattern : 0;
    return seq;
  }
};

// Operations of one kind that a policy adds to a step, over all layers and KV heads: the sum of its calls (kernels/ops.h).
struct PolicyOp {
  std::string_view name;      // the folder in kernels/, or a footprint's own text
  std::int64_t launches = 0;  // one per batched call
  std::int64_t bytes = 0, flops = 0;
  bool over_host_link = false;                 // bytes come from CPU memory
  bool from_disk = false;                      // or from disk
  FetchBeside beside = FetchBeside::kNothing;  // of transfers
  [[nodiscard]] bool is_transfer() const { return over_host_link || from_disk; }
};

// Tokens of an extra forward pass, each chunk over `kv_tokens` cached ones.
struct ForwardPass {
  std::int32_t new_tokens = 0, kv_tokens = 0;
  std::int32_t layers = 0;  // that compute them; 0: the whole model
};

// A prompt of which some layers compute fewer tokens than the step has.
struct PrunedPrompt {
  std::size_t place = 0;             // in the batch of charge(); in a step, of its entry
  std::vector<std::int32_t> tokens;  // [layers]
};

// The work that a policy adds to a step, and prompts whose work it makes less.
struct PolicyWork {
  std::vector<PolicyOp> ops;
  std::vector<ForwardPass> passes;
  std::vector<PrunedPrompt> pruned;
  std::int32_t sparse_layers = 0;  // in which the attention of prompts is among `ops`
  void clear() { ops.clear(), passes.clear(), pruned.clear(), sparse_layers = 0; }
  [[nodiscard]] bool empty() const { return ops.empty() && passes.empty() && pruned.empty(); }
};

// The costs of the decode steps to come of a batch, from the next one on.
struct DecodeAhead {
  std::vector<std::vector<PolicyOp>> ops;           // [steps]
  std::vector<std::vector<std::int32_t>> attended;  // [steps][batch] SeqState::attended_tokens
  [[nodiscard]] std::int64_t steps() const { return std::ssize(ops); }
};

// A KV policy in serving: the memory of a sequence step by step, and the cost of a step of a batch. Sizes only, no tensors. Equal arguments
// give equal results: the pool calls step() before a step, and the host relies on the result after it.
class Footprint {
 public:
  virtual ~Footprint() = default;
  virtual FootprintStep step(const SeqState& seq) = 0;
  // A step of these sequences: fills attended_tokens and appends to `work`.
  virtual void charge(std::span<SeqState> batch, PolicyWork& work) = 0;
  // Private pages at the end of a sequence whose prompt was computed in one go: a bound for requests that can never run.
  virtual std::int64_t pages_at_end(std::int32_t prompt_tokens, std::int32_t seen_tokens) = 0;
  // True: sequences never evict, every token is kept, pages are plain blocks and nothing is charged.
  [[nodiscard]] virtual bool keeps_everything() const { return false; }
  // True: a decode step changes neither private pages nor what is charged, so that many of them may be carried out as one.
  [[nodiscard]] virtual bool is_steady_in_decode() const { return keeps_everything(); }
  // True: decode steps can be looked ahead at, by the two calls that follow.
  [[nodiscard]] virtual bool looks_ahead() const { return false; }
  // Appends the results of the sequence's next decode steps, `most` at most, as long as its rows are cut by none of them for the first time
  // and kept pages do not become fewer. Returns their number.
  virtual std::int64_t decode_run(const SeqState& /*seq*/, std::int64_t /*most*/, std::vector<FootprintStep>& /*steps*/) { return 0; }
  // The costs of `steps` decode steps of these sequences, whose results are in `runs` [batch][steps or more].
  virtual void charge_ahead(std::span<const SeqState> /*batch*/, std::span<const std::vector<FootprintStep>> /*runs*/,
                            std::int64_t /*steps*/, DecodeAhead& /*ahead*/) {}
  // True: a sequence that evicts nothing has private pages beside its blocks for what only some layers keep. Those beyond a step's
  // peak_pages go back before the step; they hold tokens that the blocks hold too.
  [[nodiscard]] virtual bool returns_pages() const { return false; }
  // False: blocks depend on more than the tokens before them, so they are not shared.
  [[nodiscard]] virtual bool shares_prefixes() const { return true; }
  // The number of a prompt's last tokens that are computed although their blocks are found, because the policy reads more of them than K
  // and V.
  [[nodiscard]] virtual std::int32_t fresh_tokens() const { return 1; }
  // True: the policy's budget is less than the tokens that always stay of a prompt of that length, so that more than the budget is kept.
  [[nodiscard]] virtual bool exceeds_budget(std::int32_t /*prompt_tokens*/) const { return false; }
  // True: the tokens of a sequence without hashes are not stored in its blocks, but in the policy's own form; once preempted, it cannot
  // find them again.
  [[nodiscard]] virtual bool unnamed_rest() const { return false; }
  // How preempted sequences with private pages come back, in place of the mode that the scheduler asked for.
  enum class OnPreempt : std::uint8_t { kSwap, kRecomputeChunked };
  [[nodiscard]] virtual OnPreempt on_preempt() const { return OnPreempt::kSwap; }
};

// Plain paged KV (Kwon et al. 2023, arXiv:2309.06180): the policy of an experiment that names none.
class KeepAll final : public Footprint {
 public:
  FootprintStep step(const SeqState& seq) override { return {0, 0, 0, seq.seen_tokens + seq.new_tokens, 0, false}; }
  void charge(std::span<SeqState> batch, PolicyWork&) override {
    for (SeqState& seq : batch) seq.attended_tokens = seq.seen_tokens;
  }
  std::int64_t pages_at_end(std::int32_t, std::int32_t) override { return 0; }
  [[nodiscard]] bool keeps_everything() const override { return true; }
};

}  // namespace kvlab
