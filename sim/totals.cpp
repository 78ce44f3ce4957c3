#include "sim/totals.h"

#include <algorithm>

namespace kvlab {

void StepTotals::add_cost(const StepCost& cost, Picoseconds occupied) {
  ++steps;
  busy += occupied;
  flops += cost.flops;
  bytes += cost.bytes;
  for (std::size_t i = 0; i < kCostParts; ++i) part[i] += cost.part[i];
  for (std::size_t i = 0; i < kFootings; ++i) footing[i] += cost.footing[i];
}

void StepTotals::add_costs(const StepCost& base, const StepCost& slope, std::int64_t count) {
  steps += static_cast<std::uint64_t>(count);
  busy += progression_sum(base.total, slope.total, count);
  flops += progression_sum(base.flops, slope.flops, count);
  bytes += progression_sum(base.bytes, slope.bytes, count);
  for (std::size_t i = 0; i < kCostParts; ++i) part[i] += progression_sum(base.part[i], slope.part[i], count);
  for (std::size_t i = 0; i < kFootings; ++i) footing[i] += progression_sum(base.footing[i], slope.footing[i], count);
}

void StepTotals::merge(const StepTotals& other) {
  steps += other.steps;
  rows += other.rows;
  tokens += other.tokens;
  busy += other.busy;
  overload += other.overload;
  used_blocks += other.used_blocks;
  wasted_tokens += other.wasted_tokens;
  flops += other.flops;
  bytes += other.bytes;
  external_fragmentation += other.external_fragmentation;
  for (std::size_t i = 0; i < kCostParts; ++i) part[i] += other.part[i];
  for (std::size_t i = 0; i < kFootings; ++i) footing[i] += other.footing[i];
  peak_used_blocks = std::max(peak_used_blocks, other.peak_used_blocks);
}

}  // namespace kvlab
