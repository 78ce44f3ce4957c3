#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "calibrate/cases/op_case.h"
#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"
#include "kernels/model/layer/layer.h"
#include "kernels/model/sampling/sampling.h"

// Float64 references.
namespace kvlab {

inline std::vector<float> read_at(TimedDevice& device, const void* base, std::int64_t at, std::int64_t n, ElementType type) {
  return read_floats(device, static_cast<const char*>(base) + at * element_bytes(type), n, type);
}
inline double wide(float x) { return static_cast<double>(x); }

inline bool linear_matches(TimedDevice& device, const Linear& a, const Run& run) {
  run();
  const ElementType type = a.type;
  RelativeError error;
  for (const std::int64_t t : sampled(a.tokens, 4)) {
    const std::vector<float> x = read_at(device, a.x, t * a.in_dim, a.in_dim, type);
    for (const std::int64_t o : sampled(a.out_dim, 16)) {
      const std::vector<float> w = read_at(device, a.w, o * a.in_dim, a.in_dim, type);
      double sum = a.bias == nullptr ? 0 : wide(read_at(device, a.bias, o, 1, type)[0]);
      for (std::size_t i = 0; i < x.size(); ++i) sum += wide(x[i]) * wide(w[i]);
      error.add(wide(read_at(device, a.y, t * a.out_dim + o, 1, a.y_is_f32 ? ElementType::kF32 : type)[0]), sum);
    }
  }
  return error.below(tolerance_of(type));
}

inline bool rmsnorm_matches(TimedDevice& device, const RmsNorm& a, const Run& run) {
  const ElementType type = a.type;
  const std::vector<std::int64_t> rows = sampled(a.tokens, 8);
  std::vector<std::vector<float>> in, before;
  for (const std::int64_t t : rows) {
    in.push_back(read_at(device, a.in, t * a.width, a.width, type));
    before.push_back(a.residual == nullptr ? std::vector<float>(in.back().size(), 0.0F)
                                           : read_at(device, a.residual, t * a.width, a.width, type));
  }
  run();
  const std::vector<float> weight = read_at(device, a.weight, 0, a.width, type);
  RelativeError error;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::vector<float> out = read_at(device, a.out, rows[r] * a.width, a.width, type);
    double squares = 0;
    for (std::size_t i = 0; i < out.size(); ++i) squares += std::pow(wide(in[r][i]) + wide(before[r][i]), 2);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(a.width) + wide(a.epsilon));
    for (std::size_t i = 0; i < out.size(); ++i) error.add(wide(out[i]), (wide(in[r][i]) + wide(before[r][i])) * scale * wide(weight[i]));
  }
  return error.below(tolerance_of(type));
}

// Heads [heads, head_dim] before and after; cos and sin [head_dim / 2].
inline void add_rotation_error(const std::vector<float>& before, const std::vector<float>& cos, const std::vector<float>& sin,
                               const std::vector<float>& after, RelativeError& error) {
  const std::size_t half = cos.size();
  for (std::size_t i = 0; i < before.size() / 2; ++i) {
    const std::size_t c = i % half, at = i / half * 2 * half + c, other = at + half;
    error.add(wide(after[at]), wide(before[at]) * wide(cos[c]) - wide(before[other]) * wide(sin[c]));
    error.add(wide(after[other]), wide(before[other]) * wide(cos[c]) + wide(before[at]) * wide(sin[c]));
  }
}

inline bool rope_matches(TimedDevice& device, const Rope& a, const Run& run) {
  const ElementType type = a.type;
  const std::int64_t half = a.head_dim / 2, each = a.heads * a.head_dim;
  const std::vector<std::int64_t> rows = sampled(a.tokens, 8);
  std::vector<std::vector<float>> before;
  for (const std::int64_t t : rows) before.push_back(read_at(device, a.out, t * each, each, type));
  run();
  RelativeError error;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    add_rotation_error(before[r], read_floats(device, a.cos + rows[r] * half, half), read_floats(device, a.sin + rows[r] * half, half),
                       read_at(device, a.out, rows[r] * each, each, type), error);
  }
  return error.below(tolerance_of(type));
}
// [tokens, head_dim / 2].
struct Angles {
  std::vector<float> cos, sin;
};
inline Angles angles(std::int64_t n) {
  Angles a;
  for (std::int64_t i = 0; i < n; ++i) {
    const double angle = 0.1 * static_cast<double>(i % 1009);
    a.cos.push_back(static_cast<float>(std::cos(angle))), a.sin.push_back(static_cast<float>(std::sin(angle)));
  }
  return a;
}

