#include <algorithm>
#include <cmath>
#include <string>

#include "base/ceil_div.h"
#include "policies/scheduler/scheduler.h"
#include "policies/scheduler/swapped.h"

namespace kvlab {

namespace {

// Stall-free batching: decodes first, then chunks of prompts up to a token budget tau (card 1.5). Memory for a whole prompt
// is taken with its first chunk.
class Sarathi final : public Scheduler {
 public:
  explicit Sarathi(Params& p)
      : budget_tokens_(
            p.optional<std::int32_t>("budget_tokens", 512, 1, 1 << 24, "most new tokens per step, decodes included (tau, chunk size)")),
        max_num_seqs_(p.optional<std::int32_t>("max_num_seqs", 128, 1, 1 << 20, "most running requests")),
        watermark_(p.optional<double>("watermark_frac", 0.01, 0, 0.5, "share of the blocks that admission leaves free, in whole blocks")),
        one_prefill_(p.choice("version", {"sarathi_serve", "decode_maximal"}, 0,
                              "any number of chunks per step (2024), or one chunk per step with decodes (2023)") == 1),
        stages_(p.optional<std::int32_t>(
            "dynamic_stages", 0, 0, 1024,
            "steps in which the budget of a prompt falls from high to low as it proceeds; 0: budget_tokens throughout")),
        high_tokens_(p.optional<std::int32_t>("dynamic_high_tokens", 2048, 32, 1 << 24, "budget at a prompt's start, with dynamic_stages")),
        low_tokens_(p.optional<std::int32_t>("dynamic_low_tokens", 512, 32, 1 << 24, "budget at its end, with dynamic_stages")),
        span_tokens_(p.optional<std::int32_t>("dynamic_span_tokens", 8192, 1, 1 << 24,
                                              "prompt tokens over which the budget falls, with dynamic_stages")) {
    for (const char* key : {"dynamic_high_tokens", "dynamic_low_tokens", "dynamic_span_tokens"})
      if (stages_ == 0 && p.has(key)) p.fail_at(key, "'" + std::string(key) + "' means nothing without 'dynamic_stages'");
    if (stages_ > 0 && p.has("budget_tokens"))
      p.fail_at("budget_tokens",
                "'budget_tokens' means nothing beside 'dynamic_stages': give 'dynamic_high_tokens' and 'dynamic_low_tokens'");
    if (stages_ > 0 && low_tokens_ > high_tokens_) p.fail_at("dynamic_low_tokens", "'dynamic_low_tokens' is above 'dynamic_high_tokens'");
  }

  [[nodiscard]] StepBounds step_bounds(std::int32_t) const override {
    return {max_num_seqs_, stages_ > 0 ? std::max(budget_tokens_, high_tokens_) : budget_tokens_};
  }

  void plan(ReplicaView& view, StepPlan& plan) override {
    used_ = 0;
    prefills_ = 0;
    is_settled_ = true;
    run_decodes(view, plan);
    continue_prefills(view, plan);
    admit_waiting(view, plan);
  }

  // Who still waits after a step of decodes alone waits for memory, rows or budget: free memory only shrinks until somebody
  // finishes, and the decodes use the same budget again. A dynamic budget is higher for a prompt with fewer hits.
  [[nodiscard]] Horizon stable_for(const ReplicaView&) const override {
    if (!is_settled_) return Horizon::none();
    return stages_ > 0 ? Horizon::unlimited() : Horizon::whatever_is_cached();
  }

 private:
  // 0: not now. A recomputed request is prefilled up to the tokens it had; the last of them counts as a decode.
  static std::int32_t needed(const ReplicaView& view, RequestId r) { return view.info(r).in_flight_steps > 0 ? 0 : view.needed_tokens(r); }
  static bool is_decode(const ReplicaView& view, RequestId r) { return view.info(r).emitted_tokens > 0 && needed(view, r) == 1; }

  // Budget of a step for a prompt of which `computed` tokens are done: a line from high to low in equal stages, rounded to 32.
  [[nodiscard]] std::int32_t budget_at(std::int32_t computed) const {
    if (stages_ == 0) return budget_tokens_;
    const std::int32_t stage_tokens = ceil_div(span_tokens_, stages_);
    const std::int32_t stage = std::min(computed / stage_tokens, stages_ - 1);
    const double fall = stages_ == 1 ? 0 : static_cast<double>(high_tokens_ - low_tokens_) * stage / (stages_ - 1);
    return static_cast<std::int32_t>(std::lround((high_tokens_ - fall) / 32)) * 32;
  }

