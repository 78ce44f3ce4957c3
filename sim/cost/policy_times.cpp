#include "sim/cost/policy_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/params.h"
#include "sim/cost/measured_table.h"

namespace kvlab {

namespace {

const std::vector<std::string> kScales{"linear", "log", "in_steps"};  // of PolicyTimes::Scale

// Between (or beyond) two points; straight over x, or over log x to log y.
double along(double x, double x0, double y0, double x1, double y1, PolicyTimes::Scale scale) {
  if (scale != PolicyTimes::Scale::kLog) return y0 + (y1 - y0) * ((x - x0) / (x1 - x0));
  return y0 * std::exp(std::log(y1 / y0) * (std::log(x / x0) / std::log(x1 / x0)));
}

using Vector3 = std::array<double, 3>;

// Solves a x = b for the unknowns in `used`, the others 0; by elimination. Nothing where the matrix is singular.
std::optional<Vector3> solve(std::array<Vector3, 3> a, Vector3 b, unsigned used) {
  std::vector<std::size_t> of;
  for (std::size_t i = 0; i < 3; ++i)
    if ((used >> i & 1U) != 0) of.push_back(i);
  for (std::size_t k = 0; k < of.size(); ++k) {
    const std::size_t p = of[k];
    if (a[p][p] <= 1e-12) return std::nullopt;
    for (std::size_t j = k + 1; j < of.size(); ++j) {
      const double f = a[of[j]][p] / a[p][p];
      for (const std::size_t c : of) a[of[j]][c] -= f * a[p][c];
      b[of[j]] -= f * b[p];
    }
  }
  Vector3 x{};
  for (std::size_t k = of.size(); k-- > 0;) {
    x[of[k]] = b[of[k]];
    for (std::size_t j = k + 1; j < of.size(); ++j) x[of[k]] -= a[of[k]][of[j]] * x[of[j]];
    x[of[k]] /= a[of[k]][of[k]];
  }
  return x;
}

}  // namespace

// Of three unknowns every choice is tried; the best that has none below zero stays.
PolicyTimes::Plane PolicyTimes::plane_through(std::span<const PolicySample> samples) {
  Plane plane;
  for (const PolicySample& s : samples) {
    plane.most_bytes = std::max(plane.most_bytes, static_cast<double>(s.bytes));
    plane.most_flops = std::max(plane.most_flops, static_cast<double>(s.flops));
  }
  const Vector3 unit{1, 1 / plane.most_bytes, 1 / std::max(1.0, plane.most_flops)};
  const auto row_of = [&](const PolicySample& s) {
    const auto time = static_cast<double>(s.time);
    return Vector3{unit[0] / time, unit[1] * static_cast<double>(s.bytes) / time, unit[2] * static_cast<double>(s.flops) / time};
  };
  std::array<Vector3, 3> normal{};
  Vector3 right{};
  for (const PolicySample& s : samples) {
    const Vector3 row = row_of(s);
    for (std::size_t i = 0; i < 3; ++i) {
      right[i] += row[i];
      for (std::size_t j = 0; j < 3; ++j) normal[i][j] += row[i] * row[j];
    }
  }
  const double size = normal[0][0] + normal[1][1] + normal[2][2];  // rows are 1 / time: far from 1
  for (std::size_t i = 0; i < 3; ++i) {
    right[i] /= size;
    for (double& x : normal[i]) x /= size;
  }
  double least = std::numeric_limits<double>::infinity();
  for (unsigned used = 1; used < 8; ++used) {
    const auto x = solve(normal, right, used);
    if (!x || std::any_of(x->begin(), x->end(), [](double c) { return c < 0; })) continue;
    double error = 0;
    for (const PolicySample& s : samples) {
      const Vector3 row = row_of(s);
      const double off = row[0] * (*x)[0] + row[1] * (*x)[1] + row[2] * (*x)[2] - 1;
      error += off * off;
    }
    if (error >= least) continue;
    least = error;
    plane.launch = (*x)[0] * unit[0], plane.byte = (*x)[1] * unit[1], plane.flop = (*x)[2] * unit[2];
  }
  return plane;
}

PolicyTimes::PolicyTimes(std::vector<PolicySample> samples, const std::map<std::string, Scale>& scales) : samples_(std::move(samples)) {
  const auto key = [](const PolicySample& s) { return std::tie(s.op, s.bytes, s.rows, s.tokens, s.outputs); };
  std::sort(samples_.begin(), samples_.end(), [&](const PolicySample& a, const PolicySample& b) { return key(a) < key(b); });
  for (std::size_t i = 0; i < samples_.size();) {
    double sum = 0;
    std::size_t end = i;
    for (; end < samples_.size() && samples_[end].op == samples_[i].op && samples_[end].bytes == samples_[i].bytes; ++end)
      sum += static_cast<double>(samples_[end].time);
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
      curve.plane = plane_through(std::span(own.first, own.second));
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
  if (c.plane) {
    const bool is_between = bytes <= c.plane->most_bytes && flops <= c.plane->most_flops;
    return SampleGrid::Value{c.plane->launch + c.plane->byte * bytes + c.plane->flop * flops,
                             is_between ? Footing::kInterpolated : Footing::kExtrapolated};
  }
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
    const auto count = [&](const char* column) { return csv.count(row, csv.column(column)); };
    PolicySample s{csv.text(row, csv.column("op")), count("rows"), count("tokens"), count("outputs"), count("bytes"), count("flops")};
    if (s.bytes == 0) throw InputError(csv.place(row) + ": 'bytes' is 0: a call that moves nothing has no place in the table");
    s.time = csv.time(row, csv.column("time_ns"), static_cast<double>(kPsPerNs));
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
  std::string text = "op,rows,tokens,outputs,bytes,flops,time_ns,spread_frac\n", scales;
  for (const PolicySample& s : times.samples()) {
    text += fmt::format("{},{},{},{},{},{},{}.{:03},{}\n", s.op, s.rows, s.tokens, s.outputs, s.bytes, s.flops, s.time / kPsPerNs,
                        s.time % kPsPerNs, number_text(s.spread_frac));
  }
  for (const std::string& op : times.ops()) scales += op + ": " + kScales[static_cast<std::size_t>(times.scale(op))] + "\n";
  for (const auto& [name, content] : {std::pair{"policy.csv", text}, std::pair{"policy.yaml", scales}}) {
    std::ofstream stream(folder + "/" + name, std::ios::binary);
    stream << content;
    stream.close();
    if (!stream) throw InputError(folder + "/" + name + ": cannot be written");
  }
}

}  // namespace kvlab
