#pragma once

#include <array>
#include <cstdint>

#include "sim/cost/collectives.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/parallel.h"

namespace kvlab {

// Bytes over the busiest GPU's link in one direction, before a layer's experts, without its own part; as many return. A token crosses once
// per rank, or once per GPU with one of its experts.
std::int64_t exchange_volume(const ModelSpec& model, const Parallel& parallel, const GroupTokens& group);

// Before and after the experts.
std::array<CollectiveUse, 2> exchange_collectives(const Parallel& parallel);
// Message of the even collective in which exchange_volume crosses every link.
double exchange_message_bytes(const ModelSpec& model, const Parallel& parallel, const GroupTokens& group);

// Probability that one of `gpus` GPUs has an expert of a token, for distinct uniform experts.
double share_of_gpus(const ModelSpec& model, int gpus);

}  // namespace kvlab
