#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/lanes_cpu.h"
#include "kernels/model/layer/layer.h"

namespace kvlab {

namespace {

// f(t) on all cores, for tokens of `floats` numbers.
template <class F>
void for_each_token(std::int64_t tokens, std::int64_t floats, F&& f) {
  constexpr std::int64_t kTaskFloats = 1 << 15;
  const std::int64_t block = std::max<std::int64_t>(1, kTaskFloats / std::max<std::int64_t>(1, floats));
  for_each_in_parallel(ceil_div(tokens, block), [&](std::int64_t i) {
    for (std::int64_t t = i * block; t < std::min(tokens, (i + 1) * block); ++t) f(t);
  });
}

float mean_square(const float* x, std::int64_t width) {
  Lanes sum = Lanes::Zero();
  for (std::int64_t i = 0; i < width; i += kLanes) sum += load(x + i, width - i).square();
  return sum.sum() / static_cast<float>(width);
}

void norm(const RmsNorm& a, std::int64_t t) {
  using Row = Eigen::Map<Eigen::ArrayXf>;
  using ConstRow = Eigen::Map<const Eigen::ArrayXf>;
  const ConstRow weight(static_cast<const float*>(a.weight), a.width), in(static_cast<const float*>(a.in) + t * a.width, a.width);
  Row out(static_cast<float*>(a.out) + t * a.width, a.width);
  if (a.residual != nullptr) {
    Row residual(static_cast<float*>(a.residual) + t * a.width, a.width);
    residual += in;
    out = residual;
  } else {
    out = in;
  }
  out *= weight / std::sqrt(mean_square(out.data(), a.width) + a.epsilon);
}

void rotate(const Rope& a, std::int64_t t) {
  const std::int64_t half = a.head_dim / 2;
  const float* const cos = a.cos + t * half;
  const float* const sin = a.sin + t * half;
  for (std::int64_t h = 0; h < a.heads; ++h) {
    float* const low = static_cast<float*>(a.out) + (t * a.heads + h) * a.head_dim;
    float* const high = low + half;
    for (std::int64_t i = 0; i < half; ++i) {
      const float x = low[i], y = high[i];
      low[i] = x * cos[i] - y * sin[i];
      high[i] = y * cos[i] + x * sin[i];
    }
  }
}

}  // namespace

void run_cpu(const Embedding& a) {
  const auto* const table = static_cast<const float*>(a.table);
  for (std::int64_t t = 0; t < a.tokens; ++t) std::copy_n(table + a.ids[t] * a.width, a.width, static_cast<float*>(a.out) + t * a.width);
}

void run_cpu(const RmsNorm& a) {
  for_each_token(a.tokens, a.width, [&](std::int64_t t) { norm(a, t); });
}

void run_cpu(const Rope& a) {
  for_each_token(a.tokens, a.heads * a.head_dim, [&](std::int64_t t) { rotate(a, t); });
}

void run_cpu(const SiluMul& a) {
  constexpr std::int64_t kTask = 1 << 14;
  const std::int64_t size = a.tokens * a.width;
  const auto *const gates = static_cast<const float*>(a.gate), *const ups = static_cast<const float*>(a.up);
  for_each_in_parallel(ceil_div(size, kTask), [&](std::int64_t task) {
    for (std::int64_t i = task * kTask; i < std::min(size, (task + 1) * kTask); i += kLanes) {
      const std::int64_t n = size - i;
      const Lanes gate = load(gates + i, n), up = load(ups + i, n);
      store(gate / (1.0F + (-gate).exp()) * up, static_cast<float*>(a.out) + i, n);
    }
  });
}

}  // namespace kvlab
