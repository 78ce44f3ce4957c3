#include <algorithm>

#include "policies/scheduler/scheduler.h"

namespace kvlab {

namespace {

// Request-level batching as in FasterTransformer: a batch is formed while nothing runs, its prompts are padded to the longest
// of them, and it keeps its number of rows until its last member is done (card 1.1).
class Static final : public Scheduler {
 public:
  explicit Static(Params& p)
      : max_batch_(p.optional<std::int32_t>("max_batch_seqs", 32, 1, 1 << 20, "most requests of a batch (b_max)")),
        max_len_(
            p.optional<std::int32_t>("max_len_tokens", 0, 0, 1 << 30,
                                     "tokens of contiguous KV memory reserved for each request; 0: max_model_len, at most the memory")),
        window_(p.milliseconds("window_ms", 0, 0, 1e6, "longest time the oldest request waits for its batch to fill")) {}

  [[nodiscard]] bool wants_contiguous_memory() const override { return true; }
  [[nodiscard]] StepBounds step_bounds(std::int32_t) const override { return {max_batch_, 0}; }

  void plan(ReplicaView& view, StepPlan& plan) override {
    window_ends_ = kNever;
    if (view.running().empty()) {
      form_batch(view, plan);
    } else {
      decode(view, plan);
    }
  }

  // Nobody joins a batch, and its memory is reserved: it goes on until a member finishes.
  [[nodiscard]] Horizon stable_for(const ReplicaView&) const override { return Horizon::whatever_is_cached(); }

  [[nodiscard]] Time wants_plan_at() const override { return window_ends_; }

 private:
  void form_batch(ReplicaView& view, StepPlan& plan) {
    const std::int64_t memory_tokens = view.num_blocks() * view.block_tokens();
    const std::int64_t reserved = std::min<std::int64_t>(max_len_ > 0 ? max_len_ : view.max_model_len(), memory_tokens);
    if (max_len_ > 0) reject_too_long(view, reserved);
    if (view.num_waiting() == 0) return;
    const std::int64_t most = std::min<std::int64_t>(max_batch_, memory_tokens / reserved);
    const Time due = view.info(view.waiting(0)).arrival + window_;
    if (view.num_waiting() < most && view.now() < due) {
      window_ends_ = due;
      return;
    }
    std::int32_t longest = 0;
    while (view.num_waiting() > 0 && static_cast<std::int64_t>(plan.entries.size()) < most) {
      const RequestId r = view.waiting(0);
      if (!view.try_reserve(r, static_cast<std::int32_t>(reserved))) break;
      view.admit(r);
      plan.add(r, view.info(r).prompt_tokens);
      longest = std::max(longest, view.info(r).prompt_tokens);
    }
    for (PlanEntry& entry : plan.entries) entry.padded_tokens = longest;
    rows_ = plan.entries.size();
  }

  // The last token emitted is never stored.
  static void reject_too_long(ReplicaView& view, std::int64_t reserved) {
    for (std::uint32_t i = 0; i < view.num_waiting();) {
      const RequestInfo& info = view.info(view.waiting(i));
      if (info.prompt_tokens + info.output_limit - 1 > reserved) {
        view.reject(view.waiting(i), "longer than the reservation of static batching (max_len_tokens)");
      } else {
        ++i;
      }
    }
  }

  // Finished members keep their row of the linear layers; FasterTransformer's attention kernel returns at once for them
  // (decoder_masked_multihead_attention_template.hpp, `params.finished`), so they read no KV.
  void decode(ReplicaView& view, StepPlan& plan) {
    for (const RequestId r : view.running()) {
      const std::int32_t m = view.needed_tokens(r);
      if (m > 0 && view.info(r).in_flight_steps == 0) plan.add(r, m);
    }
    if (plan.entries.empty()) return;
    plan.idle_rows = static_cast<std::int32_t>(rows_ - view.running().size());
  }

  std::int32_t max_batch_, max_len_;
  Span window_;
  Time window_ends_ = kNever;
  std::size_t rows_ = 0;  // of the batch in progress, finished members included
};

[[maybe_unused]] const bool registered = SchedulerRegistry::add<Static>(
    {"static", "request-level batches with padded prompts, run until all members are done", "FasterTransformer (NVIDIA, 2021)"});

}  // namespace

}  // namespace kvlab
