#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "policies/kv/selector/product_codes/product_codes.h"

namespace kvlab {

namespace {

// The centers of one part of a row, and how a key is compared with them.
class Part {
 public:
  Part(const float* centers, std::int32_t count, std::int64_t width) : centers_(centers), count_(count), width_(width) {
    for (std::int32_t c = 0; c < count; ++c) half_norm_.push_back(0.5F * lane_dot(centers + c * width, centers + c * width, width));
  }
  [[nodiscard]] std::int32_t nearest(const float* x) const {
    std::int32_t best = 0;
    float most = closeness(x, 0);
    for (std::int32_t c = 1; c < count_; ++c)
      if (const float now = closeness(x, c); now > most) best = c, most = now;
    return best;
  }

 private:
  // Half of |x|^2 less the squared distance.
  [[nodiscard]] float closeness(const float* x, std::int32_t c) const {
    return lane_dot(x, centers_ + c * width_, width_) - half_norm_[static_cast<std::size_t>(c)];
  }
  const float* centers_;
  std::int32_t count_;
  std::int64_t width_;
  std::vector<float> half_norm_;
};

void train_part(const TrainProduct& a, std::int32_t row, std::int32_t part) {
  const std::int64_t width = a.kv.head_dim / a.shape.parts, count = a.centers[row], n = a.end[row] - a.begin[row];
  float* centers = a.center[row] + part * count * width;
  const auto key = [&](std::int64_t i) { return a.kv.key(row, a.begin[row] + static_cast<std::int32_t>(i)) + part * width; };
  for (std::int64_t c = 0; c < count; ++c) std::copy_n(key(c * n / count), width, centers + c * width);
  std::vector<float> sums(static_cast<std::size_t>(count * width));
  std::vector<std::int32_t> members(static_cast<std::size_t>(count));
  for (std::int32_t round = 0; round < a.rounds; ++round) {
    const Part now(centers, a.centers[row], width);
    std::fill(sums.begin(), sums.end(), 0.0F);
    std::fill(members.begin(), members.end(), 0);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t c = now.nearest(key(i));
      ++members[static_cast<std::size_t>(c)];
      for (std::int64_t j = 0; j < width; ++j) sums[static_cast<std::size_t>(c * width + j)] += key(i)[j];
    }
    for (std::int64_t c = 0; c < count; ++c)
      if (const std::int32_t m = members[static_cast<std::size_t>(c)]; m > 0)
        for (std::int64_t j = 0; j < width; ++j)
          centers[c * width + j] = sums[static_cast<std::size_t>(c * width + j)] / static_cast<float>(m);
  }
}

void assign_row(const AssignProduct& a, std::int32_t row) {
  const std::int64_t width = a.kv.head_dim / a.shape.parts;
  for (std::int32_t p = 0; p < a.shape.parts && a.from[row] < a.to[row]; ++p) {
    const Part part(a.center[row] + p * a.centers[row] * width, a.centers[row], width);
    for (std::int32_t i = a.from[row]; i < a.to[row]; ++i)
      a.code[row][std::int64_t{i} * a.shape.parts + p] = part.nearest(a.kv.key(row, i) + p * width);
  }
}

void score_row(const ProductScores& a, std::int32_t row) {
  const std::int64_t begin = a.first[row], n = a.first[row + 1] - begin, d = a.head_dim, width = d / a.shape.parts;
  if (n == 0) return;
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim));
  const Queries& queries = a.queries[row / a.kv_heads];
  const float* q = queries.data + (static_cast<std::int64_t>(queries.count - 1) * a.kv_heads + row % a.kv_heads) * a.group * d;
  const std::int64_t centers = a.centers[row];
  std::vector<float> table(static_cast<std::size_t>(a.shape.parts * centers)), z(static_cast<std::size_t>(n));
  std::fill_n(a.scores + begin, n, 0.0F);
  for (std::int64_t h = 0; h < a.group; ++h) {
    for (std::int64_t p = 0; p < a.shape.parts; ++p)
      for (std::int64_t c = p * centers; c < (p + 1) * centers; ++c)
        table[static_cast<std::size_t>(c)] = scale * lane_dot(q + h * d + p * width, a.center[row] + c * width, width);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int32_t* code = a.code[row] + (a.begin[row] + i) * a.shape.parts;
      float sum = 0.0F;
      for (std::int64_t p = 0; p < a.shape.parts; ++p) sum += table[static_cast<std::size_t>(p * centers + code[p])];
      z[static_cast<std::size_t>(i)] = sum;
    }
    const float top = *std::max_element(z.begin(), z.end());
    float total = 0.0F;
    for (float& x : z) total += x = std::exp(x - top);
    for (std::int64_t i = 0; i < n; ++i) a.scores[begin + i] += z[static_cast<std::size_t>(i)] / total;
  }
}

}  // namespace

void run_cpu(const TrainProduct& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t r) {
    const auto row = static_cast<std::int32_t>(r);
    for (std::int32_t p = 0; p < a.shape.parts && a.begin[row] < a.end[row]; ++p) train_part(a, row, p);
  });
}

void run_cpu(const AssignProduct& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t r) { assign_row(a, static_cast<std::int32_t>(r)); });
}

void run_cpu(const ProductScores& a) {
  for_each_in_parallel(a.num_rows, [&](std::int64_t r) { score_row(a, static_cast<std::int32_t>(r)); });
}

}  // namespace kvlab
