#include "policies/kv/forward_passes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "policies/kv/needs.h"

namespace kvlab {

namespace {

std::int32_t window_tokens(std::int32_t prompt_tokens, const PassSizes& sizes) { return std::min(prompt_tokens, sizes.window_tokens); }

// Full windows of a prompt; 1 if it is shorter than a window.
std::int32_t window_count(std::int32_t prompt_tokens, const PassSizes& sizes) {
  return prompt_tokens == 0 ? 0 : prompt_tokens / window_tokens(prompt_tokens, sizes);
}

}  // namespace

bool runs_after_chunks(const std::string& pass) { return pass == passes::kTemplate || pass == passes::kWindows; }

PromptWindows typical_windows(std::span<const std::int32_t> ids, const PassSizes& sizes) {
  const auto n = static_cast<std::int32_t>(ids.size()), each = window_tokens(n, sizes), count = window_count(n, sizes);
  std::vector<std::map<std::int32_t, double>> counts(static_cast<std::size_t>(count));
  std::map<std::int32_t, double> having;
  for (std::int32_t w = 0; w < count; ++w) {
    auto& own = counts[static_cast<std::size_t>(w)];
    for (std::int32_t i = 0; i < each; ++i) ++own[ids[static_cast<std::size_t>(w * each + i)]];
    for (const auto& [id, times] : own) ++having[id];
  }
  std::map<std::int32_t, double> mean;
  for (auto& own : counts) {
    double squares = 0;
    for (auto& [id, times] : own) times *= std::log(count / having[id]), squares += times * times;
    for (auto& [id, times] : own) mean[id] += times /= squares > 0 ? std::sqrt(squares) : 1;
  }
  std::vector<double> likeness(counts.size(), 0);
  for (std::size_t w = 0; w < counts.size(); ++w)
    for (const auto& [id, times] : counts[w]) likeness[w] += times * mean[id];
  std::vector<std::int32_t> order(counts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return likeness[static_cast<std::size_t>(a)] > likeness[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(std::min(count, sizes.windows)));
  std::sort(order.begin(), order.end());
  for (std::int32_t& w : order) w *= each;
  return {order, each};
}

std::vector<PassShape> pass_shapes(const std::string& name, std::int32_t prompt_tokens, std::int32_t cached, const PassSizes& sizes) {
  if (name == passes::kTemplate) return {{sizes.template_tokens, cached, 0, cached}};
  if (name == passes::kWindows) {
    const std::int32_t windows = std::min(sizes.windows, window_count(prompt_tokens, sizes));
    return {{windows * window_tokens(prompt_tokens, sizes), cached, 0, cached}};
  }
  if (name == passes::kLookahead) return {{sizes.lookahead_tokens, prompt_tokens, 0, prompt_tokens}};
  if (name == passes::kRepeat) return {{prompt_tokens, prompt_tokens, 0, prompt_tokens}};
  if (name != passes::kReconstruct && !has_backward(name))
    throw InputError("the extra pass '" + name +
                     "' has no cost; known: lookahead, reconstruct, reconstruct_gradient, repeat, template, windows");
  const std::int32_t step = has_backward(name) ? sizes.gradient_chunk_tokens : sizes.chunk_tokens;
  std::vector<PassShape> chunks;
  std::int32_t position = prompt_tokens;
  for (std::int32_t begin = 0; begin < prompt_tokens; begin += step) {
    const std::int32_t end = std::min(begin + step, prompt_tokens), count = sizes.instruction_tokens + end - begin;
    chunks.push_back({count, position, begin, end});
    position += count;
  }
  return chunks;
}

bool has_backward(const std::string& name) { return name == passes::kReconstructGradient; }

}  // namespace kvlab
