#include <algorithm>
#include <string_view>

#include "sim/cost/step_cost_model.h"
#include "sim/cost/step_sums.h"

namespace kvlab {

namespace {

constexpr std::string_view kRebuildOp = "low_rank_rebuild";

}  // namespace

// Operations first: transfers run concurrently with them and the layers' computation in `cost` (mean over layers). Disk reads only count
// beyond the host link's time.
void StepCostModel::add_policy(std::span<const PolicyOp> ops, StepCost& cost) const {
  double rebuilds = 0, link = 0;
  for (const PolicyOp& op : ops) {
    if (op.is_transfer()) continue;
    const Price price = prices_->policy(op);
    if (op.name == kRebuildOp) rebuilds += price.total();
    charge(cost, CostPart::kPolicy, round(price));
  }
  double layers = 0;
  for (const CostPart part : {CostPart::kLinear, CostPart::kExperts, CostPart::kAttention, CostPart::kPolicy})
    layers += cost.of(part).real();
  for (const PolicyOp& op : ops) {
    if (!op.is_transfer()) continue;
    Price price = prices_->policy(op);
    double beside = op.beside == FetchBeside::kLayerBefore ? layers : op.beside == FetchBeside::kKeyRebuild ? rebuilds : 0;
    beside *= static_cast<double>(op.launches) / static_cast<double>(model_.layers);
    if (op.from_disk) beside = std::max(beside, link);
    if (op.over_host_link) link += price.total();
    price.hide(beside);
    charge(cost, CostPart::kPolicy, round(price));
  }
}

}  // namespace kvlab
