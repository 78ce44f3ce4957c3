#include "sim/replay/reference.h"

#include <algorithm>
#include <numeric>

#include "base/parallel.h"
#include "kernels/attention/attend/attend.h"
#include "sim/replay/trace_observer.h"

namespace kvlab {

namespace {

// Largest probabilities per query head; ties to the lower position.
std::vector<std::int32_t> most_attended(const AttentionReference::Step& step, std::int32_t q_heads, std::int32_t top_k) {
  const std::int32_t k = std::min(top_k, step.tokens);
  std::vector<std::int32_t> top(static_cast<std::size_t>(q_heads) * static_cast<std::size_t>(k));
  for_each_in_parallel(q_heads, [&](std::int64_t h) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(step.tokens));
    std::iota(order.begin(), order.end(), 0);
    const float* p = step.probability.data() + h * step.tokens;
    const auto better = [p](std::int32_t a, std::int32_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; };
    std::partial_sort(order.begin(), order.begin() + k, order.end(), better);
    std::copy_n(order.begin(), k, top.begin() + h * k);
  });
  return top;
}

}  // namespace

AttentionReference full_attention(const AttentionTrace& trace, std::int32_t top_k) {
  AttentionReference reference;
  reference.num_steps = trace.num_tokens - trace.prompt_tokens;
  reference.top_k = top_k;
  const ModelShape model = shape_of(trace, 2);
  const std::int64_t kv_width = static_cast<std::int64_t>(model.kv_heads) * model.head_dim,
                     q_width = static_cast<std::int64_t>(model.q_heads) * model.head_dim;
  for (const LayerTensors& l : trace.layers) {
    KvStore store(model, 1, 0, true);
    store.reserve(trace.num_tokens);
    store.append(0, l.k.data(), l.v.data(), trace.prompt_tokens, 0);
    for (std::int32_t t = trace.prompt_tokens; t < trace.num_tokens; ++t) {
      store.append(0, l.k.data() + t * kv_width, l.v.data() + t * kv_width, 1, t);
      AttentionReference::Step step;
      step.tokens = t + 1;
      step.probability.resize(static_cast<std::size_t>(model.q_heads) * static_cast<std::size_t>(step.tokens));
      step.output.resize(static_cast<std::size_t>(q_width));
      Segment all;
      all.kv = store.rows();
      const Queries query{l.q.data() + t * q_width, 1, t};
      float* out = step.output.data();
      std::vector<float*> lines;
      for (std::int32_t h = 0; h < model.kv_heads; ++h)
        lines.push_back(step.probability.data() + static_cast<std::int64_t>(h) * model.group() * step.tokens);
      run_cpu(Attend{&all, 1, &query, &out, nullptr, lines.data()});
      step.top = most_attended(step, model.q_heads, top_k);
      reference.steps.push_back(std::move(step));
    }
  }
  return reference;
}

}  // namespace kvlab
