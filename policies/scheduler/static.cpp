#include <algorithm>
#include <vector>

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

// Jin et al. 2023, arXiv:2306.06000. Sizes are compared among the first `reorder_requests` of the queue; nothing overtakes a request that
// has waited for `window_ms`.
class S3 final : public Scheduler {
 public:
  explicit S3(Params& p)
      : max_num_seqs_(p.optional<std::int32_t>("max_num_seqs", 128, 1, 1 << 20, "most running requests")),
        reorder_(
            p.optional<std::uint32_t>("reorder_requests", 256, 1, 1 << 20, "first requests of the queue among which sizes are compared")),
        window_(p.milliseconds("window_ms", 10'000, 0, 1e9, "waiting time since arrival after which no other request may overtake")) {}

  [[nodiscard]] bool wants_contiguous_memory() const override { return true; }
  [[nodiscard]] bool uses_predictor() const override { return true; }
  [[nodiscard]] StepBounds step_bounds(std::int32_t) const override { return {max_num_seqs_, 0}; }

  void plan(ReplicaView& view, StepPlan& plan) override {
    StepBuilder step{view, plan};
    is_kept_out_ = false;
    running_.assign(view.running().begin(), view.running().end());
    for (const RequestId r : running_) {
      const std::int32_t m = tokens_at_rest(view, r);
      if (m <= 0) continue;
      if (view.info(r).computed_tokens + m > view.info(r).reserved_tokens)
        preempt(view, r);
      else if (!is_full(step))
        step.add(r, m);
    }
    admit(step);
  }

  // A request kept out by a late one may become late and overtake it.
  [[nodiscard]] Horizon stable_for(const ReplicaView& view) const override {
    if (is_kept_out_) return Horizon::none();
    Horizon horizon = Horizon::whatever_is_cached();
    for (const RequestId r : view.running())
      horizon.plans = std::min<std::int64_t>(horizon.plans, view.info(r).reserved_tokens - view.info(r).computed_tokens);
    return horizon;
  }

  void on_finish(RequestId r) override {
    if (index(r) < tokens_.size()) tokens_[index(r)] = 0;
  }

 private:
  struct Waiting {
    RequestId request{};
    std::int64_t blocks = 0;
    bool is_late = false;
  };

  [[nodiscard]] bool is_full(const StepBuilder& step) const { return step.num_requests() >= max_num_seqs_; }

  void preempt(ReplicaView& view, RequestId r) {
    tokens_[index(r)] = 2 * std::int64_t{view.info(r).reserved_tokens};
    view.preempt(r, Preemption::kRecompute);
  }

  std::int64_t blocks_for(ReplicaView& view, RequestId r) {
    std::int64_t& tokens = slot(tokens_, r);
    if (tokens == 0) tokens = std::int64_t{view.info(r).prompt_tokens} + view.predicted_output(r);
    tokens = std::min<std::int64_t>(tokens, view.max_model_len());
    return std::min(view.blocks_for(r, static_cast<std::int32_t>(tokens)), view.num_blocks());
  }

  // Late ones first, by queue; others by size.
  void sort_waiting(ReplicaView& view) {
    waiting_.clear();
    for (std::uint32_t i = 0; i < std::min(reorder_, view.num_waiting()); ++i) {
      const RequestId r = view.waiting(i);
      if (ready_to_admit(view, r) != Readiness::kReady) continue;
      waiting_.push_back({r, blocks_for(view, r), view.now() - view.info(r).arrival >= window_});
    }
    std::stable_sort(waiting_.begin(), waiting_.end(), [](const Waiting& a, const Waiting& b) {
      return a.is_late != b.is_late ? a.is_late : !a.is_late && a.blocks > b.blocks;
    });
  }

  void admit(StepBuilder& step) {
    ReplicaView& view = step.view;
    if (is_full(step) || view.num_waiting() == 0) return;
    sort_waiting(view);
    for (const Waiting& w : waiting_) {
      if (is_full(step)) return;
      const auto tokens = static_cast<std::int32_t>(w.blocks * view.block_tokens());
      if (w.blocks > view.free_blocks() || !view.try_reserve(w.request, tokens)) {
        if (!w.is_late) continue;
        is_kept_out_ = !waiting_.back().is_late;
        return;
      }
      view.admit(w.request);
      step.add(w.request, view.info(w.request).known_tokens());
    }
  }

  std::int32_t max_num_seqs_;
  std::uint32_t reorder_;
  Span window_;
  std::vector<std::int64_t> tokens_;  // by slot: reservation; 0: not predicted yet
  std::vector<Waiting> waiting_;
  std::vector<RequestId> running_;
  bool is_kept_out_ = false;
};

KVLAB_REGISTER(Scheduler, S3, "s3", "memory reserved for the predicted output, decreasing first fit; twice as much when it is not enough",
               "Jin et al. 2023, arXiv:2306.06000; needs 'predictor'");

}  // namespace

}  // namespace kvlab
