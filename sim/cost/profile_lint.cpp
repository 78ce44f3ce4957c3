#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>

#include "kernels/model/layer/layer.h"
#include "sim/cost/collectives.h"
#include "sim/cost/hardware_spec.h"
#include "sim/cost/profile.h"
#include "sim/cost/step_work.h"

namespace kvlab {

namespace {

using Severity = LintFinding::Severity;
using Point = SampleGrid::Point;
using WorkAt = std::function<std::optional<Work>(const Point&)>;

struct Tally {
  std::size_t count = 0;
  double worst = 0;
  std::string text;
  void add(double badness, const std::string& what) {
    if (++count == 1 || badness > worst) {
      worst = badness;
      text = what;
    }
  }
  void report(Severity severity, std::size_t of, std::vector<LintFinding>& findings) const {
    if (count == 0) return;
    findings.push_back({severity, text + (count > 1 ? fmt::format(" ({} of {} entries, this is the worst)", count, of) : "")});
  }
};

class TableLint {
 public:
  // slow: for entries hundreds of times above the roofline.
  TableLint(std::string name, const SampleGrid& grid, std::vector<std::string> axes, const HardwareSpec& hardware, double peak_flops,
            Severity slow = Severity::kError)
      : name_(std::move(name)), grid_(grid), axes_(std::move(axes)), hardware_(hardware), peak_flops_(peak_flops), slow_(slow) {}

  void run(const WorkAt& work_at, std::vector<LintFinding>& findings) {
    if (grid_.empty()) return;
    if (wrong_unit(work_at, findings)) return;  // all entries would have it
    Tally too_fast, from_cache, falls;
    const auto& samples = grid_.samples();
    for (std::size_t i = 0; i < samples.size(); ++i) {
      check_speed(samples[i], work_at, too_fast, from_cache);
      if (i > 0) check_fall(samples[i - 1], samples[i], falls);
    }
    too_fast.report(Severity::kError, samples.size(), findings);
    from_cache.report(Severity::kWarning, samples.size(), findings);
    falls.report(Severity::kWarning, samples.size(), findings);
  }

 private:
  [[nodiscard]] std::string where(const Point& at) const {
    std::string text = name_ + " at";
    for (std::size_t i = 0; i < axes_.size(); ++i) text += fmt::format(" {} {}", axes_[i], at[i]);
    return text;
  }
  [[nodiscard]] double compute_ps(const Work& w) const { return static_cast<double>(w.flops) / peak_flops_ * kPsPerSecond; }
  [[nodiscard]] double memory_ps(const Work& w) const { return static_cast<double>(w.bytes) / hardware_.memory_bytes_per_s * kPsPerSecond; }

  // By the entry with most work.
  bool wrong_unit(const WorkAt& work_at, std::vector<LintFinding>& findings) const {
    double most = 0, ratio = 1;
    const SampleGrid::Sample* largest = nullptr;
    for (const SampleGrid::Sample& s : grid_.samples()) {
      const std::optional<Work> work = work_at(s.at);
      const double roof = work ? std::max(compute_ps(*work), memory_ps(*work)) : 0;
      if (roof <= most) continue;
      most = roof;
      ratio = s.time.real() / roof;
      largest = &s;
    }
    constexpr double kShortPs = 1e6;  // launch time dominates shorter work
    const bool is_slow = ratio > kUnitFactor && most > kShortPs;
    if (largest == nullptr || (!is_slow && ratio >= 1 / kUnitFactor)) return false;
    const Severity severity = is_slow ? slow_ : Severity::kError;
    findings.push_back({severity, fmt::format("{}: {:.4g} us is {:.3g} times what the datasheet allows; is the unit right?",
                                              where(largest->at), largest->time.real() * 1e-6, ratio)});
    return severity == Severity::kError;
  }

  void check_speed(const SampleGrid::Sample& s, const WorkAt& work_at, Tally& too_fast, Tally& from_cache) const {
    const std::optional<Work> work = work_at(s.at);
    if (!work) return;
    const double limit = s.time.real() * kDatasheetMargin;
    const double by_flops = compute_ps(*work) / limit, by_bytes = memory_ps(*work) / limit;
    if (std::max(by_flops, by_bytes) <= 1) return;
    const bool is_compute = by_flops > 1;
    const double factor = (is_compute ? by_flops : by_bytes) * kDatasheetMargin;
    const std::string what = fmt::format("{}: {:.4g} us is {:.3g} times faster than the {} of {}", where(s.at), s.time.real() * 1e-6,
                                         factor, is_compute ? "peak FLOP/s" : "memory bandwidth", hardware_.name);
    const Work beyond_cache{0, std::max<std::int64_t>(0, work->bytes - hardware_.l2_bytes)};
    if (is_compute || memory_ps(beyond_cache) > limit) return too_fast.add(factor, what);
    from_cache.add(factor, fmt::format("{}; of its {:.3g} MiB up to {:.3g} may have been in the L2 cache when it was measured", what,
                                       static_cast<double>(work->bytes) / (1 << 20), static_cast<double>(hardware_.l2_bytes) / (1 << 20)));
  }

