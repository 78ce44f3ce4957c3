#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/lanes_cpu.h"
#include "kernels/model/layer/layer.h"

namespace kvlab {

namespace {

using ConstRow = Eigen::Map<const Eigen::ArrayXf>;
using Row = Eigen::Map<Eigen::ArrayXf>;

constexpr std::int64_t kTaskTokens = 128;

// part(first, count) for blocks of tokens.
template <class Part>
void for_token_blocks(std::int64_t tokens, Part&& part) {
  for_each_in_parallel(ceil_div(tokens, kTaskTokens), [&](std::int64_t i) {
    const std::int64_t first = i * kTaskTokens;
    part(first, std::min(kTaskTokens, tokens - first));
  });
}

}  // namespace

void run_cpu(const LinearGradient& a) {
  const Eigen::Map<const RowMatrix> w(a.w, a.out_dim, a.in_dim);
  for_token_blocks(a.tokens, [&](std::int64_t first, std::int64_t count) {
    const Eigen::Map<const RowMatrix> dy(a.dy + first * a.out_dim, count, a.out_dim);
    Eigen::Map<RowMatrix>(a.dx + first * a.in_dim, count, a.in_dim).noalias() += dy * w;
  });
}

void run_cpu(const RmsNormGradient& a) {
  const ConstRow weight(a.weight, a.width);
  const auto width = static_cast<float>(a.width);
  for_token_blocks(a.tokens, [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t t = first; t < first + count; ++t) {
      const ConstRow x(a.x + t * a.width, a.width), dy(a.dy + t * a.width, a.width);
      const float r = std::sqrt(x.square().sum() / width + a.epsilon), along = (weight * dy * x).sum() / (width * r * r);
      Row(a.dx + t * a.width, a.width) += (weight * dy - x * along) / r;
    }
  });
}

void run_cpu(const SiluMulGradient& a) {
  for_token_blocks(a.tokens, [&](std::int64_t first, std::int64_t count) {
    const std::int64_t at = first * a.width, size = count * a.width;
    const ConstRow dy(a.dy + at, size);
    Row gate(a.gate + at, size), up(a.up + at, size);
    for (std::int64_t i = 0; i < size; ++i) {
      const float sigmoid = 1.0F / (1.0F + std::exp(-gate[i])), silu = gate[i] * sigmoid;
      gate[i] = dy[i] * up[i] * (sigmoid + silu * (1.0F - sigmoid));
      up[i] = dy[i] * silu;
    }
  });
}

}  // namespace kvlab
