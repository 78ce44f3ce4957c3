#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/token_norms_op.h"
#include "kernels/select/column_basis/column_basis.h"
#include "kernels/select/nearest_keys_op.h"
#include "kernels/select/query_drift_op.h"
#include "kernels/select/query_gram_op.h"
#include "kernels/select/unit_lists_op.h"
#include "kernels/storage/take_due_op.h"
#include "policies/kv/scorer/representatives_op.h"
#include "policies/kv/selector/code_scores_op.h"
#include "policies/kv/selector/key_codes/key_codes.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

// Ascending lists of units below `units`, in rooms that are larger than they.
struct ListedUnits {
  ListedUnits(const Ints& counts, std::int32_t units, std::uint64_t seed) : count(counts) {
    std::mt19937_64 random(seed);
    Ints rooms;
    for (const std::int32_t n : counts) rooms.push_back(n + static_cast<std::int32_t>(random() % 3));
    first = prefix_sums(rooms);
    unit.assign(static_cast<std::size_t>(first.back()), -9);
    for (std::size_t r = 0; r < counts.size(); ++r) {
      Ints all(static_cast<std::size_t>(units));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin(), all.end(), random);
      std::sort(all.begin(), all.begin() + counts[r]);
      std::copy_n(all.begin(), counts[r], unit.begin() + first[r]);
    }
    device_unit = DeviceBuffer<std::int32_t>(unit);
    for (std::size_t r = 0; r < counts.size(); ++r)
      rows.push_back(unit.data() + first[r]), device_rows.push_back(device_unit.data() + first[r]);
  }
  [[nodiscard]] UnitLists host() const { return {first.data(), unit.data(), nullptr, count.data()}; }
  [[nodiscard]] UnitLists device() const { return {first.data(), device_unit.data(), nullptr, count.data()}; }
  [[nodiscard]] UnitLists at(bool gpu) const { return gpu ? device() : host(); }
  [[nodiscard]] UnitLists device_apart() const { return {nullptr, nullptr, device_rows.data(), count.data()}; }
  Ints count, unit;
  Longs first;
  DeviceBuffer<std::int32_t> device_unit;
  std::vector<const std::int32_t*> rows, device_rows;
};

class UnitListsCuda : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) all_.emplace(Ints{0, 1, 40, 600, 33, 33}, 700, 1);
  }
  ListedUnits& lists() { return *all_; }

 private:
  std::optional<ListedUnits> all_;
};

TEST_F(UnitListsCuda, TokensOfUnits) {
  const Ints base{3, 3, 3, 3, 3, 3}, head{2, 0, 1, 3, 3, 3}, tail{2, 20, 3000, 2900, 2900, 2904}, len{5, 20, 3001, 2903, 2903, 2904};
  CopyUnits op;
  op.kind = CopyUnits::Kind::kExpand, op.num_rows = 6, op.unit_tokens = 4, op.tail = tail.data(), op.len = len.data();
  for (const bool bases : {false, true}) {
    op.base = bases ? base.data() : nullptr, op.head = bases ? head.data() : nullptr, op.lists = lists().host();
    Longs first(1, 0);
    for (std::int32_t r = 0; r < 6; ++r) first.push_back(first.back() + op.tokens(r));
    op.first = first.data();
    EXPECT_TRUE(equal(both<std::int32_t>(first.back(), [&](bool gpu, std::int32_t* out) {
      op.lists = gpu && !bases ? lists().device_apart() : lists().at(gpu), op.out = out;
      return op;
    })));
  }
}

