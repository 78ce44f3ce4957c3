// Top-k, page bounds and scores, clusters.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/ceil_div.h"
#include "calibrate/cases/op_case.h"
#include "kernels/select/cluster/cluster.h"
#include "kernels/select/page_scores/page_scores.h"
#include "kernels/select/page_summaries_op.h"
#include "kernels/select/top_k/top_k.h"

namespace kvlab {

namespace {

bool top_k_matches(TimedDevice& device, const TopK& a, const Run& run) {
  run();
  for (const std::int64_t r : sampled(a.num_rows, 8)) {
    const std::int64_t n = a.first[r + 1] - a.first[r], k = a.keep[r];
    const std::vector<float> scores = read_floats(device, a.scores + a.first[r], n);
    std::vector<std::int32_t> order(static_cast<std::size_t>(n));
    for (std::int32_t i = 0; i < n; ++i) nth(order, i) = i;
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) { return nth(scores, x) > nth(scores, y); });
    order.resize(static_cast<std::size_t>(k));
    std::sort(order.begin(), order.end());
    if (read_values(device, a.index + a.index_first[r], k) != order) return false;
  }
  return true;
}

void add_top_k(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    const std::int64_t rows = s.at("rows"), n = s.at("len"), keep = s.at("keep");
    TopK a;
    a.num_rows = static_cast<std::int32_t>(rows), a.first = equal_rows(b, rows, n), a.scores = b.floats(rows * n);
    a.keep = equal_counts(b, rows, keep), a.index_first = equal_rows(b, rows, keep), a.index = b.room<std::int32_t>(rows * keep);
    return a;
  };
  add_policy_families<TopK>(name_of(OpId::kTopK), {{"rows", "r"}, {"len", "n"}, {"keep", "k"}},
                            {{{16, 8192, 1024}}, {{3, 40, 7}}, {{64, 32768, 4096}, {8, 32768, 4096}, {512, 8192, 1024}}}, build,
                            top_k_matches, families, ElementType::kF32);
}

bool bounds_match(TimedDevice& device, const PageSummaries& a, const Run& run) {
  run();
  const std::int64_t d = a.kv.head_dim;
  for (const std::int64_t r : sampled(a.kv.num_rows, 4)) {
    const std::int64_t n = a.kv.len[r], pages = ceil_div(n, a.stride_tokens);
    const std::vector<float> k = row_vectors(device, a.kv, r, false), out = read_floats(device, a.out[r], pages * 2 * d);
    for (std::int64_t at = 0; at < pages * d; ++at) {
      const std::int64_t page = at / d, c = at % d;
      float low = std::numeric_limits<float>::infinity(), high = -low;
      for (std::int64_t i = page * a.stride_tokens; i < std::min(n, (page + 1) * a.stride_tokens); ++i) {
        low = std::min(low, nth(k, i * d + c));
        high = std::max(high, nth(k, i * d + c));
      }
      if (nth(out, page * 2 * d + c) != low || nth(out, (page * 2 + 1) * d + c) != high) return false;
    }
  }
  return true;
}

void add_page_bounds(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    PageSummaries a;
    a.kind = PageSummaries::Kind::kBounds;
    a.kv = paged_rows(b, rows_spec(s));
    a.span_tokens = a.stride_tokens = static_cast<std::int32_t>(s.at("page")), a.from = equal_counts(b, a.kv.num_rows, 0);
    std::vector<float*> bounds;
    for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
      bounds.push_back(b.room<float>(ceil_div(a.kv.len[r], a.stride_tokens) * 2 * a.kv.head_dim));
    a.out = b.host(std::move(bounds));
    return a;
  };
  add_policy_families<PageSummaries>(
      name_of(OpId::kPageBounds), {{"batch", "b"}, {"len", "n"}, {"kv_heads", "kv"}, {"head_dim", "d"}, {"page", "p"}},
      {{{16, 2048, 2, 64, 16}}, {{2, 37, 2, 16, 16}}, {{64, 4096, 8, 128, 16}}}, build, bounds_match, families);
}

bool page_scores_match(TimedDevice& device, const PageScores& a, const Run& run) {
  run();
  RelativeError error;
  const std::int64_t d = a.head_dim;
  for (const std::int64_t r : sampled(a.num_rows, 4)) {
    const std::int64_t units = a.first[r + 1] - a.first[r];
    const std::vector<float> bounds = read_floats(device, a.summaries[r], units * 2 * d),
                             out = read_floats(device, a.scores + a.first[r], units);
    const Queries& queries = a.queries[r / a.kv_heads];
    const std::vector<float> q = read_floats(device, queries.data + (queries.count - 1) * std::int64_t{a.kv_heads} * a.group * d,
                                             std::int64_t{a.kv_heads} * a.group * d);
    for (std::int64_t u = 0; u < units; ++u) {
      double best = -std::numeric_limits<double>::infinity();
      for (std::int64_t h = 0; h < a.group; ++h) {
        double z = 0;
        for (std::int64_t c = 0; c < d; ++c) {
          const double x = nth(q, (r % a.kv_heads * a.group + h) * d + c);
          z += std::max(x * static_cast<double>(nth(bounds, u * 2 * d + c)), x * static_cast<double>(nth(bounds, (u * 2 + 1) * d + c)));
        }
        best = std::max(best, z / std::sqrt(static_cast<double>(d)));
      }
      error.add(nth(out, u), best);
    }
  }
  return error.below(tolerance_of(ElementType::kF32));
}