  void check_fall(const SampleGrid::Sample& before, const SampleGrid::Sample& after, Tally& falls) const {
    const std::size_t last = axes_.size() - 1;
    if (!std::equal(before.at.begin(), before.at.begin() + static_cast<std::ptrdiff_t>(last), after.at.begin())) return;
    const double fall = 1 - after.time.real() / before.time.real();
    if (fall <= kFallTolerance) return;
    falls.add(fall, fmt::format("{}: {:.4g} us, {:.0f} % less than at {} {}", where(after.at), after.time.real() * 1e-6, 100 * fall,
                                axes_[last], before.at[last]));
  }

  std::string name_;
  const SampleGrid& grid_;
  std::vector<std::string> axes_;
  const HardwareSpec& hardware_;
  double peak_flops_;
  Severity slow_;
};

// nullopt for experts: uneven tokens may read fewer than expected.
std::optional<Work> work_of(const ModelSpec& m, const Parallel& p, const ProfileOp& op, std::int64_t count) {
  if (op.covers == name_of(OpId::kMoe)) return std::nullopt;
  std::vector<OpWork> ops;
  if (op.axis == ProfileOp::Axis::kSequences) {
    head_ops(m, p, count, ops);
  } else {
    const std::vector<LayerClass> classes = layer_classes(m);
    for (std::size_t i = 0; i < classes.size(); ++i)
      if (op.is_of_class(i)) layer_ops(m, p, classes[i], count, ops);
    step_ops(m, p, count, ops);
  }
  for (const OpWork& o : ops)
    if (name_of(o.op) == op.covers) return Work{o.flops, o.bytes};
  return std::nullopt;
}

// window: tokens seen, itself included; 0: all.
Work attention_work(const AttentionWork& work, std::int64_t window, const Point& at) {
  Work all;
  if (at[0] > 0) all = work.prefill({static_cast<std::int32_t>(at[0]), static_cast<std::int32_t>(at[1])});
  if (at[2] == 0) return all;
  const std::int64_t length = window > 0 ? std::min(window, at[3]) : at[3];
  const Work decode = work.decode(at[2], at[2] * std::max<std::int64_t>(0, length - 1));  // includes the row's own token
  return {all.flops + decode.flops, all.bytes + decode.bytes};
}

// The second axis is the number of activated experts.
Work moe_work(const ModelSpec& m, const Point& at) {
  MoeExpertsShape s{
      at[0], m.hidden, m.moe_intermediate, m.experts, m.experts_per_token, 1, m.activation_bytes(), m.expert_weights.bits, m.gated_mlp};
  const std::int64_t weights = std::llround(static_cast<double>(at[1] * weights_per_expert(s)) * m.expert_weights.bits / 8);
  return {flops(s), weights + 2 * at[0] * m.hidden * m.activation_bytes()};
}

// By bytes per call; copies by the CPU link. Sorting and similar are far slower than their bytes, above all on a busy CPU.
void lint_policy(const Profile& profile, const HardwareSpec& hardware, double peak, std::vector<LintFinding>& findings) {
  for (const std::string& op : profile.policy.ops()) {
    if (profile.policy.scale(op) == PolicyTimes::Scale::kInSteps) continue;
    std::map<Point, SampleGrid::Sample> samples;
    std::map<Point, Work> work;
    for (const PolicySample& s : profile.policy.samples()) {
      if (s.op != op) continue;
      const Point at{s.bytes, s.rows, s.tokens, s.outputs};
      samples[at] = {at, s.time, s.spread_frac};
      work[at] = {s.flops, s.bytes};
    }
    HardwareSpec limits = hardware;
    if (op == name_of(OpId::kHostToDevice) || op == name_of(OpId::kDeviceToHost))
      limits.memory_bytes_per_s = hardware.pcie_bytes_per_s, limits.l2_bytes = 0;
    std::vector<SampleGrid::Sample> all;
    for (const auto& [at, sample] : samples) all.push_back(sample);
    const SampleGrid grid(4, all);
    TableLint(op, grid, {"bytes", "rows", "tokens", "outputs"}, limits, peak, Severity::kWarning)
        .run([&](const Point& at) { return std::optional(work.at(at)); }, findings);
  }
}

}  // namespace

std::vector<LintFinding> lint_profile(const Profile& profile, const ModelSpec& m, const HardwareSpec& hardware) {
  const Parallel p{profile.tp, 1, 1};
  const AttentionWork work(m, p, profiled_attention(m));
  const double peak = hardware.peak_flops(compute_dtype(m));
  std::vector<LintFinding> findings;
  for (const ProfileOp& op : profile.ops) {
    TableLint(op.name, op.times, columns_of(op.axis), hardware, peak)
        .run([&](const Point& at) { return work_of(m, p, op, at[0]); }, findings);
  }
  const auto lint_of = [&](OpFamily family) {
    return TableLint(std::string(table_of(family)), profile.*grid_of(family), columns_of(family), hardware, peak);
  };
  lint_of(OpFamily::kAttention).run([&](const Point& at) { return std::optional(attention_work(work, m.sliding_window, at)); }, findings);
  if (m.is_moe()) lint_of(OpFamily::kMoe).run([&](const Point& at) { return std::optional(moe_work(m, at)); }, findings);
  for (LintFinding found : check_collectives(profile.collectives, hardware.links())) {
    if (!profile.repeats_scatter) found.severity = Severity::kError;
    findings.push_back(std::move(found));
  }
  lint_policy(profile, hardware, peak, findings);
  return findings;
}

}  // namespace kvlab