TEST_F(UnitListsCuda, CopyUnits) {
  const Longs first{0, 0, 1, 30, 500, 510, 510};
  Ints pick(510);
  std::mt19937 random(2);
  for (std::size_t r = 0; r < 6; ++r)
    for (std::int64_t i = first[r]; i < first[r + 1]; ++i)
      pick[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(random()) % lists().count[r];
  for (std::int32_t& p : pick) p = std::abs(p);
  Ints expected(510);
  const auto copy = [&](CopyUnits::Kind kind, const Longs& to_first, const std::int32_t* picks, std::int32_t* out, bool gpu) {
    return CopyUnits{6, lists().at(gpu), kind, nullptr, to_first.data(), picks, out};
  };
  run_cpu(copy(CopyUnits::Kind::kPick, first, pick.data(), expected.data(), false));
  const DeviceBuffer<std::int32_t> out(pick);  // in place
  run_cuda(copy(CopyUnits::Kind::kPick, first, out.data(), out.data(), true), cuda());
  EXPECT_EQ(out.to_host(cuda().stream()), expected);
  const Longs whole = prefix_sums(lists().count);
  EXPECT_TRUE(equal(
      both<std::int32_t>(whole.back(), [&](bool gpu, std::int32_t* to) { return copy(CopyUnits::Kind::kAll, whole, nullptr, to, gpu); })));
}

TEST_F(UnitListsCuda, UnionUnits) {
  const Longs first{0, 50, 700, 800};
  Ints count[2] = {Ints(3), Ints(3)};
  const auto units = both(
      Ints(800, -1), [&](bool gpu, std::int32_t* out) { return UnionUnits{3, 2, lists().at(gpu), first.data(), out, count[gpu].data()}; });
  EXPECT_EQ(count[1], count[0]);
  EXPECT_TRUE(equal(units));
}

TEST_F(UnitListsCuda, RankedUnits) {
  const Longs score_first{0, 700, 1400, 2100, 2800, 3500, 4200};
  std::vector<float> x = random_elements<float>(4200, 3);
  for (std::size_t i = 0; i < x.size(); i += 3) x[i] = 0.5F;  // ties go to the lower unit
  Twice<float> scores(x);
  RowArrays<std::int32_t> ranked(Longs(6, 600), -3);
  run_both([&](bool gpu) {
    return SortUnits{6, lists().at(gpu), SortUnits::Kind::kByScore, score_first.data(), scores.at(gpu), ranked.at(gpu)};
  });
  EXPECT_TRUE(same(ranked));
  const Longs first{0, 0, 1, 11, 411, 412, 445};
  EXPECT_TRUE(equal(both<std::int32_t>(445, [&](bool gpu, std::int32_t* best) {
    return SortUnits{6, {.rows = ranked.at(gpu)}, SortUnits::Kind::kByUnit, nullptr, nullptr, nullptr, first.data(), best};
  })));
}

TEST_F(UnitListsCuda, TrackReuse) {
  const Longs first{0, 0, 300, 310};
  Ints unit;
  for (std::int32_t i = 0; i < 300; ++i) unit.push_back(3 * i);
  for (std::int32_t i = 0; i < 10; ++i) unit.push_back(i);
  RowArrays<std::int32_t> last({5, 400, 12});
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t i = 0; i < last.row(r).size(); ++i) last.row(r)[i] = static_cast<std::int32_t>(2 * i);
  last.upload();
  const Ints last_count{5, 400, 0}, held_from{0, 870, 4};
  Twice<std::int32_t> units(unit);
  const auto hits = on_host(Ints(3, -1), [&](bool gpu, std::int32_t* out) {
    const UnitLists asked{first.data(), units.at(gpu)};
    return TrackReuse{3, asked, asked, last.at(gpu), last_count.data(), held_from.data(), out};
  });
  EXPECT_TRUE(equal(hits));
  EXPECT_EQ(hits.expected, (Ints{0, 134 + 10, 6}));  // even numbers below 800, then 870, 873 and so on; 4 to 9
  EXPECT_TRUE(same(last));
}

