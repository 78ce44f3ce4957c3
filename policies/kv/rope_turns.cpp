#include "policies/kv/rope_turns.h"

#include "kernels/model/rope/rotary.h"

namespace kvlab {

std::vector<float> rope_frequencies(const LayerStep& step, std::int64_t more_tokens) {
  std::vector<float> all;
  if (step.model.rope.base == 0 || !step.ops.computes()) return all;
  const Rotary rotary(step.model.rope, step.model.head_dim);
  for (const SeqStep& seq : step.seqs) {
    const std::vector<float> own = rotary.frequencies(seq.end() + more_tokens);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace kvlab
