#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/dot_cpu.h"
#include "kernels/page_scores/page_scores.h"

namespace kvlab {

namespace {

float product(const PageScores& a, const float* q, const float* summary) {
  const std::int64_t d = a.head_dim;
  if (a.kind == PageScores::Kind::kDot) return lane_dot(q, summary, d);
  Lanes sum = Lanes::Zero();
  for (std::int64_t c = 0; c < d; c += kLanes) {
    const Lanes x = load(q + c, d - c), low = x * load(summary + c, d - c), high = x * load(summary + d + c, d - c);
    sum += a.kind == PageScores::Kind::kBound ? Lanes(low.max(high)) : Lanes(a.max_share * high + (1.0F - a.max_share) * low);
  }
  return sum.sum();
}

void softmax(const PageScores& a, std::int32_t row, std::vector<float>& z) {
  const float top = *std::max_element(z.begin(), z.end());
  float sum = 0.0F;
  for (std::size_t i = 0; i < z.size(); ++i) {
    z[i] = std::exp(z[i] - top);
    const std::size_t unit = a.lists_units ? static_cast<std::size_t>(a.unit[a.first[row] + static_cast<std::int64_t>(i)]) : i;
    sum += a.weighs_sizes ? static_cast<float>(a.sizes[row][unit]) * z[i] : z[i];
  }
  for (float& x : z) x /= sum;
}

void reduce(const PageScores& a, std::int32_t row, std::int32_t head, const std::vector<float>& z) {
  const auto n = static_cast<std::int64_t>(z.size());
  if (a.heads == PageScores::Heads::kEach) {
    std::copy(z.begin(), z.end(), a.scores + a.group * a.first[row] + head * n);
    return;
  }
  float* out = a.scores + a.first[row];
  for (std::int64_t i = 0; i < n; ++i) {
    const float x =
        a.heads == PageScores::Heads::kMean ? z[static_cast<std::size_t>(i)] / static_cast<float>(a.group) : z[static_cast<std::size_t>(i)];
    if (head == 0) {
      out[i] = x;
    } else {
      out[i] = a.heads == PageScores::Heads::kMax ? std::max(out[i], x) : out[i] + x;
    }
  }
}

}  // namespace

void run_cpu(const PageScores& a) {
  const std::int64_t d = a.head_dim, width = a.kind == PageScores::Kind::kDot ? d : 2 * d;
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim));
  std::vector<float> z;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t begin = a.first[r];
    z.resize(static_cast<std::size_t>(a.first[r + 1] - begin));
    if (z.empty()) continue;
    const Queries& queries = a.queries[r / a.kv_heads];
    const float* q0 = queries.data + (static_cast<std::int64_t>(queries.count - 1) * a.kv_heads + r % a.kv_heads) * a.group * d;
    for (std::int32_t h = 0; h < a.group; ++h) {
      for (std::size_t i = 0; i < z.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        z[i] = scale * product(a, q0 + h * d, a.summaries[r] + (a.lists_units ? a.unit[begin + at] : at) * width);
      }
      if (a.softmax) softmax(a, r, z);
      reduce(a, r, h, z);
    }
  }
}

}  // namespace kvlab