// Random products differ by more than the order of summation changes them.
TEST_F(UnitListsCuda, NearestKeys) {
  RowsFixture<f16> rows({.kv_heads = 2, .group = 5, .head_dim = 64, .page_tokens = 16}, {300, 290, 1, 40}, 6);
  const QueriesFixture queries({2, 1}, {400, 90}, 10, 64, 7);
  const Ints begin{4, 0, 0, 3}, end{300, 257, 1, 40}, keep{100, 7, 1, 0};
  Ints counts;
  for (std::size_t r = 0; r < 4; ++r)
    for (int h = 0; h < 5; ++h) counts.push_back(keep[r]);
  const Longs index_first = prefix_sums(counts);
  EXPECT_TRUE(equal(both<std::int32_t>(index_first.back(), [&](bool gpu, std::int32_t* out) {
    return NearestKeys{rows.at(gpu), queries.at(gpu), begin.data(), end.data(), keep.data(), 1, index_first.data(), out};
  })));
}

// Two of three sequences begin with the same pages; what is due there is taken once, by the earlier one.
TEST_F(CudaTest, TakeDueTakesTokensOfSharedPagesOnce) {
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

TEST_F(CudaTest, SplitListsEqualCpuVersion) {
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
  EXPECT_TRUE(same(high, low));
}

TEST_F(CudaTest, QueryDriftEqualsCpuVersion) {
  const std::int32_t width = 300;
  const QueriesFixture queries({1, 2, 3, 1}, {5, 6, 7, 8}, 1, width, 4);
  const Ints rule{QueryDrift::kIfTurned, QueryDrift::kAlways, QueryDrift::kNever, QueryDrift::kIfTurned};
  RowArrays<float> reference({width, width, width, width});
  for (std::size_t s = 0; s < 4; ++s) reference.row(s) = random_elements<float>(width, 50 + s);
  reference.row(3).assign(queries.host()[3].data, queries.host()[3].data + width);
  reference.upload();
  const auto drifts = on_host(Ints(4, -1), [&](bool gpu, std::int32_t* out) {
    return QueryDrift{4, width, queries.at(gpu), rule.data(), 0.9F, reference.at(gpu), out};
  });
  EXPECT_EQ(std::tuple(drifts.got, drifts.expected), std::tuple(Ints{1, 1, 0, 0}, Ints{1, 1, 0, 0}));
  EXPECT_TRUE(same(reference));
}

TEST_F(CudaTest, CodeScoresAndMeanCountsEqualCpuVersions) {
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
  EXPECT_TRUE(equal(on_host(Ints(4, -1), [&](bool gpu, std::int32_t* out) {
    return CountScores{4, first.data(), scores.at(gpu), CountScores::Kind::kMeanAbove, -4.0, out, kv_heads, cap.data()};
  })));
}

TEST_F(CudaTest, QueryBasisEqualsCpuVersions) {
  const std::int32_t kv_heads = 2, group = 2, d = 13, width = 4, n = 6;
  const QueriesFixture queries({9, 12, 5}, {50, 60, 70}, kv_heads * group, d, 8);
  const Ints fresh{0, 1, 2}, chosen{1, 1, 0};
  RowArrays<float> sum(Longs(n, d), 0.5F), gram(Longs(n, d * d), 0.0F), basis(Longs(n, width * d), -1.0F);
  run_both([&](bool gpu) { return QueryGram{n, kv_heads, group, d, queries.at(gpu), fresh.data(), true, sum.at(gpu), gram.at(gpu)}; });
  EXPECT_TRUE(all_near(sum.device(cuda()), sum.host(), 1e-5, 1e-5));
  EXPECT_TRUE(all_near(gram.device(cuda()), gram.host(), 1e-5, 1e-5));
  sum.upload(), gram.upload();
  RowsFixture<f16> rows({.kv_heads = kv_heads, .head_dim = d, .page_tokens = 8}, {0, 3, 40, 9, 1, 1}, 9);
  const Ints from{0, 1, 0, 9, 1, 1};
  RowArrays<float> partial({0, 3 * width, 40 * width, 9 * width, width, width});
  for (const bool skew : {false, true}) {
    run_both([&](bool gpu) { return ColumnBasis{n, kv_heads, d, width, chosen.data(), skew, sum.at(gpu), gram.at(gpu), basis.at(gpu)}; });
    const std::vector<float> got = basis.device(cuda()), expected = basis.host();
    for (std::size_t line = 0; line < n * width; ++line) {  // of either sign: eigenvectors have none
      double product = 0, length = 0;
      for (std::size_t c = line * d; c < (line + 1) * d; ++c)
        product += double{got[c]} * double{expected[c]}, length += double{got[c]} * double{got[c]};
      EXPECT_NEAR(std::abs(product), line < 4 * width ? 1.0 : d, 1e-5) << line;
      EXPECT_NEAR(length, line < 4 * width ? 1.0 : d, 1e-5) << line;
    }
    basis.upload();
    run_both([&](bool gpu) {
      TokenNorms project{.kv = rows.at(gpu), .kind = TokenNorms::Kind::kProject, .width = width, .from = from.data()};
      project.basis = basis.at(gpu), project.partial = partial.at(gpu);
      return project;
    });
    EXPECT_TRUE(all_near(partial.device(cuda()), partial.host(), 1e-5, 1e-5));
  }
}

TEST_F(CudaTest, RepresentativesEqualCpuVersion) {
  RowsFixture<f16> rows({.kv_heads = 3, .head_dim = 4, .page_tokens = 8}, {1, 1, 1, 300, 300, 300, 50, 50, 50}, 10);
  const Ints important{1, 60, 10}, others{0, 25, 40};
  std::vector<float> scores = random_elements<float>(1053, 11);
  for (float& x : scores) x = std::round(x * 8) / 8;
  for (const std::size_t i : {5U, 305U, 605U}) scores[i] = kInf;
  using Anchor = Representatives::Anchor;
  for (const auto anchor : {Anchor::kMajority, Anchor::kZeros, Anchor::kOnes, Anchor::kAlternating, Anchor::kRandom})
    EXPECT_TRUE(equal(both(
        scores, [&](bool gpu, float* out) { return Representatives{rows.at(gpu), important.data(), others.data(), anchor, 7, out}; })));
}

TEST_F(CudaTest, KeyCodesEqualCpuVersions) {
  const std::int32_t d = 16;
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = d, .page_tokens = 8}, {5, 60, 90, 40}, 4);
  const std::vector<float> turns = random_elements<float>(2 * d / 2, 9);
  for (const float* const frequencies : {static_cast<const float*>(nullptr), turns.data()}) {
    const Ints codes{0, 7, 40, 1};
    const Longs seeds{1, 2, 3, 4};
    RowArrays<float> gram(Longs(4, d * d)), root(Longs(4, d * d)), centers({0, 7 * d, 40 * d, d});
    for (std::size_t r = 0; r < 4; ++r) {
      const std::vector<float> q = random_elements<float>(30 * d, 60 + r);
      for (std::size_t i = 0; i < d * d; ++i)
        for (std::size_t t = 0; t < 30; ++t) gram.row(r)[i] += q[t * d + i / d] * q[t * d + i % d];
    }
    gram.upload();
    run_both([&](bool gpu) {
      return KeyCodes{rows.at(gpu), KeyCodes::Kind::kTrain, frequencies, codes.data(), root.at(gpu), centers.at(gpu), 3, seeds.data(),
                      gram.at(gpu)};
    });
    EXPECT_TRUE(all_near(root.device(cuda()), root.host(), 1e-6, 1e-5));
    EXPECT_TRUE(all_near(centers.device(cuda()), centers.host(), 1e-5, 1e-5));  // means of keys

    root.upload(), centers.upload();
    const Ints from{0, 10, 0, 39}, to{0, 60, 90, 40};
    RowArrays<std::int32_t> code({0, 60, 90, 40});
    run_both([&](bool gpu) {
      KeyCodes assign{
          .kv = rows.at(gpu), .frequencies = frequencies, .codes = codes.data(), .root = root.at(gpu), .centers = centers.at(gpu)};
      assign.from = from.data(), assign.to = to.data(), assign.code = code.at(gpu);
      return assign;
    });
    EXPECT_TRUE(same(code));
  }
}

}  // namespace
}  // namespace kvlab
