#include <algorithm>

#include "kernels/select/page_scores/page_scores.h"
#include "kernels/select/page_summaries_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Minimum, then maximum.
void order_bounds(std::vector<float>& x, std::int32_t head_dim) {
  const auto d = static_cast<std::size_t>(head_dim);
  for (std::size_t i = 0; i < x.size(); i += 2 * d)
    for (std::size_t c = i; c < i + d; ++c)
      if (x[c] > x[c + d]) std::swap(x[c], x[c + d]);
}

constexpr auto kBounds = PageSummaries::Kind::kBounds;

class PagesCuda : public CudaTest {
 protected:
  // Pages of the policy are not those of the memory.
  template <class T>
  void check_bounds(std::int32_t head_dim, std::int32_t page_tokens) {
    SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", pages of " << page_tokens);
    const Ints len{0, 1, 16, 17, 100, 161};
    RowsFixture<T> rows({.head_dim = head_dim, .page_tokens = 24}, len, 1);
    Longs sizes;
    for (const std::int32_t n : len) sizes.push_back((n / page_tokens + 1LL) * 2 * head_dim);
    RowArrays<float> bounds(sizes, 0.5F);  // of pages that have begun
    for (const Ints& from : {Ints{0, 0, 0, 0, 0, 0}, Ints{0, 1, 3, 16, 99, 40}}) {
      run_both([&](bool gpu) { return PageSummaries{rows.at(gpu), page_tokens, page_tokens, from.data(), bounds.at(gpu), kBounds}; });
      EXPECT_EQ(bounds.device_contents(cuda()), bounds.contents());
    }
    RowArrays<float> parents(sizes);
    const Ints pages{0, 1, 1, 1, 2, 3}, zeros(len.size(), 0);
    run_both([&](bool gpu) {
      KvRows kv = rows.at(gpu);
      kv.len = pages.data();
      return PageSummaries{kv, 2, 2, zeros.data(), parents.at(gpu), PageSummaries::Kind::kNodes, bounds.at(gpu)};
    });
    EXPECT_EQ(parents.device_contents(cuda()), parents.contents());
  }

  // Sums of at most 64 numbers in another order.
  template <class T>
  void check_means(std::int32_t head_dim, std::int32_t span, std::int32_t stride) {
    SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", windows of " << span << " every " << stride);
    const Ints len{0, 1, 16, 17, 100, 161};
    RowsFixture<T> rows({.head_dim = head_dim, .page_tokens = 16}, len, 2);
    Longs sizes;
    for (const std::int32_t n : len) sizes.push_back((n / stride + 1LL) * head_dim);
    for (const Ints& from : {Ints{0, 0, 0, 0, 0, 0}, Ints{0, 1, 3, 16, 99, 40}}) {
      RowArrays<float> means(sizes, 0.5F);
      run_both([&](bool gpu) { return PageSummaries{rows.at(gpu), span, stride, from.data(), means.at(gpu)}; });
      EXPECT_TRUE(all_near(means.device_contents(cuda()), means.contents(), 1e-5, 1e-5));
    }
  }

  struct ScoreCase {
    std::int32_t group, head_dim;
    PageScores::Kind kind;
    PageScores::Heads heads;
    bool softmax, sizes, lists;
  };
  void check_scores(const ScoreCase& c) {
    SCOPED_TRACE(testing::Message() << "group " << c.group << ", head_dim " << c.head_dim << ", kind " << static_cast<int>(c.kind)
                                    << ", heads " << static_cast<int>(c.heads) << (c.softmax ? ", softmax" : "")
                                    << (c.sizes ? ", sizes" : "") << (c.lists ? ", lists" : ""));
    const Ints units{5, 1, 150, 129, 0, 0}, scored{c.lists ? 3 : 5, 1, c.lists ? 70 : 150, 129, 0, 0};
    const Longs first = prefix_sums(scored);
    const QueriesFixture queries({2, 1, 0}, {10, 20, 30}, 2 * c.group, c.head_dim, 5);
    Longs summary_sizes, unit_sizes;
    for (const std::int32_t n : units) summary_sizes.push_back(2LL * n * c.head_dim), unit_sizes.push_back(n);
    RowArrays<float> summaries(summary_sizes);
    RowArrays<std::int32_t> sizes(unit_sizes);
    Ints listed;
    for (std::size_t r = 0; r < 6; ++r) {
      summaries.row(r) = random_elements<float>(summary_sizes[r], 10 + r);
      if (c.kind == PageScores::Kind::kBound) order_bounds(summaries.row(r), c.head_dim);
      for (std::size_t u = 0; u < sizes.row(r).size(); ++u) sizes.row(r)[u] = static_cast<std::int32_t>(u % 7 + 1);
      for (std::int32_t i = 0; i < scored[r]; ++i) listed.push_back(i == 0 ? 0 : i + (units[r] - scored[r]));
    }
    summaries.upload(), sizes.upload();
    Twice<std::int32_t> unit(listed);
    const auto scores = both<float>(first.back() * (c.heads == PageScores::Heads::kEach ? c.group : 1), [&](bool gpu, float* out) {
      PageScores op;
      op.num_rows = 6, op.kv_heads = 2, op.group = c.group, op.head_dim = c.head_dim, op.first = first.data();
      op.kind = c.kind, op.heads = c.heads, op.softmax = c.softmax, op.weighs_sizes = c.sizes, op.lists_units = c.lists;
      op.queries = queries.at(gpu), op.summaries = summaries.at(gpu), op.sizes = sizes.at(gpu), op.unit = unit.at(gpu), op.scores = out;
      return op;
    });
    EXPECT_TRUE(all_near(scores, 2e-5, 2e-5));  // sums of at most 1,024 products in fp32, in another order
  }
};

TEST_F(PagesCuda, BoundsEqualCpuVersion) {
  check_bounds<bf16>(128, 16);
  check_bounds<f16>(64, 5);
  check_bounds<float>(7, 16);
  check_bounds<f16>(264, 64);
}

TEST_F(PagesCuda, MeansEqualCpuVersion) {
  check_means<f16>(128, 16, 16);
  check_means<bf16>(80, 32, 16);
  check_means<float>(5, 3, 2);
}

TEST_F(PagesCuda, ScoresEqualCpuVersion) {
  using Kind = PageScores::Kind;
  using Heads = PageScores::Heads;
  check_scores({4, 128, Kind::kBound, Heads::kMax, false, false, false});
  check_scores({1, 64, Kind::kBlend, Heads::kMean, false, false, true});
  check_scores({3, 80, Kind::kDot, Heads::kEach, false, false, true});
  check_scores({2, 128, Kind::kDot, Heads::kSum, true, true, false});
  check_scores({2, 7, Kind::kBound, Heads::kEach, true, true, true});
  check_scores({5, 32, Kind::kBlend, Heads::kMean, true, false, true});
  check_scores({1, 260, Kind::kDot, Heads::kMax, true, false, false});
}

}  // namespace
}  // namespace kvlab
