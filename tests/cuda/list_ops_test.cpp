#include "kernels/allocate/count_scores_op.h"
#include "kernels/select/query_drift_op.h"
#include "kernels/select/unit_lists_op.h"
#include "kernels/storage/take_due_op.h"
#include "policies/kv/selector/code_scores_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

class ListOpsCuda : public CudaTest {};

// Two of three sequences begin with the same pages; what is due there is taken once, by the earlier one.
TEST_F(ListOpsCuda, TakeDueTakesTokensOfSharedPagesOnce) {
  RowsFixture<f16> rows({.kv_heads = 2, .head_dim = 4, .page_tokens = 8, .num_words = 1}, {300, 300, 40, 40, 310, 310}, 1);
  for (std::int32_t head = 0; head < 2; ++head)
    std::copy_n(rows.page.begin() + rows.page_begin[head], 30, rows.page.begin() + rows.page_begin[4 + head]);
  const std::vector<std::uint32_t> before = rows.words;
  const Longs first{0, 290, 580, 610, 640, 940, 1240};
  Ints expected(1240, -7);
  run_cpu(TakeDue{rows.host(), 0, 1, 10, 1, first.data(), expected.data()});
  const auto got = same_in_every_order([&] {
    rows.words = before;
    rows.upload();
    const DeviceBuffer<std::int32_t> out(Ints(1240, -7));
    run_cuda(TakeDue{rows.device(), 0, 1, 10, 1, first.data(), out.data()}, cuda());
    return out.to_host(cuda().stream());
  });
  EXPECT_EQ(got, expected);
  EXPECT_EQ(std::count_if(got.begin() + 640, got.begin() + 940, [](std::int32_t i) { return i >= 0; }), 60) << "310 - 240 taken - 10";
}

TEST_F(ListOpsCuda, SplitListsEqualCpuVersion) {
  const Longs first{0, 0, 3, 303, 363}, row_first{0, 5, 15, 715, 815}, high_first{0, 0, 1, 101, 141};
  Ints index{2, 4, 9};
  for (std::int32_t i = 0; i < 300; ++i) index.push_back(i < 290 ? 2 * i : -1);
  for (std::int32_t i = 0; i < 60; ++i) index.push_back(i < 30 ? i : -1);  // more room for high ones than tokens
  std::vector<float> x = random_elements<float>(815, 3);
  for (float& score : x) score = std::round(score * 4);
  Twice<float> scores(x);
  Twice<std::int32_t> listed(index), high(141), low(222);
  run_both([&](bool gpu) {
    const UnitLists lists{first.data(), listed.at(gpu)};
    return SelectUnits{4,       1,       SelectUnits::Kind::kSplit, lists,        row_first.data(), scores.at(gpu),
                       nullptr, nullptr, high_first.data(),         high.at(gpu), low.at(gpu)};
  });
  EXPECT_EQ(high.device(cuda()), high.host());
  EXPECT_EQ(low.device(cuda()), low.host());
}

TEST_F(ListOpsCuda, QueryDriftEqualsCpuVersion) {
  const std::int32_t width = 300;
  const QueriesFixture queries({1, 2, 3, 1}, {5, 6, 7, 8}, 1, width, 4);
  const Ints rule{QueryDrift::kIfTurned, QueryDrift::kAlways, QueryDrift::kNever, QueryDrift::kIfTurned};
  RowArrays<float> reference({width, width, width, width});
  for (std::size_t s = 0; s < 4; ++s) reference.row(s) = random_elements<float>(width, 50 + s);
  reference.row(3).assign(queries.host()[3].data, queries.host()[3].data + width);
  reference.upload();
  Ints drifts[2] = {Ints(4, -1), Ints(4, -1)};
  run_both([&](bool gpu) { return QueryDrift{4, width, queries.at(gpu), rule.data(), 0.9F, reference.at(gpu), drifts[gpu].data()}; });
  for (const Ints& found : drifts) EXPECT_EQ(found, (Ints{1, 1, 0, 0}));
  EXPECT_EQ(reference.device_contents(cuda()), reference.contents());
}

TEST_F(ListOpsCuda, CodeScoresAndMeanCountsEqualCpuVersions) {
  const std::int32_t kv_heads = 2, group = 3, d = 40, width = 13;
  const QueriesFixture queries({1, 2}, {5, 6}, kv_heads * group, d, 5);
  const Longs first{0, 300, 600, 601, 601};
  RowArrays<float> basis({width * d, width * d, width * d, width * d}), partial({300 * width, 300 * width, width, 0});
  for (std::size_t r = 0; r < 4; ++r) {
    basis.row(r) = random_elements<float>(width * d, 10 + r);
    partial.row(r) = random_elements<float>(static_cast<std::int64_t>(partial.row(r).size()), 20 + r, 0.3F);
  }
  basis.upload(), partial.upload();
  const Ints vectors(4, width), begin(4);
  const auto [got, expected] = both<float>(601, [&](bool gpu, float* out) {
    CodeScores a{4, kv_heads, group, d, 2, CodeScores::Kind::kBelowTop};
    a.queries = queries.at(gpu), a.vectors = vectors.data(), a.begin = begin.data(), a.first = first.data();
    a.vector = basis.at(gpu), a.coefficients = partial.at(gpu), a.scores = out;
    return a;
  });
  EXPECT_TRUE(all_near(got, expected, 1e-4, 1e-5));  // two sums in fp32, of 40 and 13 products
  const Ints cap{10, 500, 3, 3};
  Twice<float> scores(expected);
  Ints count[2] = {Ints(4, -1), Ints(4, -1)};
  run_both([&](bool gpu) {
    constexpr auto kMeanAbove = CountScores::Kind::kMeanAbove;
    return CountScores{4, first.data(), scores.at(gpu), kMeanAbove, -4.0, count[gpu].data(), kv_heads, cap.data()};
  });
  EXPECT_EQ(count[1], count[0]);
}

}  // namespace
}  // namespace kvlab
