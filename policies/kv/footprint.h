#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/registry.h"

namespace kvlab {

// Where a sequence stands before a step, in tokens.
struct SeqState {
  std::int32_t seen_tokens = 0;  // tokens whose KV was computed, kept or not
  std::int32_t kept_tokens = 0;  // tokens held per layer and KV head (the same in all of them)
  std::int32_t prompt_tokens = 0;
  bool left_hashed = false;  // it evicted before: its pages are private
};

// An operation a policy adds to a step, in the terms of kernels/<op>/<op>.h.
struct PolicyOp {
  enum class Kind : std::uint8_t { kCompact } kind = Kind::kCompact;
  std::int64_t tokens = 0;  // compact: tokens moved, per layer and KV head
};

struct FootprintStep {
  std::int32_t peak_tokens = 0;  // most tokens held while the step runs; reserved before it
  std::int32_t kept_tokens = 0;  // held once its output is processed; the rest goes back to the pool
  bool leaves_hashed = false;    // the sequence's first eviction: from here on its pages are private and unhashed, the
                                 // peak counts the old blocks and the new pages together
};

// What a KV policy does to a sequence's memory, step by step: sizes only, no tensors. Pure and deterministic, so that the
// pool can ask before a step and the host can rely on the answer after it.
class Footprint {
 public:
  virtual ~Footprint() = default;
  // new_tokens are appended in this step; completes_prompt: the last of them is the prompt's last.
  virtual FootprintStep step(const SeqState& seq, int new_tokens, bool completes_prompt) const = 0;
  // Operations of that step, appended to ops. Nothing where the step moves nothing.
  virtual void ops(const SeqState& seq, int new_tokens, bool completes_prompt, std::vector<PolicyOp>& ops) const = 0;
  // What the next decode steps do to this sequence: for `steps` of them it grows by one token each (grows), or keeps its
  // size (evict one, add one: the policy is stable), and no operation is charged. What fast-forward may rely on.
  struct Outlook {
    bool grows = true;
    std::int64_t steps = 0;
  };
  [[nodiscard]] virtual Outlook outlook(const SeqState& seq) const = 0;
  // True: sequences never leave the hashed domain; every token is kept and pages are plain blocks.
  [[nodiscard]] virtual bool keeps_everything() const { return false; }
  // How preempted sequences that left the hashed domain come back, unless the scheduler has none of it.
  enum class OnPreempt : std::uint8_t { kSwap, kRecomputeChunked };
  [[nodiscard]] virtual OnPreempt on_preempt() const { return OnPreempt::kSwap; }
};

using FootprintRegistry = Registry<Footprint>;

}  // namespace kvlab