inline bool silu_mul_matches(TimedDevice& device, const SiluMul& a, const Run& run) {
  run();
  const ElementType type = a.type;
  const std::int64_t stride = a.in_stride != 0 ? a.in_stride : a.width;
  RelativeError error;
  for (const std::int64_t t : sampled(a.tokens, 8)) {
    const std::vector<float> gate = read_at(device, a.gate, t * stride, a.width, type),
                             up = read_at(device, a.up, t * stride, a.width, type);
    const std::vector<float> out = read_at(device, a.out, t * a.width, a.width, type);
    for (std::size_t i = 0; i < out.size(); ++i) error.add(wide(out[i]), wide(gate[i]) / (1 + std::exp(-wide(gate[i]))) * wide(up[i]));
  }
  return error.below(tolerance_of(type));
}

inline bool embedding_matches(TimedDevice& device, const Embedding& a, const Run& run) {
  run();
  const std::vector<std::int32_t> ids = read_values(device, a.ids, a.tokens);
  for (const std::int64_t t : sampled(a.tokens, 64)) {
    const std::vector<float> out = read_at(device, a.out, t * a.width, a.width, a.type);
    if (out != read_at(device, a.table, nth(ids, t) * a.width, a.width, a.type)) return false;
  }
  return true;
}
inline std::vector<std::int32_t> random_ids(Buffers& b, std::int64_t n, std::int64_t below) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(static_cast<std::int32_t>(b.draw() % static_cast<std::uint64_t>(below)));
  return ids;
}

// Greedy.
inline bool sampling_matches(TimedDevice& device, const Sampling& a, const Run& run) {
  run();
  const std::vector<std::int32_t> token = read_values(device, a.token, a.rows);
  for (const std::int64_t r : sampled(a.rows, 16)) {
    const std::vector<float> row = read_at(device, a.logits, r * a.vocabulary, a.vocabulary, a.type);
    const std::int32_t t = nth(token, r);
    if (t < 0 || t >= a.vocabulary || *std::max_element(row.begin(), row.end()) != nth(row, t)) return false;
  }
  return true;
}

// One query of one head; keys and values [keys, head_dim].
inline void add_attention_error(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v, std::int64_t keys,
                                double scale, const std::vector<float>& out, RelativeError& error) {
  const std::size_t d = q.size();
  std::vector<double> logit(static_cast<std::size_t>(keys)), mean(d);
  double most = -1e300, total = 0;
  for (std::size_t i = 0; i < logit.size(); ++i) {
    double sum = 0;
    for (std::size_t c = 0; c < d; ++c) sum += wide(q[c]) * wide(k[i * d + c]);
    logit[i] = scale * sum;
    most = std::max(most, logit[i]);
  }
  for (std::size_t i = 0; i < logit.size(); ++i) {
    const double p = std::exp(logit[i] - most);
    total += p;
    for (std::size_t c = 0; c < d; ++c) mean[c] += p * wide(v[i * d + c]);
  }
  for (std::size_t c = 0; c < d; ++c) error.add(wide(out[c]), mean[c] / total);
}

// Dense (AttentionPrefill) or over listed keys (SparsePrefill); draws q, k and v.
template <class Prefill>
void take_prefill_operands(Buffers& activations, const Shape& s, Prefill& a) {
  a.new_tokens = s.at("new"), a.kv_before = s.at("before"), a.q_heads = s.at("q_heads"), a.kv_heads = s.at("kv_heads");
  a.head_dim = s.at("head_dim");
  const std::int64_t q = a.new_tokens * a.q_heads * a.head_dim, kv = (a.kv_before + a.new_tokens) * a.kv_heads * a.head_dim;
  a.q = activations.floats(q), a.k = activations.floats(kv), a.v = activations.floats(kv), a.out = activations.template room<float>(q);
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
}

