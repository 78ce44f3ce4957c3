#pragma once

#include "tests/kv/kv_fixture.h"

namespace kvlab::test {

// Plain loops in double: attention of query t over tokens 0..t, for one query head.
inline std::vector<double> plain_row_of_head(const RandomLayer& layer, std::int32_t sequence, std::int32_t q_head, std::int32_t t) {
  const ModelShape& m = layer.model;
  const auto s = static_cast<std::size_t>(sequence);
  const float* const query = &nth(layer.q[s], (t * m.q_heads + q_head) * m.head_dim);
  std::vector<double> z;
  for (std::int32_t i = 0; i <= t; ++i)
    z.push_back(dot(query, &nth(layer.k[s], (i * m.kv_heads + q_head / m.group()) * m.head_dim), m.head_dim) / std::sqrt(m.head_dim));
  return softmax(z);
}

// The same, mean over the query heads of a KV head.
inline std::vector<double> plain_row(const RandomLayer& layer, std::int32_t sequence, std::int32_t head, std::int32_t t) {
  std::vector<double> mean(static_cast<std::size_t>(t) + 1, 0.0);
  for (std::int32_t g = 0; g < layer.model.group(); ++g) {
    const std::vector<double> p = plain_row_of_head(layer, sequence, head * layer.model.group() + g, t);
    for (std::size_t i = 0; i < p.size(); ++i) mean[i] += p[i] / layer.model.group();
  }
  return mean;
}

// The sums over the rows of the last `window` tokens of a prompt.
inline std::vector<double> plain_window(const RandomLayer& layer, std::int32_t sequence, std::int32_t head, std::int32_t window) {
  const std::int32_t n = layer.seqs[0].new_tokens;
  std::vector<double> sums(static_cast<std::size_t>(n), 0.0);
  for (std::int32_t t = n - window; t < n; ++t) {
    const std::vector<double> p = plain_row(layer, sequence, head, t);
    for (std::size_t i = 0; i < p.size(); ++i) sums[i] += p[i];
  }
  return sums;
}

// A scorer's answer for a prompt that came in one step, both stages; `keep` (same for all rows): null asks the first alone.
inline std::vector<float> scores_after_prompt(RandomLayer& layer, Scorer& scorer, std::int32_t window = 1,
                                              const std::int32_t* keep = nullptr) {
  LayerStep step = layer.prompt_step(window);
  scorer.observe(step);
  std::vector<float> scores(static_cast<std::size_t>(step.kv.total()));
  float* data = layer.ops.computes() ? scores.data() : nullptr;
  scorer.score(step, data);
  std::vector<std::int32_t> counts(static_cast<std::size_t>(step.kv.num_rows), keep == nullptr ? 0 : *keep);
  if (keep != nullptr) scorer.refine(step, counts.data(), data);
  return scores;
}

}  // namespace kvlab::test
