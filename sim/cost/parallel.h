#pragma once

#include <algorithm>

namespace kvlab {

// How one replica is cut over GPUs. Attention and dense layers are cut over tp ranks. ep = 1: experts are cut over tp too.
// ep > 1: whole experts are spread over ep ranks, a multiple of tp; the ep / tp groups share the step's tokens (data
// parallel attention). Layers are cut over pp stages.
struct Parallel {
  int tp = 1, pp = 1, ep = 1;

  [[nodiscard]] int data_ranks() const { return std::max(1, ep / tp); }
  [[nodiscard]] int gpus() const { return std::max(tp, ep) * pp; }
};

}  // namespace kvlab
