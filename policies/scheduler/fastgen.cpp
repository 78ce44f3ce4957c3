#include <algorithm>
#include <vector>

#include "policies/scheduler/scheduler.h"
#include "policies/scheduler/swapped.h"

namespace kvlab {

namespace {

// Dynamic SplitFuse: every forward pass is filled up to the same number of tokens, decodes first, then prompts in order, the
// last of them cut to fit (card 1.6). No watermark: when nothing at all can be scheduled, the last request that holds KV
// is flushed and starts over from the end of the queue. Holders stand in a buffer: a begun prompt in front, and whoever is given a
// token goes to its end.
class FastGen final : public Scheduler {
 public:
  explicit FastGen(Params& p)
      : forward_tokens_(p.optional<std::int32_t>("forward_tokens", 768, 1, 1 << 24, "tokens of a forward pass (F, max_ragged_batch_size)")),
        max_num_seqs_(
            p.optional<std::int32_t>("max_num_seqs", 512, 1, 1 << 20, "most requests in a forward pass (max_ragged_sequence_count)")) {}

  [[nodiscard]] StepBounds step_bounds(std::int32_t) const override { return {max_num_seqs_, forward_tokens_}; }

  void plan(ReplicaView& view, StepPlan& plan) override {
    schedule(view, plan);
    while (plan.is_empty() && can_flush(view)) {
      view.preempt(buffer_.back(), Preemption::kRecompute, QueueEnd::kBack);
      buffer_.pop_back();
      schedule(view, plan);
    }
    reorder(view, plan);
  }

  void on_finish(RequestId r) override { std::erase(buffer_, r); }

  // The head still waits for blocks, a row or room in the pass; decodes take the same share of the pass every time.
  // Fast-forward takes running requests in the order of their admission, which is the buffer's unless a decode was passed over.
  [[nodiscard]] Horizon stable_for(const ReplicaView& view) const override {
    const bool in_order = std::equal(buffer_.begin(), buffer_.end(), view.running().begin(), view.running().end());
    return is_settled_ && in_order ? Horizon::whatever_is_cached() : Horizon::none();
  }

 private:
  // A deadlock, not a wait for a step or a copy under way.
  [[nodiscard]] bool can_flush(const ReplicaView& view) const {
    const auto is_in_flight = [&](RequestId r) { return view.info(r).in_flight_steps > 0; };
    return is_settled_ && !buffer_.empty() && std::none_of(view.running().begin(), view.running().end(), is_in_flight);
  }

  static std::int32_t needed(const ReplicaView& view, RequestId r) { return view.info(r).in_flight_steps > 0 ? 0 : view.needed_tokens(r); }
  static bool is_decode(const ReplicaView& view, RequestId r) { return view.info(r).emitted_tokens > 0 && needed(view, r) == 1; }

  void schedule(ReplicaView& view, StepPlan& plan) {
    left_ = forward_tokens_;
    is_settled_ = true;
    for (const RequestId r : buffer_) {
      if (!is_decode(view, r)) continue;
      if (left_ <= 0 || is_full(plan)) return;
      if (view.try_allocate(r, 1)) add(plan, r, 1);
    }
    for (const RequestId r : buffer_) {  // begun prompts stand before those that wait
      const std::int32_t m = needed(view, r);
      if (m <= 0 || is_decode(view, r)) continue;
      if (!take_prompt(view, plan, r, m)) return;
    }
    admit_waiting(view, plan);
  }

  // As much of a prompt as the pass has room for, provided there are blocks for all `remaining` tokens of it.
  bool take_prompt(ReplicaView& view, StepPlan& plan, RequestId r, std::int32_t remaining) {
    const std::int32_t m = std::min(remaining, left_);
    if (m <= 0 || is_full(plan) || view.blocks_needed(r, remaining) > view.free_blocks()) return false;
    if (!view.try_allocate(r, m)) return false;
    add(plan, r, m);
    return true;
  }

  void admit_waiting(ReplicaView& view, StepPlan& plan) {
    std::uint32_t position = 0;
    while (position < view.num_waiting() && static_cast<std::int32_t>(view.running().size()) < max_num_seqs_) {
      const RequestId r = view.waiting(position);
      const Readiness readiness = ready_to_admit(view, r);
      if (readiness == Readiness::kNoRoom) return;
      if (readiness == Readiness::kLater) {
        is_settled_ = false;
        ++position;
        continue;
      }
      const RequestInfo& info = view.info(r);
      const std::int32_t computed = info.computed_tokens > 0 ? info.computed_tokens : view.lookup(r);
      if (!take_prompt(view, plan, r, info.known_tokens() - computed)) return;
      view.admit(r);
    }
  }

  [[nodiscard]] bool is_full(const StepPlan& plan) const { return static_cast<std::int32_t>(plan.entries.size()) >= max_num_seqs_; }

  void add(StepPlan& plan, RequestId r, std::int32_t m) {
    plan.add(r, m);
    left_ -= m;
  }

  // Once a step is planned: those with more of their prompt to come in front, those who get a token behind all that stay.
  void reorder(const ReplicaView& view, const StepPlan& plan) {
    const auto is_begun = [&](const PlanEntry& e) {
      return view.info(e.request).computed_tokens + e.tokens < view.info(e.request).known_tokens();
    };
    planned_.clear();
    for (const PlanEntry& e : plan.entries) planned_.push_back(e.request);
    std::sort(planned_.begin(), planned_.end());
    reordered_.clear();
    for (const PlanEntry& e : plan.entries)
      if (is_begun(e)) reordered_.push_back(e.request);
    for (const RequestId r : buffer_)
      if (!std::binary_search(planned_.begin(), planned_.end(), r)) reordered_.push_back(r);
    for (const PlanEntry& e : plan.entries)
      if (!is_begun(e)) reordered_.push_back(e.request);
    buffer_.swap(reordered_);
  }

  std::int32_t forward_tokens_, max_num_seqs_;
  std::vector<RequestId> buffer_;               // of the running requests, in the order of card 1.6
  std::vector<RequestId> planned_, reordered_;  // while it is reordered
  std::int32_t left_ = 0;                       // of the pass being filled
  bool is_settled_ = true;                      // nobody waits for a copy or for its own output
};

[[maybe_unused]] const bool registered =
    SchedulerRegistry::add<FastGen>({"fastgen", "Dynamic SplitFuse: forward passes of constant size, flush on deadlock",
                                     "Holmes et al. 2024, arXiv:2401.08671 (DeepSpeed-FastGen)"});

}  // namespace

}  // namespace kvlab
