#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"
#include "policies/order/make_way.h"
#include "policies/scheduler/batching.h"
#include "policies/scheduler/layer_ranges.h"

namespace kvlab {

namespace {

// Early exits are drawn. Not modelled: accuracy, LoRA weights per loop, the exit test, copies of KV to skipped loops. KV of every loop is
// held: blocks have L layers.
class DepthWise final : public Scheduler, public DrawsBySeed {
 public:
  explicit DepthWise(Params& p)
      : layers_(model_layers(p)),
        loops_(p.required<std::int32_t>("loops", 1, kMostLayers, "times that a token passes the block of shared layers")),
        early_exit_frac_(p.optional<double>("early_exit_frac", 0, 0, 1,
                                            "share of the output tokens that leave after a loop, of those that end it; not of the last")),
        joins_any_(p.choice("join", {{"any_loop", true}, {"first_loop", false}}, true,
                            "any_loop: tokens begin while others are in later loops; first_loop: they wait until none is")),
        budget_tokens_(p.optional<std::int32_t>("budget_tokens", 8192, 1, 1 << 24,
                                                "most prompt tokens that begin in a step; a longer prompt begins alone")),
        max_num_seqs_(p.optional<std::int32_t>("max_num_seqs", 256, 1, 1 << 20, "most running requests")),
        seed_(told_setting(p).seed) {
    if (p.is_describing() || layers_ % loops_ == 0) return;
    std::string divisors;
    for (std::int32_t d = 1; d <= layers_; ++d)
      if (layers_ % d == 0) divisors += (d == 1 ? "" : ", ") + std::to_string(d);
    p.fail_at("loops", "'loops' = " + std::to_string(loops_) + " does not divide the " + std::to_string(layers_) +
                           " layers of the model into equal blocks: give one of " + divisors);
  }

  [[nodiscard]] StepBounds step_bounds(std::int32_t) const override { return {max_num_seqs_, 0}; }
  [[nodiscard]] bool plans_layers() const override { return true; }
  void on_finish(RequestId r) override { row_of(r) = {}; }

  void plan(ReplicaView& view, StepPlan& plan) override {
    StepBuilder step{view, plan};
    plan.loop_layers = layers_ / loops_;
    if (joins_any_ || !is_any_under_way(view)) {
      begin_running(step);
      if (step.num_preempted == 0 || view.running().empty()) admit_waiting(step);
    }
    for (const RequestId r : view.running())
      if (row_of(r).tokens > 0) pass(step, r);
  }

 private:
  struct Row {
    std::int32_t tokens = 0, loop = 0;
  };

  Row& row_of(RequestId r) { return slot(rows_, r); }

  bool is_any_under_way(const ReplicaView& view) {
    const auto running = view.running();
    return std::any_of(running.begin(), running.end(), [&](RequestId r) { return row_of(r).tokens > 0; });
  }

  void begin_running(StepBuilder& step) {
    each_running(step.view, [&](RequestId r) {
      if (row_of(r).tokens > 0) return true;
      const std::int32_t m = tokens_at_rest(step.view, r);
      if (m <= 0) return true;
      while (!step.view.try_hold(r, m)) {
        const RequestId victim = step.preempt_one();
        row_of(victim) = {};
        if (victim == r) return false;
      }
      row_of(r) = {m, 0};
      return true;
    });
  }

  void admit_waiting(StepBuilder& step) {
    ReplicaView& view = step.view;
    std::int32_t left = budget_tokens_;
    const auto admit = [&](RequestId r) {
      const std::int32_t m = view.info(r).known_tokens() - computed_or_cached(view, r);
      if ((m > left && left < budget_tokens_) || !view.try_hold(r, m)) return false;
      view.admit(r);
      row_of(r) = {m, 0};
      left -= m;
      return true;
    };
    const auto is_full = [&] { return left <= 0 || num_running(view) >= max_num_seqs_; };
    walk_waiting(view, is_full, [&](RequestId r) { return admit_if_ready(view, r, [&] { return admit(r); }); });
  }

