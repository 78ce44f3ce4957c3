#include "sim/lock_step.h"

#include <algorithm>

#include "base/checked_time.h"
#include "base/error.h"

namespace kvlab {

void LockStep::begin(StepPricer& pricer, CostModel& cost, InFlightStep& step, CostTotals& totals, Picoseconds ready) {
  if (parts_.size() == ranks_) parts_.clear();
  if (parts_.empty()) ready_ = planned_ = {};
  pricer.collect_rank(step);
  planned_ = std::max(planned_, ready);
  ready_ = std::max(ready_, add_time(ready, cost.host_time(pricer.shape()), kLateStep));
  parts_.push_back({&pricer, &step, &totals});
  if (parts_.size() == ranks_) time_step();
}

void LockStep::finish(InFlightStep& step) const {
  if (parts_.size() != ranks_) throw InternalError("a step ends before all ranks have begun it");
  step.start = start_;
  step.end = end_;
}

// The rows of each rank where all run graphs; 0: each has its own.
std::int32_t LockStep::common_rows() const {
  std::int32_t most = 0;
  for (const Part& part : parts_) most = std::max(most, part.pricer->computed_rows());
  const bool all_graphs =
      std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) { return most <= part.pricer->largest_graph_rows(); });
  return all_graphs ? most : 0;
}

void LockStep::time_step() {
  GroupTokens group;
  const std::int32_t rows = common_rows();
  for (const Part& part : parts_) {
    if (rows > 0) part.pricer->pad_to(rows);
    group.add(part.pricer->useful_rows(), part.pricer->computed_rows());
  }
  longest_.assign(stage_free_.size(), {});
  for (const Part& part : parts_) {
    const StepCost cost = part.pricer->price_rank(*part.step, group);
    part.totals->add(cost);
    part.step->policy_time = cost.of(CostPart::kPolicy);
    if (longest_.size() > 1) {
      part.pricer->stage_times(stage_times_);
    } else {
      stage_times_ = {cost.total};
    }
    for (std::size_t s = 0; s < longest_.size(); ++s) longest_[s] = std::max(longest_[s], stage_times_[s]);
  }
  start_ = std::max(stage_free_[0], ready_);
  const Picoseconds for_host = start_ - std::max(stage_free_[0], planned_);
  for (const Part& part : parts_) part.totals->host += for_host.count();
  end_ = pass_stages(ready_, longest_, stage_free_);
}

}  // namespace kvlab
