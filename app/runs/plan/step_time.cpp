#include "app/runs/plan/step_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"

namespace kvlab {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, kCostParts + 1> kParts = {"linear", "attention", "head", "collectives", "policy", "experts", "host"};
constexpr std::array<const char*, kBases> kBasisNames = {"measured", "extrapolated", "roofline", "datasheet"};

double six_decimals(double share) { return std::round(share * 1e6) / 1e6; }
bool shows(double share) { return share >= 0.005; }

struct PartShares {
  std::string name;
  std::array<double, kBases> sums{};  // over runs
  double least = 1, most = 0;

  void add(const Json& run) {
    double all = 0;
    for (std::size_t b = 0; b < kBases; ++b) {
      const double share = run.contains(name) ? run[name].value(kBasisNames[b], 0.0) : 0.0;
      sums[b] += share;
      all += share;
    }
    least = std::min(least, all);
    most = std::max(most, all);
  }

  [[nodiscard]] std::string text() const {
    const std::string from = fmt::format("{:.0f}", 100 * least), to = fmt::format("{:.0f}", 100 * most);
    return fmt::format("{} {} % ({})", name, from == to ? from : from + " to " + to, bases());
  }

 private:
  [[nodiscard]] std::string bases() const {
    double all = 0;
    std::vector<std::pair<double, const char*>> shown;
    for (const double sum : sums) all += sum;
    for (std::size_t b = 0; b < kBases; ++b)
      if (shows(sums[b] / all)) shown.emplace_back(sums[b] / all, kBasisNames[b]);
    if (shown.size() == 1) return shown.front().second;
    std::stable_sort(shown.begin(), shown.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<std::string> texts;
    for (const auto& [share, basis] : shown) texts.push_back(fmt::format("{:.0f} % {}", 100 * share, basis));
    return join(texts, ", ");
  }
};

}  // namespace

Json step_time_by_part(const StepShares& shares) {
  Json all = Json::object();
  for (std::size_t p = 0; p < kParts.size(); ++p) {
    Json part = Json::object();
    for (std::size_t b = 0; b < kBases; ++b)
      if (const double share = six_decimals(shares[p][b]); share > 0) part[kBasisNames[b]] = share;
    if (!part.empty()) all[kParts[p]] = std::move(part);
  }
  return all;
}

std::string step_time_line(const std::vector<Json>& runs) {
  std::vector<PartShares> parts;
  for (const char* name : kParts) {
    PartShares part{name};
    for (const Json& run : runs)
      if (!run.empty()) part.add(run);
    if (shows(part.most)) parts.push_back(std::move(part));
  }
  std::stable_sort(parts.begin(), parts.end(), [](const PartShares& a, const PartShares& b) { return a.most > b.most; });
  std::vector<std::string> texts;
  for (const PartShares& part : parts) texts.push_back(part.text());
  return texts.empty() ? "" : "step time: " + join(texts, ", ");
}

std::string remark_on_policy(const StepShares& shares, const std::string& name) {
  constexpr double kNotable = 0.1;
  double share = 0;
  for (const double of_basis : shares[static_cast<std::size_t>(CostPart::kPolicy)]) share += of_basis;
  if (!(share > kNotable)) return "";
  return fmt::format(
      "{:.0f} % of step time are operations of KV policy '{}' itself, beside the model's; 'kvlab describe {}' lists them, and "
      "step_policy_frac of summary.csv has the share of each run",
      100 * share, name, name);
}

double share_with(const StepShares& shares, Basis basis) {
  double sum = 0;
  for (const auto& part : shares) sum += part[static_cast<std::size_t>(basis)];
  return sum;
}

}  // namespace kvlab
