#include <algorithm>
#include <deque>

#include "policies/scheduler/batching.h"

namespace kvlab {

namespace {

// Victims come from the end of the experiment's order.
class VllmV0 final : public Scheduler {
 public:
  explicit VllmV0(Params& p)
      : budget_tokens_(p.optional<std::int32_t>("budget_tokens", 0, 0, 1 << 30,
                                                "most prompt tokens per step (max_num_batched_tokens); 0: max(2048, max_model_len)")),
        lone_prompt_(p.flag("lone_prompt", false, "a prompt longer than budget_tokens runs alone; false: it is rejected")),
        max_num_seqs_(p.optional<std::int32_t>("max_num_seqs", 256, 1, 1 << 20, "most running requests")),
        watermark_(p),
        counts_padded_(p.choice("budget_counting", {{"sum", false}, {"padded", true}}, false,
                                "what the budget limits: the sum of the prompts, or their number times the longest (first versions)")),
        preemption_(p.choice("preemption", {{"recompute", Preemption::kRecompute}, {"swap", Preemption::kSwap}}, Preemption::kRecompute,
                             "what becomes of a preempted request (vLLM swaps only requests of several sequences)")) {}

  [[nodiscard]] StepBounds step_bounds(std::int32_t max_model_len) const override {
    return {max_num_seqs_, lone_prompt_ ? std::max(budget(max_model_len), max_model_len) : budget(max_model_len)};
  }

  void plan(ReplicaView& view, StepPlan& plan) override {
    is_settled_ = true;
    StepBuilder step{view, plan};
    admit_returned(view);
    admit_imported(step);
    if (swapped_.empty()) admit_prompts(step);
    if (!plan.is_empty()) return;
    if (!decode(view, plan)) swap_in(view);
  }

  [[nodiscard]] Horizon stable_for(const ReplicaView& view) const override {
    // Fast-forward uses admission order, plan() the experiment's.
    return is_settled_ && in_order(view, view.running()) ? Horizon::whatever_is_cached() : Horizon::none();
  }

  void on_finish(RequestId r) override { std::erase(swapped_, r); }

 private:
  static bool in_order(const ReplicaView& view, std::span<const RequestId> requests) {
    return std::is_sorted(requests.begin(), requests.end(), [&](RequestId a, RequestId b) { return view.precedes(a, b); });
  }

