#include <algorithm>

#include "policies/scheduler/batching.h"

namespace kvlab {

namespace {

class Static final : public Scheduler {
 public:
  explicit Static(Params& p)
      : max_batch_(p.optional<std::int32_t>("max_batch_seqs", 32, 1, 1 << 20, "most requests of a batch (b_max)")),
        max_len_(
            p.optional<std::int32_t>("max_len_tokens", 0, 0, 1 << 30,
                                     "tokens of contiguous KV memory reserved for each request; 0: max_model_len, at most the memory")),
        window_(p.milliseconds("window_ms", 0, 0, 1e6, "longest time the oldest request waits for its batch to fill")) {}

  [[nodiscard]] bool wants_contiguous_memory() const override { return true; }
  [[nodiscard]] bool pads_batches() const override { return true; }
  [[nodiscard]] StepBounds step_bounds(std::int32_t) const override { return {max_batch_, 0}; }

  void plan(ReplicaView& view, StepPlan& plan) override {
    window_ends_ = kNever;
    if (view.running().empty())
      form_batch(view, plan);
    else
      decode(view, plan);
  }

  [[nodiscard]] Horizon stable_for(const ReplicaView&) const override { return Horizon::whatever_is_cached(); }

  [[nodiscard]] Time wants_plan_at() const override { return window_ends_; }

 private:
  void form_batch(ReplicaView& view, StepPlan& plan) {
    const std::int64_t memory_tokens = view.num_blocks() * view.block_tokens();
    const std::int64_t reserved = std::min<std::int64_t>(max_len_ > 0 ? max_len_ : view.max_model_len(), memory_tokens);
    if (max_len_ > 0) reject_too_long(view, reserved);
    if (view.num_waiting() == 0) return;
    const std::int64_t most = std::min<std::int64_t>(max_batch_, memory_tokens / reserved);
    if (view.num_waiting() < most) {
      const Time due = oldest_arrival(view) + window_;
      if (view.now() < due) {
        window_ends_ = due;
        return;
      }
    }
    StepBuilder step{view, plan};
    const auto is_full = [&] { return step.num_requests() >= most; };
    walk_waiting(view, is_full, [&](RequestId r) { return admit_reserved(step, r, static_cast<std::int32_t>(reserved)); });
    std::int32_t longest = 0;
    for (const StepEntry& entry : plan.entries) longest = std::max(longest, entry.tokens);
    for (StepEntry& entry : plan.entries) entry.padded_tokens = longest;
    rows_ = plan.entries.size();
  }

  static Time oldest_arrival(const ReplicaView& view) {
    Time oldest = kNever;
    for (std::uint32_t i = 0; i < view.num_waiting(); ++i) oldest = std::min(oldest, view.info(view.waiting(i)).arrival);
    return oldest;
  }

  // The last token emitted is never stored.
  static void reject_too_long(ReplicaView& view, std::int64_t reserved) {
    const auto reject_if_too_long = [&](RequestId r) {
      const Request& info = view.info(r);
      if (info.prompt_tokens + info.output_limit - 1 <= reserved) return Admission::kLater;
      view.reject(r, "longer than the reservation of static batching (max_len_tokens)");
      return Admission::kLeft;
    };
    walk_waiting(
        view, [] { return false; }, reject_if_too_long);
  }

  // Finished members keep their row but read no KV (FasterTransformer, decoder_masked_multihead_attention_template.hpp, `params.finished`).
  void decode(ReplicaView& view, StepPlan& plan) {
    for (const RequestId r : view.running())
      if (const std::int32_t m = tokens_at_rest(view, r); m > 0) plan.add(r, m);
    if (plan.entries.empty()) return;
    plan.idle_rows = static_cast<std::int32_t>(rows_ - view.running().size());
  }

  std::int32_t max_batch_, max_len_;
  Span window_;
  Time window_ends_ = kNever;
  std::size_t rows_ = 0;  // finished members included
};

KVLAB_REGISTER(Scheduler, Static, "static", "request-level batches with padded prompts, run until all members are done",
               "FasterTransformer (NVIDIA, 2021)");

}  // namespace

}  // namespace kvlab
