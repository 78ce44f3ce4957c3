#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "app/runs/plan/serving_plan.h"
#include "base/text.h"
#include "sim/cost/profile.h"

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

constexpr double kMuch = 0.1;  // share of unmeasured step time that warrants a remark

std::string calibration_failure_of(const CostSetup& cost) {
  if (cost.profile == nullptr) return "";
  const auto found = cost.profile->options.find("calibration_failure");
  return found == cost.profile->options.end() ? "" : found->second;
}

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

std::string calibration_failure_of(const ServingPlan& plan) {
  for (const PoolPlan& pool : plan.pools)
    if (std::string failure = calibration_failure_of(pool.cost); !failure.empty()) return failure;
  return "";
}

std::string describe_cost_source(const PoolPlan& pool) {
  const CostSetup& cost = pool.cost;
  std::string text = "profile " + cost.profile_name;
  if (!cost.profile_date.empty()) text += ", " + cost.profile_date;
  if (!cost.profile_hash.empty()) text += ", " + cost.profile_hash;
  if (cost.profile != nullptr && !cost.profile->notes.empty())
    text += fmt::format(" ({} remarks: {})", cost.profile->notes.size(), pool.lint);
  if (const std::string failure = calibration_failure_of(cost); !failure.empty())
    text += "; the profile FAILED its calibration: " + failure;
  for (const CollectiveUse& use : collectives_of(cost.model, cost.parallel)) text += "; " + cost.collectives->basis(use);
  if (cost.overlap) text += fmt::format("; all-reduces beside the computation in steps of {} tokens and more", cost.overlap->min_tokens);
  if (cost.engine.is_known()) text += "; times of " + cost.engine.basis;
  for (const std::string& remark : cost.model.remarks) text += "; " + cost.model.name + ": " + remark;
  return text;
}

std::string describe_cost_source(const ServingPlan& plan) {
  std::vector<std::pair<std::string, std::string>> sources;  // with its pools
  for (const PoolPlan& pool : plan.pools) {
    const std::string source = describe_cost_source(pool);
    auto at = sources.begin();
    while (at != sources.end() && at->first != source) ++at;
    if (at == sources.end())
      sources.emplace_back(source, pool.name);
    else
      at->second += " and " + pool.name;
  }
  if (sources.size() == 1) return sources.front().first;
  std::vector<std::string> texts;
  for (const auto& [source, pools] : sources) texts.push_back(fmt::format("{}: {}", pools, source));
  return join(texts, "; ");
}

std::string remark_on_roofline(const CostSetup& cost, const StepShares& shares) {
  const double share = share_with(shares, Basis::kRoofline);
  if (cost.parallel.tp == 1 || !(share > kMuch)) return "";
  return fmt::format(
      "{:.0f} % of step time at tp = {} is by the roofline, which is unverified there: no log of an engine on several GPUs was compared "
      "with it, and public measurements are mostly slower (docs/fidelity.md); 'profile' takes measured tables (docs/cost-model.md)",
      100 * share, cost.parallel.tp);
}

std::string remark_on_network(const CostSetup& cost) {
  const HardwareSpec& card = cost.hardware;
  if (card.network_bytes_per_s > 0) return "";
  const auto stride_of = [&](Collective op) {
    if (op == Collective::kP2p) return cost.parallel.gpus_of_rank() / 2;
    return op == Collective::kAllGather || op == Collective::kReduceScatter ? cost.parallel.tp : 1;
  };
  std::vector<std::string> crossing;
  for (const CollectiveUse& use : collectives_of(cost.model, cost.parallel))
    if (card.links().leaves_machine(use.ranks, stride_of(use.op)))
      crossing.push_back(fmt::format("{} over {} ranks", collective_name(use.op), use.ranks));
  if (crossing.empty()) return "";
  return fmt::format(
      "{} leaves a machine of {} GPUs, and {} has no 'network_bytes_per_s': the rate of PCIe is taken, {:.3g} GB/s for each GPU, which a "
      "network card cannot exceed; add the key, a GPU's share of the network in one direction",
      join(crossing, " and "), card.gpus_per_machine, card.file, card.network_rate() * 1e-9);
}

std::string remark_on_collectives(const CostSetup& cost, const StepShares& shares) {
  const double share = shares[static_cast<std::size_t>(CostPart::kCollective)][static_cast<std::size_t>(Basis::kDatasheet)];
  if (!(share > kMuch)) return "";
  std::vector<std::string> missing;
  for (const CollectiveUse& use : collectives_of(cost.model, cost.parallel))
    if (!cost.collectives->is_measured(use.op, use.ranks))
      missing.push_back(fmt::format("{} over {} ranks", collective_name(use.op), use.ranks));
  return fmt::format(
      "{:.0f} % of step time is {} by the datasheet of {}; measured times may differ by half or more: add them under "
      "'collectives' in {}, or as {}/NAME.csv to a profile (docs/cost-model.md)",
      100 * share, join(missing, " and "), cost.hardware.name, cost.hardware.file, fmt::format("tp{}", cost.parallel.tp));
}

}  // namespace kvlab
