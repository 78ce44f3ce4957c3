// Norms, likeness, window attention, smoothing.
#include <algorithm>
#include <cmath>

#include "calibrate/cases/op_case.h"
#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/score/anchor_cosine_op.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/token_norms_op.h"

namespace kvlab {

namespace {

// On a GPU at least 256 MiB of keys.
const PolicyShapes kKeyShapes{{{1, 4096, 2, 64}, {16, 2048, 2, 64}}, {{2, 19, 2, 16}}, {{1, 8192, 8, 128}, {64, 4096, 8, 128}}};

bool norms_match(TimedDevice& device, const TokenNorms& a, const Run& run) {
  run();
  RelativeError error;
  const std::int64_t d = a.kv.head_dim;
  for (const std::int64_t r : sampled(a.kv.num_rows, 4)) {
    const auto row = static_cast<std::int32_t>(r);
    const std::vector<float> x = row_vectors(device, a.kv, row, a.of == TokenNorms::Of::kValue);
    const std::vector<float> out = read_floats(device, a.out + a.kv.first[r], a.kv.len[r]);
    for (std::int64_t i = 0; i < a.kv.len[r]; ++i) error.add(nth(out, i), std::sqrt(dot(&nth(x, i * d), &nth(x, i * d), d)));
  }
  return error.below(tolerance_of(ElementType::kF32));
}

void add_token_norms(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    TokenNorms a;
    a.kv = paged_rows(b, rows_spec(s));
    a.out = b.room<float>(a.kv.total());
    return a;
  };
  add_policy_families<TokenNorms>(name_of(OpId::kTokenNorms), kRowAxes, kKeyShapes, build, norms_match, families);
}

bool anchors_match(TimedDevice& device, const AnchorCosine& a, const Run& run) {
  run();
  RelativeError error;
  const std::int64_t d = a.kv.head_dim;
  for (const std::int64_t r : sampled(a.kv.num_rows, 4)) {
    const std::vector<float> k = row_vectors(device, a.kv, r, false);
    std::vector<double> anchor(static_cast<std::size_t>(d));
    for (std::int64_t i = a.begin[r]; i < a.end[r]; ++i) {
      const float* key = &nth(k, i * d);
      const double norm = std::sqrt(dot(key, key, d)) * static_cast<double>(a.end[r] - a.begin[r]);
      for (std::int64_t c = 0; c < d; ++c) nth(anchor, c) += static_cast<double>(key[c]) / norm;
    }
    double length = 0;
    for (const double x : anchor) length += x * x;
    const std::vector<float> out = read_floats(device, a.out + a.kv.first[r], a.kv.len[r]);
    for (std::int64_t i = 0; i < a.kv.len[r]; ++i) {
      const float* key = &nth(k, i * d);
      double product = 0;
      for (std::int64_t c = 0; c < d; ++c) product += static_cast<double>(key[c]) * nth(anchor, c);
      error.add(nth(out, i), product / std::sqrt(dot(key, key, d) * length));
    }
  }
  return error.below(tolerance_of(ElementType::kF32));
}

void add_anchor_cosine(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    AnchorCosine a;
    a.kv = paged_rows(b, rows_spec(s));
    a.begin = equal_counts(b, a.kv.num_rows, 0), a.end = equal_counts(b, a.kv.num_rows, a.kv.len[0]);
    a.out = b.room<float>(a.kv.total());
    return a;
  };
  add_policy_families<AnchorCosine>(name_of(OpId::kAnchorCosine), kRowAxes, kKeyShapes, build, anchors_match, families);
}

