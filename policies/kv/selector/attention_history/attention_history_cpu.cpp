#include <algorithm>
#include <cmath>
#include <vector>

#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "policies/kv/selector/attention_history/attention_history.h"

namespace kvlab {

namespace {

// Tokens of the row that query `t` of its sequence sees, ascending.
std::vector<std::int32_t> tokens_seen(const PushBlockAttention& a, std::int32_t row, std::int32_t t) {
  const std::int32_t position = a.queries[a.kv.sequence(row)].first_position + t;
  std::vector<std::int32_t> tokens;
  const std::int64_t n = a.lists_tokens ? a.index_first[row + 1] - a.index_first[row] : a.kv.len[row];
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t token = a.lists_tokens ? a.index[a.index_first[row] + i] : static_cast<std::int32_t>(i);
    if (a.kv.position[a.kv.slot(row, token)] <= position) tokens.push_back(token);
  }
  return tokens;
}

void push_row(const PushBlockAttention& a, std::int32_t row, std::int32_t t, std::int32_t slot) {
  const Queries& queries = a.queries[a.kv.sequence(row)];
  const std::int64_t d = a.kv.head_dim, group = a.kv.group;
  const float* const q = queries.data + ((std::int64_t{t} * a.kv.kv_heads + row % a.kv.kv_heads) * group) * d;
  const std::vector<std::int32_t> tokens = tokens_seen(a, row, t);
  float* const out = a.history[row];
  for (std::int32_t b = 0; b < ceil_div(a.kv.len[row], a.block_tokens); ++b) out[std::int64_t{b} * a.rows + slot] = 0.0F;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  std::vector<float> z(tokens.size());
  for (std::int64_t h = 0; h < group && !tokens.empty(); ++h) {
    for (std::size_t i = 0; i < z.size(); ++i) z[i] = scale * lane_dot(q + h * d, a.kv.key(row, tokens[i]), d);
    const float top = *std::max_element(z.begin(), z.end());
    float sum = 0.0F;
    for (float& x : z) sum += x = std::exp(x - top);
    for (std::size_t i = 0; i < z.size(); ++i) {
      float& most = out[std::int64_t{tokens[i] / a.block_tokens} * a.rows + slot];
      most = std::max(most, z[i] / sum);
    }
  }
}

// A plane [rows, blocks] with a border of zeros.
class PaddedPlane {
 public:
  PaddedPlane(std::int64_t rows, std::int64_t blocks) : width_(blocks + 2), x_(static_cast<std::size_t>((rows + 2) * width_), 0.0F) {}
  float* row(std::int64_t t) { return x_.data() + (t + 1) * width_ + 1; }
  [[nodiscard]] const float* row(std::int64_t t) const { return x_.data() + (t + 1) * width_ + 1; }

 private:
  std::int64_t width_;
  std::vector<float> x_;
};

// Adds the 3 x 3 convolution of `in` at query t to out [blocks].
void add_convolution(const PaddedPlane& in, std::int64_t t, const float* w, std::int64_t blocks, float* out) {
  for (std::int64_t i = 0; i < 9; ++i) {
    const float* const x = in.row(t + i / 3 - 1) + i % 3 - 1;
    for (std::int64_t b = 0; b < blocks; ++b) out[b] += w[i] * x[b];
  }
}

void predict_by_network(const PredictBlocks& a, const PaddedPlane& image, std::int64_t blocks, float* scores) {
  std::vector<PaddedPlane> middle(16, PaddedPlane(a.rows, blocks));
  for (std::int64_t c = 0; c < 16; ++c)
    for (std::int64_t t = 0; t < a.rows; ++t) {
      float* const out = middle[static_cast<std::size_t>(c)].row(t);
      std::fill_n(out, blocks, a.b1[c]);
      add_convolution(image, t, a.w1 + c * 9, blocks, out);
      for (std::int64_t b = 0; b < blocks; ++b) out[b] = std::max(0.0F, out[b]);
    }
  std::fill_n(scores, blocks, a.b3[0]);
  std::vector<float> sum(static_cast<std::size_t>(blocks)), line(sum.size());
  for (std::int64_t c = 0; c < 32; ++c) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (std::int64_t t = 0; t < a.rows; ++t) {
      std::fill(line.begin(), line.end(), a.b2[c]);
      for (std::int64_t i = 0; i < 16; ++i)
        add_convolution(middle[static_cast<std::size_t>(i)], t, a.w2 + (c * 16 + i) * 9, blocks, line.data());
      for (std::size_t b = 0; b < sum.size(); ++b) sum[b] += std::max(0.0F, line[b]);
    }
    for (std::size_t b = 0; b < sum.size(); ++b) scores[b] += a.w3[c] * sum[b] / static_cast<float>(a.rows);
  }
}

}  // namespace

void run_cpu(const PushBlockAttention& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t i) {
    const auto r = static_cast<std::int32_t>(i);
    const std::int32_t count = a.queries[a.kv.sequence(r)].count;
    if (count == 0) return;
    if (a.fresh[r] == 1) std::fill_n(a.history[r], std::int64_t{ceil_div(a.kv.len[r], a.block_tokens)} * a.rows, 0.0F);
    for (std::int32_t t = std::max(0, count - a.rows); t < count; ++t) push_row(a, r, t, (a.start[r] + t) % a.rows);
  });
}

void run_cpu(const PredictBlocks& a) {
  for_each_in_parallel(a.num_rows, [&](std::int64_t r) {
    const std::int64_t blocks = a.first[r + 1] - a.first[r];
    if (blocks == 0) return;
    PaddedPlane image(a.rows, blocks);
    for (std::int64_t t = 0; t < a.rows; ++t)  // the oldest query first
      for (std::int64_t b = 0; b < blocks; ++b) image.row(t)[b] = a.history[r][(a.begin[r] + b) * a.rows + (a.next[r] + t) % a.rows];
    float* const scores = a.scores + a.first[r];
    if (a.has_network) {
      predict_by_network(a, image, blocks, scores);
      return;
    }
    std::fill_n(scores, blocks, 0.0F);
    for (std::int64_t t = 0; t < a.rows; ++t)
      for (std::int64_t b = 0; b < blocks; ++b) scores[b] = a.decay * scores[b] + image.row(t)[b];
  });
}

}  // namespace kvlab