  // Prompts pass all loops.
  [[nodiscard]] bool leaves_early(const Request& r, const Row& row) const {
    if (row.tokens > 1 || r.output_tokens == 0) return false;
    const Draw draw{seed_, Purpose::kLayers, r.number, static_cast<std::uint64_t>(r.computed_tokens), static_cast<std::uint64_t>(row.loop)};
    return draw.uniform() < early_exit_frac_;
  }

  void pass(StepBuilder& step, RequestId r) {
    Row& row = row_of(r);
    const std::int32_t block = layers_ / loops_;
    const bool is_last = row.loop + 1 == loops_, ends = is_last || leaves_early(step.view.info(r), row);
    if (ends && !step.view.try_allocate(r, row.tokens)) throw InternalError("depth_wise: a row lost its blocks");
    step.add(r, row.tokens);
    StepEntry& entry = step.plan.entries.back();
    entry.layer_begin = row.loop * block;
    entry.layer_end = is_last ? 0 : (row.loop + 1) * block;
    entry.exits_early = ends && !is_last;
    if (ends)
      row = {};
    else
      ++row.loop;
  }

  std::int32_t layers_, loops_;
  double early_exit_frac_;
  bool joins_any_;
  std::int32_t budget_tokens_, max_num_seqs_;
  std::uint64_t seed_;
  std::vector<Row> rows_;
};

KVLAB_REGISTER(Scheduler, DepthWise, "depth_wise", "requests at different loops of a recursive model share its block of layers",
               "Bae et al. 2024, arXiv:2410.20672 (Relaxed Recursive Transformers)");

// Up to `tokens`; above the last row: `stages`.
struct GroupRow {
  std::int32_t tokens, groups;
};
constexpr GroupRow kGroups[] = {{512, 1}, {1024, 2}, {2048, 4}, {4096, 8}};

// A cohort reads a layer's weights once. Members hold blocks from the first group on; hashes come with the last. Activations take no
// memory.
class LayeredPrefill final : public Scheduler {
 public:
  explicit LayeredPrefill(Params& p)
      : layers_(model_layers(p)),
        stages_(p.optional<std::int32_t>("stages", std::min(16, layers_), 1, kMostLayers,
                                         "layer groups of the largest cohorts; a smaller one has a divisor of it, up to 1, 2, 4 or 8. By "
                                         "default no more than the model's layers")),
        budget_tokens_(p.optional<std::int32_t>("budget_tokens", 8192, 1, 1 << 24,
                                                "most tokens of a cohort; a longer prompt is cut, and goes on in the next cohort")),
        max_num_seqs_(p.optional<std::int32_t>("max_num_seqs", 256, 1, 1 << 20, "most running requests")) {
    check_layers(p, "stages", stages_, layers_);
  }

  [[nodiscard]] StepBounds step_bounds(std::int32_t) const override { return {max_num_seqs_, budget_tokens_ + max_num_seqs_}; }
  [[nodiscard]] bool lets_overtake() const override { return true; }
  [[nodiscard]] bool plans_layers() const override { return true; }

  void plan(ReplicaView& view, StepPlan& plan) override {
    StepBuilder step{view, plan};
    is_settled_ = false;
    if (cohort_.empty()) make_way(view, {max_num_seqs_ - num_running(view)});
    run_decodes(step);
    if (cohort_.empty()) form_cohort(step);
    if (!cohort_.empty()) run_group(step);
  }

  // Waiting requests need a whole prompt's memory, or a row.
  [[nodiscard]] Horizon stable_for(const ReplicaView&) const override {
    return is_settled_ && cohort_.empty() ? Horizon::whatever_is_cached() : Horizon::none();
  }

 private:
  struct Member {
    RequestId request;
    std::int32_t tokens;
  };

  [[nodiscard]] bool is_member(RequestId r) const {
    return std::any_of(cohort_.begin(), cohort_.end(), [&](const Member& m) { return m.request == r; });
  }
  [[nodiscard]] bool decodes(const ReplicaView& view, RequestId r) const { return is_decode(view, r) && !is_member(r); }

