#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <vector>

#include "base/config/params.h"
#include "base/read_file.h"
#include "base/text.h"
#include "sim/cost/operations.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

using Vector3 = std::array<double, 3>;

double dot(const Vector3& a, const Vector3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

// Minimizes sum |row . x - 1|^2 over unknowns in `used`, others 0, by normal equations. nullopt if singular.
std::optional<Vector3> least_squares(std::span<const Vector3> rows, unsigned used) {
  std::vector<std::size_t> of;
  for (std::size_t i = 0; i < 3; ++i)
    if ((used >> i & 1U) != 0) of.push_back(i);
  std::array<Vector3, 3> a{};
  Vector3 b{}, x{};
  for (const Vector3& row : rows)
    for (const std::size_t i : of) {
      b[i] += row[i];
      for (const std::size_t j : of) a[i][j] += row[i] * row[j];
    }
  constexpr double kSingular = 1e-12;
  const Vector3 size{a[0][0], a[1][1], a[2][2]};
  for (std::size_t k = 0; k < of.size(); ++k) {
    const std::size_t p = of[k];
    if (a[p][p] <= kSingular * size[p]) return std::nullopt;
    for (std::size_t j = k + 1; j < of.size(); ++j) {
      const double f = a[of[j]][p] / a[p][p];
      for (const std::size_t c : of) a[of[j]][c] -= f * a[p][c];
      b[of[j]] -= f * b[p];
    }
  }
  for (std::size_t k = of.size(); k-- > 0;) {
    const std::size_t p = of[k];
    x[p] = (b[p] - dot(a[p], x)) / a[p][p];  // unknowns before p are still 0
  }
  return x;
}

const std::vector<std::string> kScales{"linear", "log", "in_steps"};  // by PolicyTimes::Scale

double along(double x, double x0, double y0, double x1, double y1, PolicyTimes::Scale scale) {
  if (scale != PolicyTimes::Scale::kLog) return y0 + (y1 - y0) * ((x - x0) / (x1 - x0));
  return y0 * std::exp(std::log(y1 / y0) * (std::log(x / x0) / std::log(x1 / x0)));
}

}  // namespace

WorkPrice::WorkPrice(std::span<const PolicySample> samples) {
  for (const PolicySample& s : samples) {
    most_bytes_ = std::max(most_bytes_, static_cast<double>(s.bytes));
    most_flops_ = std::max(most_flops_, static_cast<double>(s.flops));
  }
  std::vector<Vector3> rows;  // of relative error: row . ps = 1
  for (const PolicySample& s : samples) {
    rows.push_back(work(static_cast<double>(s.bytes), static_cast<double>(s.flops)));
    for (double& w : rows.back()) w /= s.time.real();
  }
  double least = std::numeric_limits<double>::infinity();
  constexpr unsigned kLaunch = 1, kByte = 2, kFlop = 4;
  constexpr double kBetter = 1e-9;  // ties: a single sample scales with bytes
  for (const unsigned used : {kByte, kFlop, kLaunch, kByte | kFlop, kByte | kLaunch, kFlop | kLaunch, kByte | kFlop | kLaunch}) {
    const std::optional<Vector3> x = least_squares(rows, used);
    if (!x || std::any_of(x->begin(), x->end(), [](double ps) { return ps < 0; })) continue;
    double error = 0;
    for (const Vector3& row : rows) error += (dot(row, *x) - 1) * (dot(row, *x) - 1);
    if (error < least - kBetter) least = error, ps_ = *x;
  }
}

SampleGrid::Value WorkPrice::at(double bytes, double flops) const {
  const bool is_between = bytes <= most_bytes_ && flops <= most_flops_;
  return {dot(work(bytes, flops), ps_), is_between ? Footing::kInterpolated : Footing::kExtrapolated};
}

