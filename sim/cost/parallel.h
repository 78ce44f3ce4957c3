#pragma once

#include <algorithm>
#include <cstdint>

#include "serving/load_balance.h"

namespace kvlab {

// All tokens to every rank (vLLM's allgather_reducescatter), or each once per rank with one of its experts (deepep).
enum class ExpertExchange : std::uint8_t { kAllGather, kDeepEp };

// tp splits attention and dense layers, pp layers. dp > 1: ranks of tp x pp GPUs with own schedulers. ep = 1: experts are split over tp x
// dp GPUs; else whole experts on ep GPUs, and without dp ep / tp groups share a scheduler's tokens.
struct Parallel {
  int tp = 1, pp = 1, ep = 1, dp = 1;
  ExpertExchange exchange = ExpertExchange::kAllGather;  // dp > 1
  LoadBalance load_balance = LoadBalance::kVllm;         // dp > 1

  // Groups that share a scheduler's tokens.
  [[nodiscard]] int data_ranks() const { return dp > 1 ? 1 : std::max(1, ep / tp); }
  [[nodiscard]] int expert_ranks() const { return ep > 1 ? ep : tp * dp; }
  [[nodiscard]] int gpus() const { return (dp > 1 ? tp * dp : std::max(tp, ep)) * pp; }
  [[nodiscard]] int gpus_of_rank() const { return gpus() / dp; }
};

}  // namespace kvlab
