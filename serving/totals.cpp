#include "serving/totals.h"

#include <algorithm>

namespace kvlab {

void StepTotals::add(const InFlightStep& step, Picoseconds occupied) {
  const PlanUsage& usage = step.usage;
  steps += step.is_empty() ? 0 : 1;
  const std::int64_t ps = occupied.count();
  busy += ps;
  rows += static_cast<Int128>(step.num_rows());
  tokens += step.ended_tokens;
  images += step.images;
  if (usage.waiting > 0) overload += ps;
  peak_used_blocks = std::max(peak_used_blocks, usage.used_blocks);
  used_blocks += static_cast<Int128>(usage.used_blocks) * ps;
  wasted_tokens += static_cast<Int128>(usage.wasted_tokens) * ps;
  external_fragmentation += static_cast<Int128>(usage.external_fragmentation_ppm) * ps;
}

void StepTotals::merge(const StepTotals& other) {
  steps += other.steps;
  rows += other.rows;
  tokens += other.tokens;
  busy += other.busy;
  overload += other.overload;
  used_blocks += other.used_blocks;
  wasted_tokens += other.wasted_tokens;
  external_fragmentation += other.external_fragmentation;
  peak_used_blocks = std::max(peak_used_blocks, other.peak_used_blocks);
  images += other.images;
}

}  // namespace kvlab
