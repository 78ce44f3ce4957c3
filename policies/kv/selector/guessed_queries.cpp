#include "policies/kv/selector/guessed_queries.h"

#include "kernels/model/rope/rotary.h"

namespace kvlab {

std::span<const Queries> GuessedQueries::from_layer_before(LayerStep& step) {
  const ModelShape& model = step.model;
  const std::size_t n = step.seqs.size(), half = static_cast<std::size_t>(model.head_dim / 2);
  std::vector<float> cos(n * half), sin(n * half);
  const bool turns = model.rope.base != 0 && step.ops.computes();
  if (turns) {
    const Rotary rotary(model.rope, model.head_dim);
    for (std::size_t s = 0; s < n; ++s) {
      const std::int32_t position = step.seqs[s].seen_tokens;
      rotary.fill({&position, 1}, cos.data() + s * half, sin.data() + s * half);
    }
  }
  GuessQueries guess{static_cast<std::int32_t>(n), model.q_heads, model.head_dim, model.hidden_dim,
                     step.in.hidden_before.data(), step.in.w_q};
  guess.cos = turns ? cos.data() : nullptr, guess.sin = turns ? sin.data() : nullptr;
  const std::int64_t width = std::int64_t{model.q_heads} * model.head_dim;
  guess.out = step.ops.floats(static_cast<std::int64_t>(n) * width);
  step.ops(guess);
  view_.clear();
  for (std::size_t s = 0; s < n; ++s)
    view_.push_back({guess.out == nullptr ? nullptr : guess.out + static_cast<std::int64_t>(s) * width, 1, step.seqs[s].seen_tokens});
  return view_;
}

}  // namespace kvlab
