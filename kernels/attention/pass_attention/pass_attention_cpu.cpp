#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "kernels/attention/pass_attention/pass_attention.h"
#include "kernels/lanes_cpu.h"

namespace kvlab {

namespace {

// The sinks, then the chunk's range.
struct Visible {
  std::vector<std::int32_t> token;
  std::int32_t sinks = 0;
};

Visible visible_tokens(const PassAttention& a, std::int32_t row, const PassQueries& chunk) {
  Visible visible;
  const std::int32_t sink_end = std::min(a.sinks, chunk.ctx_begin);
  for (std::int32_t i = 0; i < a.kv.len[row]; ++i) {
    const std::int32_t position = a.kv.position[a.kv.slot(row, i)];
    if (position >= chunk.ctx_end) break;
    if (position >= sink_end && position < chunk.ctx_begin) continue;
    visible.sinks += position < sink_end ? 1 : 0;
    visible.token.push_back(i);
  }
  return visible;
}

// Visible keys, then the pass's own.
RowMatrix gather_keys(const PassAttention& a, std::int32_t row, const PassQueries& chunk, const Visible& visible) {
  const std::int32_t d = a.kv.head_dim, kv_head = row % a.kv.kv_heads;
  const auto held = static_cast<std::int32_t>(visible.token.size());
  RowMatrix keys(held + chunk.queries.count, d);
  for (std::int32_t j = 0; j < held; ++j) std::copy_n(a.kv.key(row, visible.token[static_cast<std::size_t>(j)]), d, keys.row(j).data());
  for (std::int32_t t = 0; t < chunk.queries.count; ++t)
    std::copy_n(chunk.k + (static_cast<std::int64_t>(t) * a.kv.kv_heads + kv_head) * d, d, keys.row(held + t).data());
  return keys;
}

// |W_o^h v_i| of all tokens.
Eigen::ArrayXf value_norms(const PassAttention& a, std::int32_t row, std::int32_t head) {
  const std::int32_t d = a.kv.head_dim, width = a.kv.kv_heads * a.kv.group * d;
  const RowMap columns(a.w_o + static_cast<std::int64_t>(head) * d, a.hidden_dim, d, Eigen::OuterStride<>(width));
  Eigen::ArrayXf norms(a.kv.len[row]);
  for_each_run(a.kv, row, [&](const KvRun& run) {
    const RowMap values(a.kv.v + run.slot * d, run.count, d, Eigen::OuterStride<>(d));
    norms.segment(run.begin, run.count) = (values * columns.transpose()).rowwise().norm().array();
  });
  return norms;
}

float query_factor(const PassAttention& a, const PassQueries& chunk, std::int32_t t) {
  if (a.norms == PassAttention::Norms::kNone) return 1.0F;
  if (a.norms == PassAttention::Norms::kGradient) return chunk.gradient[t];
  const Eigen::Map<const Eigen::VectorXf> hidden(chunk.hidden + static_cast<std::int64_t>(t) * a.hidden_dim, a.hidden_dim);
  return 1.0F / std::max(hidden.norm(), 1e-12F);
}

// Per visible token.
Eigen::ArrayXf reduce_queries(const PassAttention& a, const PassQueries& chunk, const RowMatrix& keys, std::int32_t held,
                              std::int32_t head) {
  constexpr std::int32_t kBlock = 64;
  const std::int32_t d = a.kv.head_dim;
  const std::int64_t stride = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group * d;
  const float scale = 1.0F / std::sqrt(static_cast<float>(d));
  Eigen::ArrayXf reduced = Eigen::ArrayXf::Zero(held);
  RowMatrix z;
  for (std::int32_t t0 = 0; t0 < chunk.queries.count; t0 += kBlock) {
    const std::int32_t count = std::min(kBlock, chunk.queries.count - t0), columns = held + t0 + count;
    const RowMap queries(chunk.queries.data + t0 * stride + static_cast<std::int64_t>(head) * d, count, d, Eigen::OuterStride<>(stride));
    z.noalias() = scale * (queries * keys.topRows(columns).transpose());
    for (std::int32_t t = 0; t < count; ++t) {
      softmax_line(z.row(t).data(), held + t0 + t + 1, columns);
      const Eigen::ArrayXf p = z.row(t).head(held).transpose().array() * query_factor(a, chunk, t0 + t);
      if (a.queries == PassAttention::Reduce::kMax) {
        reduced = reduced.max(p);
      } else {
        reduced += p;
      }
    }
  }
  return reduced;
}

void add_chunk(const PassAttention& a, std::int32_t row, const PassQueries& chunk, const std::vector<Eigen::ArrayXf>& norms) {
  const Visible visible = visible_tokens(a, row, chunk);
  const auto held = static_cast<std::int32_t>(visible.token.size());
  const RowMatrix keys = gather_keys(a, row, chunk, visible);
  const std::int32_t head0 = row % a.kv.kv_heads * a.kv.group;
  std::vector<Eigen::ArrayXf> of_heads(static_cast<std::size_t>(a.kv.group));
  for_each_in_parallel(a.kv.group, [&](std::int64_t g) {
    of_heads[static_cast<std::size_t>(g)] = reduce_queries(a, chunk, keys, held, head0 + static_cast<std::int32_t>(g));
  });
  Eigen::ArrayXf of_group = Eigen::ArrayXf::Zero(held);
  for (std::int32_t g = 0; g < a.kv.group; ++g) {
    Eigen::ArrayXf& of_head = of_heads[static_cast<std::size_t>(g)];
    if (a.norms != PassAttention::Norms::kNone)
      for (std::int32_t j = 0; j < held; ++j) of_head[j] *= norms[static_cast<std::size_t>(g)][visible.token[static_cast<std::size_t>(j)]];
    if (a.group == PassAttention::Group::kMax) {
      of_group = of_group.max(of_head);
    } else {
      of_group += of_head / static_cast<float>(a.kv.group);
    }
  }
  for (std::int32_t j = visible.sinks; j < held; ++j) {
    float& score = a.scores[a.kv.first[row] + visible.token[static_cast<std::size_t>(j)]];
    score = a.queries == PassAttention::Reduce::kMax ? std::max(score, of_group[j]) : score + of_group[j];
  }
}

}  // namespace

void run_cpu(const PassAttention& a) {
  std::fill_n(a.scores, a.kv.total(), 0.0F);
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t i) {
    const auto r = static_cast<std::int32_t>(i);
    std::vector<Eigen::ArrayXf> norms;
    if (a.norms != PassAttention::Norms::kNone)
      for (std::int32_t g = 0; g < a.kv.group; ++g) norms.push_back(value_norms(a, r, r % a.kv.kv_heads * a.kv.group + g));
    for (const PassQueries& chunk : a.pass[static_cast<std::size_t>(a.kv.sequence(r))]) add_chunk(a, r, chunk, norms);
  });
}

}  // namespace kvlab