// Probabilities over the row, summed over queries, mean over the group.
bool stats_match(TimedDevice& device, const AttentionStats& a, const Run& run) {
  const std::int64_t d = a.kv.head_dim, q_heads = std::int64_t{a.kv.kv_heads} * a.kv.group;
  const std::vector<float> before = read_floats(device, a.sum, a.kv.total());
  run();
  RelativeError error;
  for (const std::int64_t r : sampled(a.kv.num_rows, 2)) {
    const auto row = static_cast<std::int32_t>(r);
    const std::vector<float> k = row_vectors(device, a.kv, row, false);
    const Queries& queries = a.queries[a.kv.sequence(row)];
    const std::vector<float> q = read_floats(device, queries.data, queries.count * q_heads * d);
    const std::int64_t n = a.kv.len[r];
    std::vector<double> sum(static_cast<std::size_t>(n)), p(static_cast<std::size_t>(n));
    for (std::int64_t line = 0; line < std::int64_t{queries.count} * a.kv.group; ++line) {
      const std::int64_t t = line / a.kv.group, h = r % a.kv.kv_heads * a.kv.group + line % a.kv.group;
      const std::int64_t visible = std::min<std::int64_t>(n, queries.first_position + t + 1);
      double total = 0;
      for (std::int64_t i = 0; i < visible; ++i)
        total += nth(p, i) = std::exp(dot(&nth(q, (t * q_heads + h) * d), &nth(k, i * d), d) / std::sqrt(static_cast<double>(d)));
      for (std::int64_t i = 0; i < visible; ++i) nth(sum, i) += nth(p, i) / total / a.kv.group;
    }
    const std::vector<float> out = read_floats(device, a.sum + a.kv.first[r], n);
    for (std::int64_t i = 0; i < n; ++i) error.add(nth(out, i), nth(sum, i) + static_cast<double>(nth(before, a.kv.first[r] + i)));
  }
  return error.below(2e-3);  // tensor cores take bf16 queries
}

void add_window_scores(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    AttentionStats a;
    a.kv = paged_rows(b, rows_spec(s));
    a.queries = queries_at_end(b, a.kv, static_cast<std::int32_t>(s.at("queries")));
    a.sum = b.put(std::vector<float>(static_cast<std::size_t>(a.kv.total()), 0.0F));
    return a;
  };
  add_policy_families<AttentionStats>(
      name_of(OpId::kAttentionStats),
      {{"batch", "b"}, {"len", "n"}, {"queries", "w"}, {"q_heads", "q"}, {"kv_heads", "kv"}, {"head_dim", "d"}},
      {{{1, 4096, 32, 8, 2, 64}}, {{2, 19, 3, 4, 2, 16}}, {{1, 32768, 64, 32, 8, 128}, {16, 4096, 32, 32, 8, 128}}}, build, stats_match,
      families);
}

bool pool_matches(TimedDevice& device, const Pool1d& a, const Run& run) {
  const std::vector<float> before = read_floats(device, a.scores, a.first[a.num_rows]);
  run();
  RelativeError error;
  for (const std::int64_t r : sampled(a.num_rows, 4)) {
    const std::int64_t n = a.len[r], half = a.width / 2;
    const std::vector<float> after = read_floats(device, a.scores + a.first[r], n);
    for (std::int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (std::int64_t j = std::max<std::int64_t>(0, i - half); j < std::min(n, i + half + 1); ++j)
        sum += static_cast<double>(nth(before, a.first[r] + j));
      error.add(nth(after, i), sum / a.width);
    }
  }
  return error.below(tolerance_of(ElementType::kF32));
}

void add_pool1d(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    const std::int64_t rows = s.at("rows"), n = s.at("len");
    Pool1d a;
    a.num_rows = static_cast<std::int32_t>(rows), a.first = equal_rows(b, rows, n), a.len = equal_counts(b, rows, n);
    a.scores = b.floats(rows * n), a.width = static_cast<std::int32_t>(s.at("width"));
    return a;
  };
  add_policy_families<Pool1d>(name_of(OpId::kPool1d), {{"rows", "r"}, {"len", "n"}, {"width", "w"}},
                              {{{16, 8192, 5}}, {{3, 21, 5}}, {{64, 32768, 5}, {1024, 32768, 5}}}, build, pool_matches, families,
                              ElementType::kF32);
}

}  // namespace

void add_score_cases(std::vector<KernelFamily>& families) {
  add_token_norms(families);
  add_anchor_cosine(families);
  add_window_scores(families);
  add_pool1d(families);
}

}  // namespace kvlab
