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

// Adds the shares of step time, and how far the devices were used while they were busy.
void add_costs(const std::vector<const SimDevice*>& devices, Int128 busy, RunSummary& summary) {
  const CostModel& cost = devices.front()->cost();
  CostTotals all(cost);
  for (const SimDevice* device : devices) all.merge(device->totals());
  const std::array<Int128, 5> part{all.of(CostPart::kLinear) + all.of(CostPart::kExperts), all.of(CostPart::kAttention),
                                   all.of(CostPart::kHead), all.of(CostPart::kCollective), all.of(CostPart::kPolicy)};
  const std::array<Int128, 3> footing{all.of(Footing::kInside), all.of(Footing::kInterpolated),
                                      all.of(Footing::kExtrapolated) + all.of(Footing::kRoofline) + all.of(Footing::kDatasheet)};
  const Int128 priced = std::accumulate(part.begin(), part.end(), Int128{0});  // of every stage
  for (std::size_t i = 0; i < part.size(); ++i) summary.part_frac[i] = ratio(part[i], priced);
  for (std::size_t i = 0; i < footing.size(); ++i) summary.footing_frac[i] = ratio(footing[i], priced);
  summary.step_shares = all.shares();
  summary.peak_s = all.peak.seconds();
  const double busy_s = static_cast<double>(busy) * 1e-12;
  if (busy_s <= 0) return;
  summary.mfu_frac = static_cast<double>(all.flops) / (busy_s * cost.peak_flops());
  summary.mbu_frac = static_cast<double>(all.bytes) / (busy_s * cost.peak_bytes_per_s());
}

}  // namespace

RunSummary simulate(const SimSetup& setup, TraceSource& trace, RunSink& sink) {
  std::vector<const SimDevice*> devices;
  std::shared_ptr<LockStep> group;
  const MakeDevice make_device = [&] {
    auto cost = setup.make_cost_model();
    const bool has_group = setup.ranks > 1 && setup.steps_together;
    if (has_group && devices.size() % setup.ranks == 0) group = std::make_shared<LockStep>(setup.ranks, cost->num_stages());
    auto device = std::make_unique<SimDevice>(std::move(cost), setup.swap_link, setup.memory.block_bytes, group);
    devices.push_back(device.get());
    return device;
  };
  Clock clock;
  Fleet fleet(setup, make_device, clock, trace, sink);
  RunSummary summary{fleet.run()};
  add_costs(devices, fleet.totals().busy, summary);
  return summary;
}

}  // namespace kvlab