  // The largest divisor of `stages` allowed.
  [[nodiscard]] std::int32_t groups_for(std::int64_t tokens) const {
    for (const GroupRow& row : kGroups) {
      if (tokens > row.tokens) continue;
      std::int32_t groups = std::min(row.groups, stages_);
      while (stages_ % groups != 0) --groups;
      return groups;
    }
    return stages_;
  }

  // The last decode, else the last request, or the order's choice.
  RequestId preempt_one(StepBuilder& step) {
    const std::span<const RequestId> running = step.view.running();
    const auto last = std::find_if(running.rbegin(), running.rend(), [&](RequestId r) { return decodes(step.view, r); });
    const RequestId victim = step.view.victim(last == running.rend() ? running.back() : *last);
    step.drop(victim);
    step.view.preempt(victim, Preemption::kRecompute);
    ++step.num_preempted;
    std::erase_if(cohort_, [&](const Member& m) { return m.request == victim; });
    return victim;
  }

  void run_decodes(StepBuilder& step) {
    each_running(step.view, [&](RequestId r) {
      if (!decodes(step.view, r)) return true;
      if (!allocate_or_preempt(step.view, r, 1, [&] { return preempt_one(step); })) return false;
      step.add(r, 1);
      return true;
    });
  }

  void form_cohort(StepBuilder& step) {
    left_ = budget_tokens_;
    each_running(step.view, [&](RequestId r) { return decodes(step.view, r) || continue_prompt(step, r); });
    if (step.num_preempted == 0 || step.view.running().empty()) admit_waiting(step);
    group_ = 0;
    num_groups_ = groups_for(std::int64_t{budget_tokens_} - left_);
  }

  // Returns false if it was preempted.
  bool continue_prompt(StepBuilder& step, RequestId r) {
    const std::int32_t rest = tokens_at_rest(step.view, r), m = std::min(rest, left_);
    if (m <= 0) return true;
    while (!step.view.try_hold(r, m, rest - m))
      if (preempt_one(step) == r) return false;
    join(r, m);
    return true;
  }

  void admit_waiting(StepBuilder& step) {
    ReplicaView& view = step.view;
    const auto is_full = [&] { return left_ == 0 || num_running(view) >= max_num_seqs_; };
    const auto try_admit = [&](RequestId r) { return admit_if_ready(view, r, [&] { return admit(step, r); }); };
    is_settled_ = walk_waiting(view, is_full, try_admit).is_settled();
  }

  // If only its last token is missing, it decodes at once.
  bool admit(StepBuilder& step, RequestId r) {
    ReplicaView& view = step.view;
    const std::int32_t rest = view.info(r).known_tokens() - computed_or_cached(view, r), m = std::min(rest, left_);
    const bool comes_back = rest == 1 && view.info(r).output_tokens > 0;
    if (!(comes_back ? view.try_allocate(r, 1) : view.try_hold(r, m, rest - m))) return false;
    view.admit(r);
    if (comes_back)
      step.add(r, 1);
    else
      join(r, m);
    return true;
  }

  void join(RequestId r, std::int32_t m) {
    cohort_.push_back({r, m});
    left_ -= m;
  }

  void run_group(StepBuilder& step) {
    const bool is_last = group_ + 1 == num_groups_;
    for (const Member& member : cohort_) {
      if (is_last && !step.view.try_allocate(member.request, member.tokens))
        throw InternalError("layered_prefill: a member of the cohort lost its blocks");
      step.add(member.request, member.tokens);
      StepEntry& entry = step.plan.entries.back();
      entry.layer_begin = layers_ * group_ / num_groups_;
      entry.layer_end = is_last ? 0 : layers_ * (group_ + 1) / num_groups_;
    }
    ++group_;
    if (is_last) cohort_.clear();
  }

  std::int32_t layers_, stages_, budget_tokens_, max_num_seqs_;
  std::vector<Member> cohort_;
  std::int32_t group_ = 0, num_groups_ = 1;
  std::int32_t left_ = 0;
  bool is_settled_ = false;
};

KVLAB_REGISTER(Scheduler, LayeredPrefill, "layered_prefill", "decodes pass all layers, a cohort of prompts one group of layers per step",
               "Lee et al. 2025, arXiv:2510.08055");

}  // namespace

}  // namespace kvlab
