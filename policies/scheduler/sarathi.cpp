#include <algorithm>
#include <cmath>
#include <string>

#include "base/ceil_div.h"
#include "policies/order/make_way.h"
#include "policies/scheduler/batching.h"

namespace kvlab {

namespace {

// The first chunk takes memory for the whole prompt.
class Sarathi final : public Scheduler {
 public:
  explicit Sarathi(Params& p)
      : budget_tokens_(
            p.optional<std::int32_t>("budget_tokens", 512, 1, 1 << 24, "most new tokens per step, decodes included (tau, chunk size)")),
        max_num_seqs_(p.optional<std::int32_t>("max_num_seqs", 128, 1, 1 << 20, "most running requests")),
        watermark_(p),
        one_prefill_(p.choice("version", {{"sarathi_serve", false}, {"decode_maximal", true}}, false,
                              "any number of chunks per step (2024), or one chunk per step with decodes (2023)")),
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

  [[nodiscard]] bool lets_overtake() const override { return true; }

  void plan(ReplicaView& view, StepPlan& plan) override {
    StepBuilder step{view, plan};
    prefills_ = 0;
    make_way(view, {max_num_seqs_ - num_running(view), watermark_.blocks(view)});
    continue_prefills(step, run_decodes(step));
    admit_waiting(step);
  }

  // Nothing is freed until a request finishes. A dynamic budget is higher for a prompt with fewer hits.
  [[nodiscard]] Horizon stable_for(const ReplicaView&) const override {
    if (!is_settled_) return Horizon::none();
    return stages_ > 0 ? Horizon::unlimited() : Horizon::whatever_is_cached();
  }

 private:
  // Linear in equal stages, rounded to 32.
  [[nodiscard]] std::int32_t budget_at(std::int32_t computed) const {
    if (stages_ == 0) return budget_tokens_;
    const std::int32_t stage_tokens = ceil_div(span_tokens_, stages_);
    const std::int32_t stage = std::min(computed / stage_tokens, stages_ - 1);
    const double fall = stages_ == 1 ? 0 : static_cast<double>(high_tokens_ - low_tokens_) * stage / (stages_ - 1);
    return static_cast<std::int32_t>(std::lround((high_tokens_ - fall) / 32)) * 32;
  }

  // Returns how many of the first running requests decode.
  static std::size_t run_decodes(StepBuilder& step) {
    const std::size_t done = step.plan_decodes();
    const auto run = [&](RequestId r) {
      if (!is_decode(step.view, r)) return true;
      if (!allocate_or_preempt(step, r, 1)) return false;
      step.add(r, 1);
      return true;
    };
    each_running(step.view, run, done);
    return step.num_preempted == 0 ? done : 0;
  }

  [[nodiscard]] bool has_no_chunk() const { return one_prefill_ && prefills_ > 0; }

  void continue_prefills(StepBuilder& step, std::size_t first) {
    const auto proceed = [&](RequestId r) {
      if (is_decode(step.view, r)) return true;
      if (has_no_chunk()) return false;
      const std::int32_t m = std::min(tokens_at_rest(step.view, r), budget_at(step.view.info(r).computed_tokens) - step.tokens);
      if (m <= 0) return true;
      if (!allocate_or_preempt(step, r, m)) return false;
      take(step, r, m);
      return true;
    };
    each_running(step.view, proceed, first);
  }

  void admit_waiting(StepBuilder& step) {
    ReplicaView& view = step.view;
    const auto is_full = [&] { return num_running(view) >= max_num_seqs_ || has_no_chunk(); };
    const auto admit_or_reject = [&](RequestId r) {
      if (!watermark_.is_kept_alone(view, r) && view.info(r).computed_tokens == 0) {
        view.reject(r, "prompt larger than the KV cache above sarathi's watermark");
        return Admission::kLeft;
      }
      return admit_if_ready(view, r, [&] { return admit(step, r); });
    };
    is_settled_ = walk_waiting(view, is_full, admit_or_reject).is_settled();
  }

  bool admit(StepBuilder& step, RequestId r) {
    const Request& info = step.view.info(r);
    const bool is_fresh = info.computed_tokens == 0;  // false: swapped in, so it holds its blocks
    const std::int32_t computed = computed_or_cached(step.view, r);
    const std::int32_t left = info.known_tokens() - computed;
    const std::int32_t m = std::min(left, budget_at(computed) - step.tokens);
    if (m <= 0) return false;
    if (is_fresh && !watermark_.is_kept(step.view, step.view.blocks_needed(r, left))) return false;
    if (!step.view.try_allocate(r, m, left - m)) return false;
    step.view.admit(r);
    take(step, r, m);
    return true;
  }

  void take(StepBuilder& step, RequestId r, std::int32_t m) {
    step.add(r, m);
    ++prefills_;
  }

  std::int32_t budget_tokens_, max_num_seqs_;
  Watermark watermark_;
  bool one_prefill_;
  std::int32_t stages_, high_tokens_, low_tokens_, span_tokens_;
  std::int32_t prefills_ = 0;
  bool is_settled_ = true;
};

KVLAB_REGISTER(Scheduler, Sarathi, "sarathi", "stall-free batching: decodes first, then prompt chunks up to a token budget",
               "Agrawal et al. 2024, arXiv:2403.02310 (Sarathi-Serve); 2023, arXiv:2308.16369 (decode_maximal)");

}  // namespace

}  // namespace kvlab
