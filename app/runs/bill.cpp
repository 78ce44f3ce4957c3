#include "app/runs/bill.h"

#include <fmt/format.h>

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

Bill bill_of(const RunSummary& summary, const CostSetup& cost, std::uint32_t num_replicas) {
  const HardwareSpec& hardware = cost.hardware;
  const double gpu_s = to_s(summary.duration) * num_replicas * cost.parallel.gpus();
  const auto tokens = static_cast<double>(summary.output_tokens);
  Bill bill;
  if (hardware.power) {
    bill.energy_j = energy_j(*hardware.power, gpu_s, summary.peak_s, cost.parallel.gpus_of_rank());
    if (tokens > 0) bill.energy_j_per_token = *bill.energy_j / tokens;
  }
  if (hardware.price_per_hour && tokens > 0)
    bill.dollars_per_million_tokens = dollars_per_million(dollars(*hardware.price_per_hour, gpu_s), tokens);
  std::vector<std::string> figures, keys;
  for (const MissingFigure& m : missing_figures(hardware)) {
    figures.push_back(m.figure);
    keys.push_back(m.key);
  }
  if (!figures.empty())
    bill.remark = fmt::format("no {}{} for {}: add {} to {}", join(figures, " and "), hardware.price_per_hour ? "" : " of tokens",
                              hardware.name, join(keys, " and "), hardware.file);
  return bill;
}

}  // namespace kvlab
