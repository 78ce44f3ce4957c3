#pragma once

#include <algorithm>
#include <cstdint>

namespace kvlab {

// How tokens cross to the ranks of a group whose experts they need: every rank receives all tokens (vLLM's allgather_reducescatter), or a
// token crosses once to each rank that has one of its experts (deepep).
enum class ExpertExchange : std::uint8_t { kAllGather, kDeepEp };

// How one replica is cut over GPUs. Attention and dense layers are cut over tp GPUs, layers over pp stages. dp > 1: this many ranks of tp x
// pp GPUs, each with its own scheduler and KV cache. ep = 1: experts are cut over tp x dp GPUs. ep > 1: whole experts are spread over ep
// GPUs: over tp x dp, or without dp over a multiple of tp; then ep / tp groups share the tokens of one scheduler evenly.
struct Parallel {
  int tp = 1, pp = 1, ep = 1, dp = 1;
  ExpertExchange exchange = ExpertExchange::kAllGather;  // with dp > 1

  // Groups that share the tokens of one scheduler.
  [[nodiscard]] int data_ranks() const { return dp > 1 ? 1 : std::max(1, ep / tp); }
  // GPUs over which a layer's experts are spread or cut.
  [[nodiscard]] int expert_ranks() const { return ep > 1 ? ep : tp * dp; }
  [[nodiscard]] int gpus() const { return (dp > 1 ? tp * dp : std::max(tp, ep)) * pp; }
  // GPUs of one scheduler.
  [[nodiscard]] int gpus_of_rank() const { return gpus() / dp; }
};

}  // namespace kvlab
