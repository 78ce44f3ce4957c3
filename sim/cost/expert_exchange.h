#pragma once

#include <array>
#include <cstdint>

#include "sim/cost/collectives.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/parallel.h"

namespace kvlab {

// The exchange of tokens before the experts of one layer; after them the same number of bytes returns. Bytes over the link of the busiest
// GPU, in one direction; its own part does not cross. A token crosses once to each rank, or once to each GPU that has one of its experts,
// never once for each expert.
std::int64_t exchange_volume(const ModelSpec& model, const Parallel& parallel, const GroupTokens& group);

// The collectives before and after the experts of one layer.
std::array<CollectiveUse, 2> exchange_collectives(const Parallel& parallel);
// The message of each: of an even collective, in which exchange_volume crosses every link.
double exchange_message_bytes(const ModelSpec& model, const Parallel& parallel, const GroupTokens& group);

// The probability that one of `gpus` GPUs has an expert of a token, whose experts are drawn uniformly and differ.
double share_of_gpus(const ModelSpec& model, int gpus);

}  // namespace kvlab
