#pragma once

#include <cstdint>

#include "sim/cost/cost_model.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/parallel.h"

namespace kvlab {

// The exchange of tokens before the experts of one layer; after them as many bytes go back.
struct ExchangeVolume {
  std::int64_t bytes = 0;  // over the link of the busiest GPU, in one direction; its own part does not cross
  int ranks = 1;           // that take part
};

// A token crosses once to each rank, or once to each GPU that has one of its experts, never once for each expert.
ExchangeVolume exchange_volume(const ModelSpec& model, const Parallel& parallel, const GroupTokens& group);

// The probability that one of `gpus` GPUs has an expert of a token, whose experts are drawn uniformly and differ.
double share_of_gpus(const ModelSpec& model, int gpus);

}  // namespace kvlab