// Query t of head h over the keys at positions `seen`.
template <class Prefill>
void add_prefill_error(TimedDevice& device, const Prefill& a, std::int64_t t, std::int64_t h, std::span<const std::int64_t> seen,
                       RelativeError& error) {
  const std::int64_t d = a.head_dim, g = h * a.kv_heads / a.q_heads, at = (t * a.q_heads + h) * d;
  std::vector<float> k, v;
  for (const std::int64_t i : seen) {
    const std::vector<float> key = read_floats(device, a.k + (i * a.kv_heads + g) * d, d),
                             value = read_floats(device, a.v + (i * a.kv_heads + g) * d, d);
    k.insert(k.end(), key.begin(), key.end()), v.insert(v.end(), value.begin(), value.end());
  }
  add_attention_error(read_floats(device, a.q + at, d), k, v, std::ssize(seen), wide(a.scale), read_floats(device, a.out + at, d), error);
}

// MInference-like: per query head and block its own block, the first, and `percent` of the others at random.
inline SparseKeys draw_sparse_lists(Buffers& b, std::int64_t new_tokens, std::int64_t kv_before, std::int64_t q_heads,
                                    std::int64_t percent) {
  SparseKeys keys;
  const std::int64_t query_blocks = kvlab::query_blocks(new_tokens, kv_before, keys.block);
  std::vector<std::int64_t> first{0};
  std::vector<std::int32_t> blocks;
  for (std::int64_t list = 0; list < q_heads * query_blocks; ++list) {
    const std::int64_t own = kv_before / keys.block + list % query_blocks;
    for (std::int64_t i = 0; i <= own; ++i)
      if (i == 0 || i == own || static_cast<std::int64_t>(b.draw() % 100) < percent) blocks.push_back(static_cast<std::int32_t>(i));
    first.push_back(static_cast<std::int64_t>(blocks.size()));
  }
  keys.block_first = b.host(std::move(first)), keys.blocks = b.host(std::move(blocks));
  return keys;
}

// For head `head` at the chunk's token t.
inline std::vector<std::int64_t> seen_positions(const SparseKeys& keys, std::int64_t query_blocks, std::int64_t kv_before,
                                                std::int64_t head, std::int64_t t) {
  std::vector<std::int64_t> seen;
  const std::int64_t own = kv_before + t, list = head * query_blocks + own / keys.block - kv_before / keys.block;
  for (const std::int64_t block : listed_blocks(keys, list))
    for (std::int64_t i = block * keys.block; i < std::min((block + 1) * keys.block, own + 1); ++i) seen.push_back(i);
  return seen;
}

inline const Axes kPrefillAxes{{"new", "m"}, {"before", "n"}, {"q_heads", "q"}, {"kv_heads", "kv"}, {"head_dim", "d"}};

inline Axes sparse_axes() {
  Axes axes = kPrefillAxes;
  axes.emplace_back("percent", "s");
  return axes;
}

// The last tokens of each sequence are the new ones.
inline bool append_matches(TimedDevice& device, const AppendRows& a, const Run& run) {
  run();
  const std::int64_t d = a.kv.head_dim, stride = a.token_stride != 0 ? a.token_stride : a.kv.kv_heads * d;
  for (const std::int64_t r : sampled(a.kv.num_rows, 16)) {
    const auto row = static_cast<std::int32_t>(r);
    const AppendedTokens& news = nth(a.news, a.kv.sequence(row));
    for (const std::int64_t i : sampled(news.count, 3)) {
      const std::int64_t slot = a.kv.slot(row, a.kv.len[row] - news.count + static_cast<std::int32_t>(i)) * d;
      const std::int64_t from = i * stride + r % a.kv.kv_heads * d;
      if (read_at(device, a.kv.k, slot, d, a.kv.type) != read_at(device, news.k, from, d, a.type)) return false;
      if (read_at(device, a.kv.v, slot, d, a.kv.type) != read_at(device, news.v, from, d, a.type)) return false;
    }
  }
  return true;
}

}  // namespace kvlab
