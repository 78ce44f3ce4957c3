#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/ceil_div.h"
#include "kernels/lanes_cpu.h"
#include "policies/kv/scorer/chunk_attention/chunk_attention.h"

namespace kvlab {

namespace {

using LanesOfDoubles = Eigen::Array<double, kLanes, 1>;
constexpr float kLowest = std::numeric_limits<float>::lowest();

// The row becomes exp(row - top); returns its sum.
double exponentials(float* row, std::int32_t n, float top) {
  LanesOfDoubles sum = LanesOfDoubles::Zero();
  for (std::int32_t i = 0; i < n; i += kLanes) {
    const Lanes e = (load(row + i, n - i, kLowest) - top).exp();
    store(e, row + i, n - i);
    sum += e.cast<double>();
  }
  return sum.sum();
}

// From one query head. received: zeros after the last token, up to whole lanes.
void add_received(const ChunkAttention& a, const RowMap& queries, const RowMatrix& keys, Eigen::ArrayXd& received) {
  const std::int32_t count = static_cast<std::int32_t>(keys.rows()), pads = a.padded ? a.chunk_tokens - count : 0;
  RowMatrix z = queries * keys.transpose();
  if (a.scaled) z /= std::sqrt(static_cast<float>(a.kv.head_dim));
  for (std::int32_t t = 0; t < count; ++t) {
    float* const row = z.data() + std::int64_t{t} * count;
    const float top = pads > 0 ? std::max(0.0F, z.row(t).maxCoeff()) : z.row(t).maxCoeff();
    const double share = 1 / (exponentials(row, count, top) + pads * std::exp(-static_cast<double>(top)));
    for (std::int32_t i = 0; i < count; i += kLanes)
      Eigen::Map<LanesOfDoubles>(received.data() + i) += load(row + i, count - i).cast<double>() * share;
  }
  received += static_cast<double>(pads) / a.chunk_tokens;  // a zero query attends evenly
}

}  // namespace

void run_cpu(const ChunkAttention& a) {
  const std::int64_t d = a.kv.head_dim, heads = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const Queries& q = a.queries[a.kv.sequence(r)];
    const std::int32_t begin = a.kv.len[r] - q.count;
    for (std::int32_t at = 0, count = 0; at < q.count; at += count) {
      count = std::min(a.chunk_tokens - (q.first_position + at) % a.chunk_tokens, q.count - at);
      RowMatrix keys(count, d);
      for (std::int32_t i = 0; i < count; ++i) keys.row(i) = Eigen::Map<const Eigen::RowVectorXf>(a.kv.key(r, begin + at + i), d);
      Eigen::ArrayXd received = Eigen::ArrayXd::Zero(ceil_div(count, std::int32_t{kLanes}) * kLanes);
      for (std::int32_t g = 0; g < a.kv.group; ++g) {
        const std::int64_t head = r % a.kv.kv_heads * a.kv.group + g;
        add_received(a, RowMap(q.data + (at * heads + head) * d, count, d, Eigen::OuterStride<>(heads * d)), keys, received);
      }
      for (std::int32_t i = 0; i < count; ++i)
        a.kv.word(a.channel, r, begin + at + i) = std::bit_cast<std::uint32_t>(static_cast<float>(received[i] / a.kv.group));
    }
  }
}

}  // namespace kvlab
