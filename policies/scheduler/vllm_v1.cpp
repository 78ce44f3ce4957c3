#include <algorithm>
#include <string>

#include "base/ceil_div.h"
#include "policies/order/make_way.h"
#include "policies/scheduler/batching.h"

namespace kvlab {

namespace {

// Large GPUs; small ones: engine_defaults.cpp.
constexpr std::int32_t kLargeGpuTokens = 8192, kLargeGpuSeqs = 1024;

// vLLM v0.19 (Kwon et al. 2023, arXiv:2309.06180; vllm/v1/core/sched/scheduler.py).
class VllmV1 final : public Scheduler {
 public:
  explicit VllmV1(Params& p)
      : budget_tokens_(
            p.optional<std::int32_t>("budget_tokens", kLargeGpuTokens, 1, 1 << 24,
                                     "most new tokens per step (max_num_batched_tokens); default 2048 below 70 GiB and on A100s")),
        max_num_seqs_(p.optional<std::int32_t>("max_num_seqs", kLargeGpuSeqs, 1, 1 << 20,
                                               "most running requests; default 256 below 70 GiB and on A100s")),
        long_prefill_tokens_(p.optional<std::int32_t>(
            "long_prefill_tokens", 0, 0, 1 << 24, "most tokens of one request per step; 0: no such limit (long_prefill_token_threshold)")),
        chunked_prefill_(p.flag("chunked_prefill", true, "whether a prompt may be cut to fit the budget")),
        reserve_full_prompt_(
            p.flag("reserve_full_prompt", true, "admit only when the whole prompt would fit (scheduler_reserve_full_isl)")),
        async_(p.flag("async_scheduling", true, "plan a step while the one before it computes")),
        largest_graph_(p.optional<std::int32_t>("largest_graph_tokens", std::min(2 * max_num_seqs_, 512), 0, 1 << 20,
                                                "largest CUDA-graph size, a multiple of 16; 0: eager mode, no padding")) {
    if (p.has("largest_graph_tokens") && largest_graph_ % 16 != 0)
      p.fail_at("largest_graph_tokens", "'largest_graph_tokens' = " + std::to_string(largest_graph_) + " is not a multiple of 16");
  }

  // Capture sizes 1, 2, 4, 8, then every 8 to 256, then every 16.
  [[nodiscard]] std::int32_t padded_tokens(std::int32_t tokens) const override {
    if (tokens > largest_graph_) return tokens;
    if (tokens <= 2) return tokens;
    if (tokens <= 4) return 4;
    const std::int32_t step = tokens <= 256 ? 8 : 16;
    const std::int32_t padded = round_up(tokens, step);
    return padded <= largest_graph_ ? padded : tokens;
  }

  [[nodiscard]] std::int32_t largest_graph_tokens() const override { return largest_graph_; }

  [[nodiscard]] std::int32_t num_graphs() const override {
    std::int32_t sizes = 0;
    for (std::int32_t tokens = 1; tokens <= largest_graph_; ++tokens) sizes += padded_tokens(tokens) == tokens ? 1 : 0;
    return sizes;
  }

  [[nodiscard]] bool lets_overtake() const override { return true; }
  [[nodiscard]] int pipeline_depth() const override { return async_ ? 2 : 1; }

  [[nodiscard]] StepBounds step_bounds(std::int32_t) const override { return {max_num_seqs_, budget_tokens_}; }

  void plan(ReplicaView& view, StepPlan& plan) override {
    StepBuilder step{view, plan};
    is_settled_ = false;
    make_way(view, {max_num_seqs_ - num_running(view)});
    schedule_running(step);
    if (step.num_preempted == 0) admit_waiting(step);
  }

  [[nodiscard]] Horizon stable_for(const ReplicaView&) const override {
    if (!is_settled_) return Horizon::none();
    // With fewer hits, a first chunk takes less and an uncut prompt can outgrow the budget.
    return reserve_full_prompt_ && chunked_prefill_ ? Horizon::whatever_is_cached() : Horizon::unlimited();
  }

 private:
  [[nodiscard]] std::int32_t left(const StepBuilder& step) const { return budget_tokens_ - step.tokens; }

  [[nodiscard]] std::int32_t share(const StepBuilder& step, std::int32_t needed, std::int32_t computed) const {
    std::int32_t m = needed;
    if (long_prefill_tokens_ > 0) m = std::min(m, long_prefill_tokens_);
    return std::min({m, left(step), step.view.max_model_len() - 1 - computed});
  }

  void schedule_running(StepBuilder& step) const {
    const ReplicaView& view = step.view;
    const auto schedule = [&](RequestId r) {
      if (left(step) <= 0) return false;
      const std::int32_t m = share(step, view.needed_tokens(r), view.info(r).computed_tokens);
      if (m <= 0) return true;
      if (!allocate_or_preempt(step, r, m)) return false;
      step.add(r, m);
      return true;
    };
    each_running(step.view, schedule, step.plan_decodes(left(step)));
  }

  void admit_waiting(StepBuilder& step) {
    ReplicaView& view = step.view;
    const auto is_full = [&] { return left(step) <= 0 || num_running(view) >= max_num_seqs_; };
    const auto admit = [&](RequestId r) { return admit_if_ready(view, r, [&] { return admit_or_reject(step, r); }); };
    const WaitingWalk walk = walk_waiting(view, is_full, admit);
    is_settled_ = walk.is_settled() || walk.end == WaitingWalk::End::kFull;
  }

  bool admit_or_reject(StepBuilder& step, RequestId r) const {
    ReplicaView& view = step.view;
    const std::int32_t computed = computed_or_cached(view, r);
    const std::int32_t needed = view.info(r).known_tokens() - computed;
    const std::int32_t m = share(step, needed, computed);
    if (!chunked_prefill_ && needed > budget_tokens_) {
      view.reject(r, "longer than budget_tokens, and chunked_prefill is off");
      return true;
    }
    if (m <= 0 || (!chunked_prefill_ && needed > left(step))) return false;
    if (reserve_full_prompt_ && view.blocks_needed(r, needed) > view.free_blocks()) return false;
    if (!view.try_allocate(r, m)) return false;
    view.admit(r);
    step.add(r, m);
    return true;
  }

  std::int32_t budget_tokens_, max_num_seqs_, long_prefill_tokens_;
  bool chunked_prefill_, reserve_full_prompt_, async_;
  std::int32_t largest_graph_;
  bool is_settled_ = false;
};

KVLAB_REGISTER(Scheduler, VllmV1, "vllm_v1", "one token budget for running and waiting requests, recompute preemption",
               "vLLM v0.19, V1 engine; Kwon et al. 2023, arXiv:2309.06180");

}  // namespace

}  // namespace kvlab
