#include "sim/simulation.h"

#include <array>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "serving/fleet.h"
#include "sim/device.h"

namespace kvlab {

namespace {

struct PoolDevices {
  std::shared_ptr<CostModel> cost;  // its tables are filled once for all
  std::vector<const SimDevice*> devices;
  std::shared_ptr<LockStep> group;  // of the replica being made
};

void add_shares(const CostTotals& all, RunSummary& summary) {
  const std::array<Int128, 5> part{all.of(CostPart::kLinear) + all.of(CostPart::kExperts), all.of(CostPart::kAttention),
                                   all.of(CostPart::kHead), all.of(CostPart::kCollective), all.of(CostPart::kPolicy)};
  const std::array<Int128, 3> footing{all.of(Footing::kInside), all.of(Footing::kInterpolated),
                                      all.of(Footing::kExtrapolated) + all.of(Footing::kRoofline) + all.of(Footing::kDatasheet)};
  const Int128 priced = std::accumulate(part.begin(), part.end(), Int128{0});  // all stages
  for (std::size_t i = 0; i < part.size(); ++i) summary.part_frac[i] = ratio(part[i], priced);
  for (std::size_t i = 0; i < footing.size(); ++i) summary.footing_frac[i] = ratio(footing[i], priced);
  summary.step_shares = all.shares();
}

// Shares of step time, and use of busy devices.
void add_costs(const std::vector<PoolDevices>& pools, const Fleet& fleet, RunSummary& summary) {
  CostTotals all(pools.front().devices.front()->cost());
  double peak_flops = 0, peak_bytes = 0;  // most work of busy pools
  for (std::uint32_t i = 0; i < pools.size(); ++i) {
    const CostModel& cost = pools[i].devices.front()->cost();
    CostTotals own(cost);
    for (const SimDevice* device : pools[i].devices) own.merge(device->totals());
    const double busy_s = static_cast<double>(fleet.totals(i).busy) * 1e-12;
    const double flops = busy_s * cost.peak_flops(), bytes = busy_s * cost.peak_bytes_per_s();
    all.merge(own);
    peak_flops += flops;
    peak_bytes += bytes;
    summary.peak_s += own.peak.seconds();
    PoolCosts costs{own.peak.seconds(), 0, 0, own.shares()};
    if (flops > 0) costs.mfu_frac = static_cast<double>(own.flops) / flops;
    if (bytes > 0) costs.mbu_frac = static_cast<double>(own.bytes) / bytes;
    if (!summary.pools.empty()) summary.pool_costs.push_back(costs);
  }
  add_shares(all, summary);
  if (peak_flops > 0) summary.mfu_frac = static_cast<double>(all.flops) / peak_flops;
  if (peak_bytes > 0) summary.mbu_frac = static_cast<double>(all.bytes) / peak_bytes;
}

}  // namespace

RunSummary simulate(const SimSetup& setup, TraceSource& trace, RunSink& sink) {
  std::vector<PoolDevices> pools(setup.num_pools());
  const MakeDevice make_device = [&](std::size_t p) {
    const PoolSetup& pool = setup.pool(p);
    PoolDevices& made = pools[p];
    if (made.cost == nullptr) made.cost = setup.costs(p).make_cost_model();
    const bool has_group = pool.ranks > 1 && pool.steps_together;
    if (has_group && made.devices.size() % pool.ranks == 0) made.group = std::make_shared<LockStep>(pool.ranks, made.cost->num_stages());
    auto device = std::make_unique<SimDevice>(made.cost, setup.costs(p).swap_link, pool.memory, made.group, setup.costs(p).encode);
    made.devices.push_back(device.get());
    return device;
  };
  Clock clock;
  Fleet fleet(setup, make_device, clock, trace, sink);
  RunSummary summary;
  static_cast<ServingSummary&>(summary) = fleet.run();
  add_costs(pools, fleet, summary);
  return summary;
}

}  // namespace kvlab
