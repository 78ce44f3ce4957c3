#include "sim/cost/expert_exchange.h"

#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"

namespace kvlab {

double share_of_gpus(const ModelSpec& model, int gpus) {
  const auto experts = static_cast<double>(model.experts), elsewhere = experts - experts / gpus;
  double none = 1;
  for (std::int64_t i = 0; i < model.experts_per_token; ++i)
    none *= std::max(0.0, elsewhere - static_cast<double>(i)) / (experts - static_cast<double>(i));
  return 1 - none;
}

// all_gather: each GPU receives the other ranks' tokens; the rank with the fewest receives most. deepep: a rank's GPUs split its tokens,
// and each sends its part.
std::int64_t exchange_volume(const ModelSpec& model, const Parallel& parallel, const GroupTokens& group) {
  const std::int64_t token_bytes = model.hidden * model.activation_bytes();
  if (parallel.exchange == ExpertExchange::kAllGather) return (group.computed - group.smallest) * token_bytes;
  const auto own = static_cast<double>(ceil_div<std::int64_t>(group.largest, parallel.tp));
  const double others = (parallel.ep - 1) * share_of_gpus(model, parallel.ep);
  return std::llround(own * others * static_cast<double>(token_bytes));
}

std::array<CollectiveUse, 2> exchange_collectives(const Parallel& parallel) {
  if (parallel.exchange == ExpertExchange::kDeepEp) return {{{Collective::kAllToAll, parallel.ep}, {Collective::kAllToAll, parallel.ep}}};
  return {{{Collective::kAllGather, parallel.dp}, {Collective::kReduceScatter, parallel.dp}}};
}

double exchange_message_bytes(const ModelSpec& model, const Parallel& parallel, const GroupTokens& group) {
  const double ranks = exchange_collectives(parallel).front().ranks;
  return static_cast<double>(exchange_volume(model, parallel, group)) * ranks / (ranks - 1);
}

}  // namespace kvlab