  void admit_returned(ReplicaView& view) {
    for (std::size_t i = 0; i < swapped_.size();) {
      const Request& info = view.info(swapped_[i]);
      if (info.is_swapped || info.is_parked || info.in_flight_steps > 0) {
        ++i;
        continue;
      }
      view.admit(swapped_[i]);
      swapped_.erase(swapped_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  // Requests from other replicas do not wait for swapped ones, which may wait for their blocks.
  void admit_imported(StepBuilder& step) {
    ReplicaView& view = step.view;
    const auto is_parked = [&](RequestId r) { return view.info(r).is_parked; };
    const auto rows = static_cast<std::int32_t>(std::count_if(swapped_.begin(), swapped_.end(), is_parked));
    for (std::uint32_t i = 0; i < view.num_waiting() && num_running(view) + rows < max_num_seqs_;) {
      const RequestId r = view.waiting(i);
      const Request& info = view.info(r);
      if (info.is_parked) {
        is_settled_ = false;
        ++i;
        continue;
      }
      if (info.is_swapped || info.computed_tokens == 0 || info.in_flight_steps > 0) return;
      if (info.output_tokens == 0 && !fits_budget(step, info.known_tokens() - info.computed_tokens)) return;
      view.admit(r);
      if (info.output_tokens == 0) add_rest(step, r);
    }
  }

  static void add_rest(StepBuilder& step, RequestId r) {
    const std::int32_t m = step.view.info(r).known_tokens() - step.view.info(r).computed_tokens;
    if (!step.view.try_allocate(r, m)) throw InternalError("vllm_v0: a prompt from a store lost its blocks");
    step.add(r, m);
  }

  [[nodiscard]] bool fits_budget(const StepBuilder& step, std::int32_t m) const {
    return step.num_requests() == 0 || step.tokens + m <= budget(step.view.max_model_len());
  }

  [[nodiscard]] std::int32_t budget(std::int32_t max_model_len) const {
    return budget_tokens_ > 0 ? budget_tokens_ : std::max(2048, max_model_len);
  }

  void admit_prompts(StepBuilder& step) {
    ReplicaView& view = step.view;
    const auto has_no_row = [&] { return num_running(view) >= max_num_seqs_; };
    longest_ = 0;
    const auto admit_or_reject = [&](RequestId r) {
      return admit_if_ready(view, r, [&] {
        const char* reason = never_fits(view, r, budget(view.max_model_len()));
        if (reason == nullptr) return admit_prompt(step, r);
        view.reject(r, reason);
        return true;
      });
    };
    is_settled_ = walk_waiting(view, has_no_row, admit_or_reject).is_settled();
  }

  bool admit_prompt(StepBuilder& step, RequestId r) {
    ReplicaView& view = step.view;
    const std::int32_t m = view.info(r).known_tokens() - view.lookup(r);
    longest_ = std::max<std::int64_t>(longest_, m);
    const std::int64_t counted = counts_padded_ ? longest_ * (step.num_requests() + 1) : std::int64_t{step.tokens} + m;
    const bool may_exceed = lone_prompt_ && step.num_requests() == 0;
    if (counted > budget(view.max_model_len()) && !may_exceed) return false;
    if (!watermark_.is_kept(view, view.blocks_needed(r, m)) || !view.try_allocate(r, m)) return false;
    view.admit(r);
    step.add(r, m);
    return true;
  }

  [[nodiscard]] const char* never_fits(const ReplicaView& view, RequestId r, std::int32_t budget) const {
    if (!lone_prompt_ && view.info(r).known_tokens() > budget) return "prompt longer than vllm_v0's budget_tokens";
    if (!watermark_.is_kept_alone(view, r)) return "prompt larger than the KV cache above vllm_v0's watermark";
    return nullptr;
  }

  bool decode(ReplicaView& view, StepPlan& plan) {
    const auto precedes = [&](RequestId a, RequestId b) { return view.precedes(a, b); };
    order_.assign(view.running().begin(), view.running().end());
    if (!in_order(view, order_)) std::stable_sort(order_.begin(), order_.end(), precedes);
    std::size_t end = order_.size();
    const auto preempt_last = [&] { return preempt(view, order_[--end]); };
    for (std::size_t i = 0; i < end; ++i) {
      const RequestId r = order_[i];
      const std::int32_t m = tokens_at_rest(view, r);
      if (m > 0 && allocate_or_preempt(view, r, m, preempt_last)) plan.add(r, m);
    }
    return end < order_.size();
  }

  RequestId preempt(ReplicaView& view, RequestId victim) {
    view.preempt(victim, preemption_);
    if (view.info(victim).is_swapped) swapped_.push_front(victim);
    return victim;
  }

  // As vLLM: one block more than it had.
  [[nodiscard]] bool keeps_watermark(ReplicaView& view, RequestId r) const {
    const Request& info = view.info(r);
    if (view.running().empty() || !info.is_swapped || info.is_parked) return true;
    const bool takes_one = view.blocks_for(r, info.computed_tokens + 1) > view.blocks_for(r, info.computed_tokens);
    const std::int64_t needed = view.blocks_needed(r, 1) + (takes_one ? 0 : 1);
    return watermark_.is_kept(view, needed);
  }

  void swap_in(ReplicaView& view) {
    std::size_t seats = view.running().size();
    for (const RequestId r : swapped_) {
      if (seats++ >= static_cast<std::size_t>(max_num_seqs_)) return;
      if (!keeps_watermark(view, r)) return;
      if (ready_to_admit(view, r, false) == Readiness::kNoRoom) return;
      is_settled_ = false;
    }
  }

  std::int32_t budget_tokens_;
  bool lone_prompt_;
  std::int32_t max_num_seqs_;
  Watermark watermark_;
  bool counts_padded_;
  Preemption preemption_;
  std::deque<RequestId> swapped_;  // FIFO; also in the waiting queue
  std::vector<RequestId> order_;
  std::int64_t longest_ = 0;  // of the step's prompts
  bool is_settled_ = true;
};

KVLAB_REGISTER(Scheduler, VllmV0, "vllm_v0", "prefill-only steps before decode-only steps, watermark, recompute or swap",
               "Kwon et al. 2023, arXiv:2309.06180 (vLLM before V1)");

}  // namespace

}  // namespace kvlab
