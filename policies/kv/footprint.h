#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace kvlab {

// What attention reads of a packed token: its codes, decoded on the way; K and V in the model's own type, which stay decoded between steps;
// or K and V that each step decodes anew, because only codes stay.
enum class KvReads : std::uint8_t { kStored, kDecoded, kUnpacked };

// Where a sequence stands before a step, in tokens.
struct SeqState {
  std::int32_t seen_tokens = 0;  // tokens whose KV was computed, kept or not
  std::int32_t prompt_tokens = 0;
  std::int32_t held_tokens = 0;  // in the first row (a layer's KV head) that lost something; how the others differ is behind `pattern`
  std::int32_t pattern = 0;      // a footprint's own number; 0: all rows hold the same
  bool left_hashed = false;      // it evicted before: its pages are private
  bool recomputes = false;       // it left the hashed domain, was preempted by recompute and is on its way back
  bool is_named = false;         // its blocks have names by which others may find them, until it leaves the hashed domain
};

// What a step does to a sequence's memory. Pages are those of one layer and KV head (MemorySetup::pages_per_block make a block).
struct FootprintStep {
  std::int64_t peak_pages = 0;                // private pages while the step runs; reserved before it
  std::int64_t kept_pages = 0;                // private pages once its output is processed; the rest goes back to the pool
  std::int32_t kept_tokens = 0;               // that the kept pages hold, as tokens of a block; of sequences that left the hashed domain
  std::int32_t held_tokens = 0, pattern = 0;  // after the step
  // The sequence's first eviction: from here on all its pages are private and unhashed, and the step counts the old blocks and the new
  // pages together. Before it, private pages stand beside the blocks: residual windows and the like. Tokens that are rewritten where they
  // are stored need no new pages meanwhile: kept_pages, here above peak_pages, then take the place of the blocks.
  bool leaves_hashed = false;
  // The policy takes the prompt to end with this step: of sequences on their way back.
  bool ends_prompt = false;
};

// Operations of one kind that a policy adds to a step, over all layers and KV heads: the sum of its calls (kernels/ops.h).
struct PolicyOp {
  std::string_view name;      // the folder in kernels/, or a footprint's own text
  std::int64_t launches = 0;  // one per batched call
  std::int64_t bytes = 0, flops = 0;
  bool over_host_link = false;  // bytes come from host memory
};

// Tokens of an extra forward pass, each chunk over `kv_tokens` cached ones.
struct ForwardPass {
  std::int32_t new_tokens = 0, kv_tokens = 0;
};

// A sequence in a step. `attended_tokens` is the answer of charge(): the cached tokens, in the model's own KV type, that one layer and
// KV head reads for it (the mean over all; its own new token not counted).
struct SeqInStep {
  SeqState state;
  std::int32_t new_tokens = 0;
  std::int32_t attended_tokens = 0;
};

// What a policy adds to a step.
struct PolicyWork {
  std::vector<PolicyOp> ops;
  std::vector<ForwardPass> passes;
  void clear() { ops.clear(), passes.clear(); }
  [[nodiscard]] bool empty() const { return ops.empty() && passes.empty(); }
};

// What a KV policy does in serving: memory of a sequence step by step, and what a step of a batch costs. Sizes only, no tensors.
// Same questions, same answers: the pool asks before a step and the host relies on the answer after it.
class Footprint {
 public:
  virtual ~Footprint() = default;
  // `new_tokens` are appended in this step.
  virtual FootprintStep step(const SeqState& seq, std::int32_t new_tokens) = 0;
  // A step of these sequences: fills attended_tokens and appends to `work`.
  virtual void charge(std::span<SeqInStep> batch, PolicyWork& work) = 0;
  // Private pages at the end of a sequence whose prompt was computed in one go: a bound for requests that can never run.
  virtual std::int64_t pages_at_end(std::int32_t prompt_tokens, std::int32_t seen_tokens) = 0;
  // True: sequences never leave the hashed domain, every token is kept, pages are plain blocks and nothing is charged.
  [[nodiscard]] virtual bool keeps_everything() const { return false; }
  // False: blocks depend on more than the tokens before them, so they are neither found again nor left for others.
  [[nodiscard]] virtual bool shares_prefixes() const { return true; }
  // A prompt's last tokens that are computed with it although their blocks are found, because the policy reads more of them than K and V.
  [[nodiscard]] virtual std::int32_t fresh_tokens() const { return 1; }
  // True: the policy's budget is less than what always stays of a prompt of so many tokens, so that more than the budget is kept.
  [[nodiscard]] virtual bool exceeds_budget(std::int32_t /*prompt_tokens*/) const { return false; }
  // True: what a sequence without names computed does not lie in its blocks, but as the policy stores it: preempted, it leaves nothing
  // behind that it could find again.
  [[nodiscard]] virtual bool unnamed_rest() const { return false; }
  // How preempted sequences that left the hashed domain come back, unless the scheduler has none of it.
  enum class OnPreempt : std::uint8_t { kSwap, kRecomputeChunked };
  [[nodiscard]] virtual OnPreempt on_preempt() const { return OnPreempt::kSwap; }
};

// Plain paged KV (Kwon et al. 2023, arXiv:2309.06180): the policy of an experiment that names none.
class KeepAll final : public Footprint {
 public:
  FootprintStep step(const SeqState& seq, std::int32_t new_tokens) override { return {0, 0, 0, seq.seen_tokens + new_tokens, 0, false}; }
  void charge(std::span<SeqInStep> batch, PolicyWork&) override {
    for (SeqInStep& s : batch) s.attended_tokens = s.state.seen_tokens;
  }
  std::int64_t pages_at_end(std::int32_t, std::int32_t) override { return 0; }
  [[nodiscard]] bool keeps_everything() const override { return true; }
};

}  // namespace kvlab