PolicyTimes::PolicyTimes(std::vector<PolicySample> samples, const std::map<std::string, Scale>& scales) : samples_(std::move(samples)) {
  const auto key = [](const PolicySample& s) { return std::tie(s.op, s.bytes, s.rows, s.tokens, s.outputs); };
  std::sort(samples_.begin(), samples_.end(), [&](const PolicySample& a, const PolicySample& b) { return key(a) < key(b); });
  for (std::size_t i = 0; i < samples_.size();) {
    double sum = 0;
    std::size_t end = i;
    for (; end < samples_.size() && samples_[end].op == samples_[i].op && samples_[end].bytes == samples_[i].bytes; ++end)
      sum += samples_[end].time.real();
    Curve& curve = curves_[samples_[i].op];
    curve.bytes.push_back(static_cast<double>(samples_[i].bytes));
    curve.ps.push_back(sum / static_cast<double>(end - i));
    i = end;
  }
  for (auto& [op, curve] : curves_) {
    const auto at = scales.find(op);
    if (at != scales.end()) curve.scale = at->second;
    if (curve.scale != Scale::kInSteps) continue;
    const auto own =
        std::equal_range(samples_.begin(), samples_.end(), PolicySample{op}, [](const auto& a, const auto& b) { return a.op < b.op; });
    if (std::any_of(own.first, own.second, [](const PolicySample& s) { return s.flops > 0; }))
      curve.work = WorkPrice(std::span(own.first, own.second));
  }
}

std::vector<std::string> PolicyTimes::ops() const {
  std::vector<std::string> names;
  for (const auto& [op, curve] : curves_) names.push_back(op);
  return names;
}

std::optional<SampleGrid::Value> PolicyTimes::at(std::string_view op, double bytes, double flops) const {
  const auto found = curves_.find(op);
  if (found == curves_.end()) return std::nullopt;
  const Curve& c = found->second;
  if (c.work) return c.work->at(bytes, flops);
  const auto above = static_cast<std::size_t>(std::lower_bound(c.bytes.begin(), c.bytes.end(), bytes) - c.bytes.begin());
  if (above < c.bytes.size() && c.bytes[above] == bytes) return SampleGrid::Value{c.ps[above], Footing::kInside};
  if (above == 0 || c.bytes.size() == 1) return SampleGrid::Value{above == 0 ? c.ps.front() : c.ps.back(), Footing::kExtrapolated};
  const bool is_beyond = above == c.bytes.size();
  const std::size_t high = is_beyond ? above - 1 : above, low = high - 1;
  const double ps = along(bytes, c.bytes[low], c.ps[low], c.bytes[high], c.ps[high], c.scale);
  if (!is_beyond) return SampleGrid::Value{ps, Footing::kInterpolated};
  return SampleGrid::Value{std::max(ps, c.ps[high]), Footing::kExtrapolated};
}

PolicyTimes read_policy_times(const std::string& folder) {
  const std::string file = folder + "/policy.csv";
  if (std::error_code error; !std::filesystem::exists(file, error)) return {};
  const MeasuredTable csv(file);
  std::vector<PolicySample> samples;
  for (std::size_t row = 0; row < csv.num_rows(); ++row) {
    const auto count = [&](std::size_t column) { return csv.count(row, csv.column(columns_of(OpFamily::kPolicy)[column])); };
    PolicySample s{csv.text(row, csv.column("op")), count(0), count(1), count(2), count(3), count(4)};
    if (s.bytes == 0) throw InputError(csv.place(row) + ": 'bytes' is 0: a call that moves nothing has no place in the table");
    s.time = csv.time(row, csv.column("time_ns"), TimeUnit::kNs);
    s.spread_frac = csv.real(row, csv.column("spread_frac"));
    samples.push_back(std::move(s));
  }
  std::map<std::string, PolicyTimes::Scale> scales;
  Params p(load_config(folder + "/policy.yaml"), std::make_shared<Choices>(), "policy times '" + folder + "'");
  for (const std::string& op : p.keys()) {
    scales[op] = static_cast<PolicyTimes::Scale>(
        p.choice(op, kScales, 0, "straight lines over bytes, or over the logarithms, or over bytes and timed in steps of a recipe"));
  }
  return {std::move(samples), scales};
}

void write_policy_times(const PolicyTimes& times, const std::string& folder) {
  if (times.empty()) return;
  std::string text = "op," + join(columns_of(OpFamily::kPolicy), ",") + ",time_ns,spread_frac\n", scales;
  for (const PolicySample& s : times.samples()) {
    text += fmt::format("{},{},{},{},{},{},{},{}\n", s.op, s.rows, s.tokens, s.outputs, s.bytes, s.flops, ns_text(s.time),
                        number_text(s.spread_frac));
  }
  for (const std::string& op : times.ops()) scales += op + ": " + kScales[static_cast<std::size_t>(times.scale(op))] + "\n";
  write_file(folder + "/policy.csv", text);
  write_file(folder + "/policy.yaml", scales);
}

}  // namespace kvlab
