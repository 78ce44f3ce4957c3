#include "app/runs/report/bill.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace kvlab {

double energy_j(const PowerSpec& power, double gpu_s, double peak_s, double gpus) {
  return power.idle_w * gpu_s + (power.peak_w - power.idle_w) * peak_s * gpus;
}

double dollars(double price_per_hour, double gpu_s) {
  constexpr double kSecondsPerHour = 3600;
  return price_per_hour * gpu_s / kSecondsPerHour;
}

double dollars_per_million(double dollars, double tokens) {
  constexpr double kMillion = 1e6;
  return dollars / tokens * kMillion;
}

std::vector<MissingFigure> missing_figures(const HardwareSpec& hardware) {
  std::vector<MissingFigure> missing;
  if (!hardware.power) missing.push_back({"energy", "'power: {idle_w: WATTS, peak_w: WATTS}'"});
  if (!hardware.price_per_hour) missing.push_back({"price", "'price_per_hour: USD'"});
  return missing;
}

namespace {

double gpu_seconds(Span duration, const PoolUse& pool) { return to_s(duration) * pool.num_replicas * pool.cost.parallel.gpus(); }

// "": no missing keys.
std::string remark_on(const HardwareSpec& hardware) {
  std::vector<std::string> figures, keys;
  for (const MissingFigure& m : missing_figures(hardware)) {
    figures.push_back(m.figure);
    keys.push_back(m.key);
  }
  if (figures.empty()) return "";
  return fmt::format("no {}{} for {}: add {} to {}", join(figures, " and "), hardware.price_per_hour ? "" : " of tokens", hardware.name,
                     join(keys, " and "), hardware.file);
}

// nullopt if either is.
std::optional<double> add(std::optional<double> sum, std::optional<double> own) {
  return sum && own ? std::optional(*sum + *own) : std::nullopt;
}

}  // namespace

std::optional<double> energy_j(Span duration, const PoolUse& pool) {
  if (!pool.cost.hardware.power) return std::nullopt;
  return energy_j(*pool.cost.hardware.power, gpu_seconds(duration, pool), pool.peak_s, pool.cost.parallel.gpus_of_rank());
}

Bill bill_of(const ServingSummary& summary, const std::vector<PoolUse>& pools) {
  const auto tokens = static_cast<double>(summary.output_tokens);
  std::optional<double> joules = 0.0, usd = 0.0;
  std::vector<std::string> remarks;
  for (const PoolUse& pool : pools) {
    const std::optional<double> price = pool.cost.hardware.price_per_hour;
    joules = add(joules, energy_j(summary.duration, pool));
    usd = add(usd, price ? std::optional(dollars(*price, gpu_seconds(summary.duration, pool))) : std::nullopt);
    const std::string remark = remark_on(pool.cost.hardware);
    if (!remark.empty() && std::find(remarks.begin(), remarks.end(), remark) == remarks.end()) remarks.push_back(remark);
  }
  Bill bill;
  bill.energy_j = joules;
  if (joules && tokens > 0) bill.energy_j_per_token = *joules / tokens;
  if (usd && tokens > 0) bill.dollars_per_million_tokens = dollars_per_million(*usd, tokens);
  bill.remark = join(remarks, "; ");
  return bill;
}

void take_price(Bill& bill) {
  if (!bill.dollars_per_million_tokens) return;
  bill.dollars_per_million_tokens.reset();
  bill.remark += (bill.remark.empty() ? "" : "; ") + std::string("no price, since the SLO is not attained");
}

Bill bill_of(const RunSummary& summary, const CostSetup& cost, std::uint32_t num_replicas) {
  return bill_of(summary, {PoolUse{cost, num_replicas, summary.peak_s}});
}

}  // namespace kvlab
