#include <algorithm>
#include <vector>

#include "policies/order/make_way.h"
#include "policies/scheduler/batching.h"

namespace kvlab {

namespace {

// On deadlock the last request that holds KV is flushed to the end of the queue; no watermark. The buffer holds begun prompts first; a
// request with a new token goes to its end.
class FastGen final : public Scheduler {
 public:
  explicit FastGen(Params& p)
      : forward_tokens_(p.optional<std::int32_t>("forward_tokens", 768, 1, 1 << 24, "tokens of a forward pass (F, max_ragged_batch_size)")),
        max_num_seqs_(
            p.optional<std::int32_t>("max_num_seqs", 512, 1, 1 << 20, "most requests in a forward pass (max_ragged_sequence_count)")) {}

  [[nodiscard]] StepBounds step_bounds(std::int32_t) const override { return {max_num_seqs_, forward_tokens_}; }

  [[nodiscard]] bool lets_overtake() const override { return true; }

  void plan(ReplicaView& view, StepPlan& plan) override {
    make_way(view, {max_num_seqs_ - num_running(view)}, [&](RequestId r) { std::erase(buffer_, r); });
    schedule(view, plan);
    while (plan.is_empty() && can_flush(view)) {
      const RequestId victim = view.victim(buffer_.back());
      view.preempt(victim, Preemption::kRecompute, QueueEnd::kBack);
      std::erase(buffer_, victim);
      schedule(view, plan);
    }
    reorder(view, plan);
  }

  void on_finish(RequestId r) override { std::erase(buffer_, r); }

  // Fast-forward uses admission order, the buffer's unless a decode was skipped.
  [[nodiscard]] Horizon stable_for(const ReplicaView& view) const override {
    const bool in_order = std::equal(buffer_.begin(), buffer_.end(), view.running().begin(), view.running().end());
    return is_settled_ && in_order ? Horizon::whatever_is_cached() : Horizon::none();
  }

 private:
  // Deadlock: no step or copy is under way.
  [[nodiscard]] bool can_flush(const ReplicaView& view) const {
    const auto is_in_flight = [&](RequestId r) { return view.info(r).in_flight_steps > 0; };
    return is_settled_ && !buffer_.empty() && std::none_of(view.running().begin(), view.running().end(), is_in_flight);
  }

  void schedule(ReplicaView& view, StepPlan& plan) {
    StepBuilder step{view, plan};
    is_settled_ = true;
    for (const RequestId r : buffer_) {
      if (!is_decode(view, r)) continue;
      if (is_full(step)) return;
      if (view.try_allocate(r, 1)) step.add(r, 1);
    }
    for (const RequestId r : buffer_) {
      const std::int32_t m = tokens_at_rest(view, r);
      if (m <= 0 || is_decode(view, r)) continue;
      if (!take_prompt(step, r, m)) return;
    }
    admit_waiting(step);
  }

  // Needs blocks for all of `remaining`.
  bool take_prompt(StepBuilder& step, RequestId r, std::int32_t remaining) const {
    const std::int32_t m = std::min(remaining, forward_tokens_ - step.tokens);
    if (m <= 0 || is_full(step) || step.view.blocks_needed(r, remaining) > step.view.free_blocks()) return false;
    if (!step.view.try_allocate(r, m)) return false;
    step.add(r, m);
    return true;
  }

  void admit_waiting(StepBuilder& step) {
    ReplicaView& view = step.view;
    const auto has_no_row = [&] { return num_running(view) >= max_num_seqs_; };
    const auto admit = [&](RequestId r) {
      return admit_if_ready(view, r, [&] {
        if (!take_prompt(step, r, view.info(r).known_tokens() - computed_or_cached(view, r))) return false;
        view.admit(r);
        return true;
      });
    };
    is_settled_ = walk_waiting(view, has_no_row, admit).is_settled();
  }

  [[nodiscard]] bool is_full(const StepBuilder& step) const {
    return step.tokens >= forward_tokens_ || step.num_requests() >= max_num_seqs_;
  }

  void reorder(const ReplicaView& view, const StepPlan& plan) {
    const auto is_begun = [&](const StepEntry& e) {
      return view.info(e.request).computed_tokens + e.tokens < view.info(e.request).known_tokens();
    };
    planned_.clear();
    for (const StepEntry& e : plan.entries) planned_.push_back(e.request);
    std::sort(planned_.begin(), planned_.end());
    reordered_.clear();
    for (const StepEntry& e : plan.entries)
      if (is_begun(e)) reordered_.push_back(e.request);
    for (const RequestId r : buffer_)
      if (!std::binary_search(planned_.begin(), planned_.end(), r)) reordered_.push_back(r);
    for (const StepEntry& e : plan.entries)
      if (!is_begun(e)) reordered_.push_back(e.request);
    buffer_.swap(reordered_);
  }

  std::int32_t forward_tokens_, max_num_seqs_;
  std::vector<RequestId> buffer_;
  std::vector<RequestId> planned_, reordered_;
  bool is_settled_ = true;
};

KVLAB_REGISTER(Scheduler, FastGen, "fastgen", "Dynamic SplitFuse: forward passes of constant size, flush on deadlock",
               "Holmes et al. 2024, arXiv:2401.08671 (DeepSpeed-FastGen)");

}  // namespace

}  // namespace kvlab