// [units, 2, d]: minimum and maximum.
std::vector<float> random_bounds(Buffers& b, std::int64_t units, std::int64_t d) {
  std::vector<float> bounds(static_cast<std::size_t>(units * 2 * d));
  for (std::int64_t at = 0; at < units * d; ++at) {
    const std::uint64_t draw = b.draw();
    const float low = static_cast<float>(draw >> 40) * 0x1p-23F - 2.0F;
    nth(bounds, at / d * 2 * d + at % d) = low;
    nth(bounds, (at / d * 2 + 1) * d + at % d) = low + static_cast<float>(draw & 0xFFFFU) * 0x1p-15F;
  }
  return bounds;
}

void add_page_scores(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    PageScores a;
    const std::int64_t units = s.at("units"), batch = s.at("batch"), d = s.at("head_dim"), q_heads = s.at("q_heads");
    a.kv_heads = static_cast<std::int32_t>(s.at("kv_heads")), a.group = static_cast<std::int32_t>(q_heads / a.kv_heads);
    a.num_rows = static_cast<std::int32_t>(batch * a.kv_heads), a.head_dim = static_cast<std::int32_t>(d), a.kv_bytes = 4;
    std::vector<Queries> queries;
    for (std::int64_t i = 0; i < batch; ++i) queries.push_back({b.floats(q_heads * d), 1, 0});
    const std::vector<float> bounds = random_bounds(b, units, d);
    std::vector<const float*> summaries;
    for (std::int32_t r = 0; r < a.num_rows; ++r) summaries.push_back(b.put(bounds));
    a.queries = b.host(std::move(queries)), a.summaries = b.host(std::move(summaries));
    a.first = equal_rows(b, a.num_rows, units), a.scores = b.room<float>(a.num_rows * units);
    return a;
  };
  add_policy_families<PageScores>(name_of(OpId::kPageScores),
                                  {{"batch", "b"}, {"units", "u"}, {"q_heads", "q"}, {"kv_heads", "kv"}, {"head_dim", "d"}},
                                  {{{16, 256, 8, 2, 64}}, {{2, 9, 4, 2, 16}}, {{64, 256, 32, 8, 128}, {1, 2048, 32, 8, 128}}}, build,
                                  page_scores_match, families, ElementType::kF32);
}

// Lloyd's rounds stop early: centroids fit the assignment of almost all keys.
bool clusters_match(TimedDevice& device, const ClusterKeys& a, const Run& run) {
  run();
  const std::int64_t d = a.kv.head_dim;
  RelativeError error;
  for (const std::int64_t r : sampled(a.kv.num_rows, 2)) {
    const std::int64_t n = a.tokens[r], k = a.clusters[r];
    const std::vector<float> keys = row_vectors(device, a.kv, r, false), centroids = read_floats(device, a.centroids[r], k * d);
    const std::vector<std::int32_t> of = read_values(device, a.cluster_of[r], n), sizes = read_values(device, a.sizes[r], k);
    std::vector<double> sum(static_cast<std::size_t>(k * d));
    std::vector<std::int32_t> count(static_cast<std::size_t>(k));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int32_t c = nth(of, i);
      if (c < 0 || c >= k) return false;
      ++nth(count, c);
      for (std::int64_t x = 0; x < d; ++x) nth(sum, c * d + x) += static_cast<double>(nth(keys, i * d + x));
    }
    if (count != sizes) return false;
    for (std::int64_t at = 0; at < k * d; ++at) error.add(nth(centroids, at), nth(sum, at) / std::max(1, nth(count, at / d)));
  }
  return error.below(tolerance_of(ElementType::kF32));
}

void add_cluster(std::vector<KernelFamily>& families) {
  const auto build = [](Buffers& b, const Shape& s) {
    ClusterKeys a;
    a.kv = paged_rows(b, rows_spec(s));
    a.tokens = equal_counts(b, a.kv.num_rows, s.at("len")), a.clusters = equal_counts(b, a.kv.num_rows, s.at("clusters"));
    std::vector<std::int32_t*> of, sizes;
    std::vector<float*> centroids;
    for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
      of.push_back(b.room<std::int32_t>(a.tokens[r])), sizes.push_back(b.room<std::int32_t>(a.clusters[r]));
      centroids.push_back(b.room<float>(std::int64_t{a.clusters[r]} * a.kv.head_dim));
    }
    a.cluster_of = b.host(std::move(of)), a.centroids = b.host(std::move(centroids)), a.sizes = b.host(std::move(sizes));
    return a;
  };
  add_policy_families<ClusterKeys>("cluster", {{"len", "n"}, {"clusters", "c"}, {"kv_heads", "kv"}, {"head_dim", "d"}},
                                   {{{2048, 64, 2, 64}}, {{40, 5, 2, 16}}, {{32768, 1024, 8, 128}}}, build, clusters_match, families);
}

}  // namespace

void add_selection_cases(std::vector<KernelFamily>& families) {
  add_top_k(families);
  add_page_bounds(families);
  add_page_scores(families);
  add_cluster(families);
}

}  // namespace kvlab
