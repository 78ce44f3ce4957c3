#include "app/runs/bill.h"

#include <fmt/format.h>

namespace kvlab {

Bill bill_of(const RunSummary& summary, const CostSetup& cost, std::uint32_t num_replicas) {
  constexpr double kSecondsPerHour = 3600, kMillion = 1e6;
  const HardwareSpec& hardware = cost.hardware;
  const double gpu_s = to_s(summary.duration) * num_replicas * cost.parallel.gpus();
  const auto tokens = static_cast<double>(summary.output_tokens);
  Bill bill;
  if (hardware.power) {
    const auto& [idle_w, peak_w] = *hardware.power;
    bill.energy_j = idle_w * gpu_s + (peak_w - idle_w) * summary.peak_s * cost.parallel.gpus_of_rank();
    if (tokens > 0) bill.energy_j_per_token = *bill.energy_j / tokens;
  }
  if (hardware.price_per_hour && tokens > 0)
    bill.dollars_per_million_tokens = *hardware.price_per_hour * gpu_s / kSecondsPerHour / tokens * kMillion;
  std::string missing;
  if (!hardware.power) missing = "'power: {idle_w: WATTS, peak_w: WATTS}'";
  if (!hardware.price_per_hour) missing += std::string(missing.empty() ? "" : " and ") + "'price_per_hour: USD'";
  if (!missing.empty())
    bill.remark = fmt::format("no {} for {}: add {} to {}",
                              hardware.power            ? "price of tokens"
                              : hardware.price_per_hour ? "energy"
                                                        : "energy and price of tokens",
                              hardware.name, missing, hardware.file);
  return bill;
}

}  // namespace kvlab
