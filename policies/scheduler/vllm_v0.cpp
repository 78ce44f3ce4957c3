#include <algorithm>
#include <deque>

#include "policies/scheduler/scheduler.h"
#include "policies/scheduler/swapped.h"

namespace kvlab {

namespace {

// vLLM's first scheduler: a step either prefills new prompts or decodes, prompts first; swapped requests come before new ones
// (card 1.3). Running requests are taken in order of arrival, victims from its end.
class VllmV0 final : public Scheduler {
 public:
  explicit VllmV0(Params& p)
      : budget_tokens_(p.optional<std::int32_t>("budget_tokens", 0, 0, 1 << 30,
                                                "most prompt tokens per step (max_num_batched_tokens); 0: max(2048, max_model_len)")),
        max_num_seqs_(p.optional<std::int32_t>("max_num_seqs", 256, 1, 1 << 20, "most running requests")),
        watermark_(p.optional<double>("watermark_frac", 0.01, 0, 0.5, "share of the blocks that admission leaves free, in whole blocks")),
        counts_padded_(p.choice("budget_counting", {"sum", "padded"}, 0,
                                "what the budget limits: the sum of the prompts, or their number times the longest (first versions)") == 1),
        preemption_(p.choice("preemption", {"recompute", "swap"}, 0,
                             "what becomes of a preempted request (vLLM swaps only requests of several sequences)") == 1
                        ? Preemption::kSwap
                        : Preemption::kRecompute) {}

  [[nodiscard]] StepBounds step_bounds(std::int32_t max_model_len) const override {
    return {max_num_seqs_, budget_tokens_ > 0 ? budget_tokens_ : std::max(2048, max_model_len)};
  }

  void plan(ReplicaView& view, StepPlan& plan) override {
    is_settled_ = true;
    admit_returned(view);
    if (swapped_.empty()) admit_prompts(view, plan);
    if (!plan.is_empty()) return;
    if (!decode(view, plan)) swap_in(view);
  }

  [[nodiscard]] Horizon stable_for(const ReplicaView& view) const override {
    // Fast-forward takes running requests in their own order, plan() in order of arrival.
    return is_settled_ && in_arrival_order(view, view.running()) ? Horizon::whatever_is_cached() : Horizon::none();
  }

  void on_finish(RequestId r) override { std::erase(swapped_, r); }

 private:
  static bool in_arrival_order(const ReplicaView& view, std::span<const RequestId> requests) {
    return std::is_sorted(requests.begin(), requests.end(),
                          [&](RequestId a, RequestId b) { return view.info(a).arrival < view.info(b).arrival; });
  }

  [[nodiscard]] std::int64_t watermark(const ReplicaView& view) const {
    return static_cast<std::int64_t>(watermark_ * static_cast<double>(view.num_blocks()));
  }

  // Those whose copy has ended run again; the next decode step has their token.
  void admit_returned(ReplicaView& view) {
    for (std::size_t i = 0; i < swapped_.size();) {
      const RequestInfo& info = view.info(swapped_[i]);
      if (info.is_swapped || info.is_parked || info.in_flight_steps > 0) {
        ++i;
        continue;
      }
      view.admit(swapped_[i]);
      swapped_.erase(swapped_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void admit_prompts(ReplicaView& view, StepPlan& plan) {
    const std::int32_t budget = budget_tokens_ > 0 ? budget_tokens_ : std::max(2048, view.max_model_len());
    std::int64_t sum = 0, longest = 0;
    std::uint32_t position = 0;
    while (position < view.num_waiting() && static_cast<std::int32_t>(view.running().size()) < max_num_seqs_) {
      const RequestId r = view.waiting(position);
      const RequestInfo& info = view.info(r);
      if (info.in_flight_steps > 0) {  // preempted with its output still to come
        is_settled_ = false;
        ++position;
        continue;
      }
      if (const char* reason = never_fits(view, r, budget)) {
        view.reject(r, reason);
        continue;
      }
      const std::int32_t m = info.known_tokens() - view.lookup(r);
      sum += m;
      longest = std::max<std::int64_t>(longest, m);
      const std::int64_t counted = counts_padded_ ? longest * static_cast<std::int64_t>(plan.entries.size() + 1) : sum;
      if (counted > budget) return;
      if (view.free_blocks() - view.blocks_needed(r, m) < watermark(view) || !view.try_allocate(r, m)) return;
      view.admit(r);
      plan.add(r, m);
    }
  }

  [[nodiscard]] const char* never_fits(const ReplicaView& view, RequestId r, std::int32_t budget) const {
    if (view.info(r).known_tokens() > budget) return "prompt longer than vllm_v0's budget_tokens";
    if (view.num_blocks() - view.peak_blocks(r) < watermark(view)) return "prompt larger than the KV cache above vllm_v0's watermark";
    return nullptr;
  }

  // Answers whether somebody was preempted.
  bool decode(ReplicaView& view, StepPlan& plan) {
    const auto arrived_before = [&](RequestId a, RequestId b) { return view.info(a).arrival < view.info(b).arrival; };
    order_.assign(view.running().begin(), view.running().end());
    if (!in_arrival_order(view, order_)) std::stable_sort(order_.begin(), order_.end(), arrived_before);
    std::size_t end = order_.size();
    for (std::size_t i = 0; i < end; ++i) {
      const RequestId r = order_[i];
      const std::int32_t m = view.needed_tokens(r);
      if (m <= 0 || view.info(r).in_flight_steps > 0) continue;
      while (i < end && !view.try_allocate(r, m)) preempt(view, order_[--end]);
      if (i < end) plan.add(r, m);
    }
    return end < order_.size();
  }

  void preempt(ReplicaView& view, RequestId victim) {
    view.preempt(victim, preemption_);
    if (view.info(victim).is_swapped) swapped_.push_front(victim);
  }

  // As vLLM: one block more than it had. Where nobody runs nothing else would make room, so it comes back as soon as it fits.
  [[nodiscard]] bool keeps_watermark(ReplicaView& view, RequestId r) const {
    const RequestInfo& info = view.info(r);
    if (view.running().empty() || !info.is_swapped || info.is_parked) return true;
    const bool takes_one = view.blocks_for(r, info.computed_tokens + 1) > view.blocks_for(r, info.computed_tokens);
    const std::int64_t needed = view.blocks_needed(r, 1) + (takes_one ? 0 : 1);
    return view.free_blocks() - needed >= watermark(view);
  }

  void swap_in(ReplicaView& view) {
    std::size_t seats = view.running().size();
    for (const RequestId r : swapped_) {
      if (seats++ >= static_cast<std::size_t>(max_num_seqs_)) return;
      if (!keeps_watermark(view, r)) return;
      const Readiness readiness = ready_to_admit(view, r);
      if (readiness == Readiness::kNoRoom) return;
      is_settled_ = false;
    }
  }

  std::int32_t budget_tokens_, max_num_seqs_;
  double watermark_;
  bool counts_padded_;
  Preemption preemption_;
  std::deque<RequestId> swapped_;  // first come, first back; in the waiting queue as well until they run again
  std::vector<RequestId> order_;   // running, in order of arrival
  bool is_settled_ = true;         // who waits does so for memory or rows that only a completion gives back
};

[[maybe_unused]] const bool registered =
    SchedulerRegistry::add<VllmV0>({"vllm_v0", "prefill-only steps before decode-only steps, watermark, recompute or swap",
                                    "Kwon et al. 2023, arXiv:2309.06180 (vLLM before V1)"});

}  // namespace

}  // namespace kvlab