  [[nodiscard]] std::int64_t watermark(const ReplicaView& view) const {
    return static_cast<std::int64_t>(watermark_ * static_cast<double>(view.num_blocks()));
  }

  void run_decodes(ReplicaView& view, StepPlan& plan) {
    for (std::size_t i = 0; i < view.running().size(); ++i) {
      const RequestId r = view.running()[i];
      if (!is_decode(view, r)) continue;
      if (!allocate_or_preempt(view, plan, r, 1)) return;
      plan.add(r, 1);
      ++used_;
    }
  }

  // Room for m more tokens of r, if need be by preempting the most recently admitted. False: that was r itself.
  bool allocate_or_preempt(ReplicaView& view, StepPlan& plan, RequestId r, std::int32_t m) {
    while (!view.try_allocate(r, m)) {
      const RequestId victim = view.running().back();
      const auto planned = std::find_if(plan.entries.begin(), plan.entries.end(), [&](const PlanEntry& e) { return e.request == victim; });
      if (planned != plan.entries.end()) {
        used_ -= planned->tokens;
        plan.entries.erase(planned);
      }
      view.preempt(victim, Preemption::kRecompute);
      if (victim == r) return false;
    }
    return true;
  }

  void continue_prefills(ReplicaView& view, StepPlan& plan) {
    for (std::size_t i = 0; i < view.running().size(); ++i) {
      const RequestId r = view.running()[i];
      if (is_decode(view, r)) continue;
      if (one_prefill_ && prefills_ > 0) return;
      const std::int32_t m = std::min(needed(view, r), budget_at(view.info(r).computed_tokens) - used_);
      if (m <= 0) continue;
      if (!allocate_or_preempt(view, plan, r, m)) return;
      take(plan, r, m);
    }
  }

  void admit_waiting(ReplicaView& view, StepPlan& plan) {
    std::uint32_t position = 0;
    while (position < view.num_waiting() && static_cast<std::int32_t>(view.running().size()) < max_num_seqs_) {
      if (one_prefill_ && prefills_ > 0) return;
      const RequestId r = view.waiting(position);
      if (view.num_blocks() - view.peak_blocks(r) < watermark(view) && view.info(r).computed_tokens == 0) {
        view.reject(r, "prompt larger than the KV cache above sarathi's watermark");
        continue;
      }
      const Readiness readiness = ready_to_admit(view, r);
      if (readiness == Readiness::kNoRoom) return;
      if (readiness == Readiness::kLater) {
        is_settled_ = false;
        ++position;
        continue;
      }
      if (!admit(view, plan, r)) return;
    }
  }

  bool admit(ReplicaView& view, StepPlan& plan, RequestId r) {
    const RequestInfo& info = view.info(r);
    const bool is_fresh = info.computed_tokens == 0;  // else it came back from host memory and holds what it needs
    const std::int32_t computed = is_fresh ? view.lookup(r) : info.computed_tokens;
    const std::int32_t left = info.known_tokens() - computed;
    const std::int32_t m = std::min(left, budget_at(computed) - used_);
    if (m <= 0) return false;
    if (is_fresh && view.free_blocks() - view.blocks_needed(r, left) < watermark(view)) return false;
    if (!view.try_allocate(r, m, left - m)) return false;
    view.admit(r);
    take(plan, r, m);
    return true;
  }

  void take(StepPlan& plan, RequestId r, std::int32_t m) {
    plan.add(r, m);
    used_ += m;
    ++prefills_;
  }

  std::int32_t budget_tokens_, max_num_seqs_;
  double watermark_;
  bool one_prefill_;
  std::int32_t stages_, high_tokens_, low_tokens_, span_tokens_;
  std::int32_t used_ = 0, prefills_ = 0;
  bool is_settled_ = true;  // nobody waits for a copy
};

[[maybe_unused]] const bool registered =
    SchedulerRegistry::add<Sarathi>({"sarathi", "stall-free batching: decodes first, then prompt chunks up to a token budget",
                                     "Agrawal et al. 2024, arXiv:2403.02310 (Sarathi-Serve); 2023, arXiv:2308.16369 (decode_maximal)"});

}  // namespace

}  // namespace kvlab
