#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/anchor_cosine_op.h"
#include "kernels/score/mark_top_op.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/projected_norms/projected_norms.h"
#include "kernels/score/protect_op.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_norms_op.h"
#include "kernels/score/token_scores_op.h"
#include "kernels/select/top_k/top_k.h"
#include "policies/kv/scorer/leverage/leverage.h"
#include "policies/kv/scorer/standardize_op.h"
#include "policies/kv/scorer/whole_chunks_op.h"
#include "tests/kernels/paged_rows.h"

namespace kvlab {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
using Floats = std::vector<float>;
using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;

// Rows of given positions, two channels, one page of 8 tokens each.
struct PositionRows : PagedRows {
  PositionRows(std::int32_t kv_heads, const std::vector<Ints>& positions) : PagedRows(lengths(positions), 2, 8) {
    kv.kv_heads = kv_heads;
    for (std::size_t r = 0; r < positions.size(); ++r) std::copy(positions[r].begin(), positions[r].end(), position.begin() + 8 * page[r]);
  }
  static Ints lengths(const std::vector<Ints>& rows) {
    Ints all;
    for (const Ints& row : rows) all.push_back(static_cast<std::int32_t>(row.size()));
    return all;
  }
};

TEST(ScoreMap, ShiftsScalesAndLeavesInfinitiesAlone) {
  const Longs first{0, 2, 4};
  Floats a{1, kInf, -kInf, 4}, b{2, 0, 3, 8};
  const Floats row_factor{1, 0.5F};
  Floats out(4);
  run_cpu(ScoreMap{2, first.data(), ScoreMap::Kind::kTimes, a.data(), 2, 1, true, b.data(), row_factor.data(), out.data()});
  EXPECT_EQ(out, (Floats{6, kInf, -kInf, 36}));
  run_cpu(ScoreMap{2, first.data(), ScoreMap::Kind::kPlus, a.data(), -1, 0, false, nullptr, nullptr, a.data()});
  EXPECT_EQ(a[0], -1);
  EXPECT_EQ(call(ScoreMap{2, first.data(), ScoreMap::Kind::kPlus, nullptr, 1, 0, true}).bytes, 4 * 12);
  EXPECT_EQ(call(ScoreMap{}).bytes, 0);
}

TEST(ReduceHeads, MatchesTokensByPosition) {
  PositionRows rows(2, {{0, 3, 5}, {3, 5, 6, 7}});
  const auto reduced = [&](ReduceHeads::Kind kind, bool by_position) {
    Floats scores{1, 2, 3, 10, 20, 30, 40};
    run_cpu(ReduceHeads{rows.kv, kind, scores.data(), by_position});
    return scores;
  };
  EXPECT_EQ(reduced(ReduceHeads::Kind::kMean, true), (Floats{1, 6, 11.5F, 6, 11.5F, 30, 40}));
  EXPECT_EQ(reduced(ReduceHeads::Kind::kSum, true), (Floats{1, 12, 23, 12, 23, 30, 40}));
  EXPECT_EQ(reduced(ReduceHeads::Kind::kSum, false), (Floats{11, 22, 33, 11, 22, 33, 40}));
  PositionRows none(2, {{}, {}});
  run_cpu(ReduceHeads{none.kv, ReduceHeads::Kind::kMean, nullptr});
}

TEST(Pool1d, MeansHalvesAndShares) {
  const Longs first{0, 6, 7};
  const Ints begin{1, 0}, len{5, 1};
  const auto pooled = [&](Pool1d::Kind kind, Floats scores) {
    run_cpu(Pool1d{2, first.data(), begin.data(), len.data(), scores.data(), 3, kind});
    return scores;
  };
  EXPECT_EQ(pooled(Pool1d::Kind::kMeanOfTopHalf, {9, 1, 3, 2, 5, 4, 7}), (Floats{9, 2.5F, 2.5F, 2.5F, 5, 5, 7}));
  EXPECT_EQ(pooled(Pool1d::Kind::kMean, {9, 1, 3, 2, 5, 4, 7}), (Floats{9, 2, 2, 2, 4.5F, 4.5F, 7}));
  EXPECT_EQ(pooled(Pool1d::Kind::kShare, {9, 1, 3, 4, 5, 5, 0}), (Floats{9, 0.125F, 0.375F, 0.5F, 0.5F, 0.5F, 0})) << "a sum of 0 stays";
}

TEST(Standardize, PoolsRowsOfASequence) {
  const Longs first{0, 1, 3, 4, 5};
  Floats scores{1, 2, 3, 4, 4};
  run_cpu(Standardize{2, 2, first.data(), scores.data()});
  EXPECT_EQ(scores, (Floats{-1, 0, 1, 0, 0}));
}

TEST(MarkTop, TiesGoToTheLowerIndexAndNanComesLast) {
  const Longs first{0, 4, 4, 6};
  const Ints counts{2, 0, 1};
  const Floats scores{1, 5, std::numeric_limits<float>::quiet_NaN(), 1, 2, 3};
  Floats marked(6, 0.0F);
  run_cpu(MarkTop{3, first.data(), scores.data(), counts.data(), marked.data(), 9});
  EXPECT_EQ(marked, (Floats{9, 9, 0, 0, 0, 9}));
}

// Equal scores everywhere: what std::nth_element leaves in front is neither the lowest indices nor another number of them.
TEST(MarkTop, PeerTiesFallAsInTopK) {
  const Longs first{0, 40}, index_first{0, 17};
  const Ints counts{17};
  const Floats scores(40, 1.0F);
  Floats marked(40, 0.0F), expected(40, 0.0F);
  MarkTop best{1, first.data(), scores.data(), counts.data(), marked.data(), 9};
  best.peer_ties = true;
  run_cpu(best);
  Ints index(17);
  run_cpu(TopK{1, first.data(), scores.data(), counts.data(), index_first.data(), index.data(), true});
  for (const std::int32_t i : index) expected[static_cast<std::size_t>(i)] = 9;
  EXPECT_EQ(marked, expected);
  EXPECT_NE(std::count(marked.begin(), marked.begin() + 17, 9.0F), 17);
}

TEST(ScoreMap, RampsOverTheTokensInsideOrOutside) {
  const Longs first{0, 4, 7};
  const Ints begin{1, 2}, end{3, 2};
  Floats scores(7, 7.0F);
  run_cpu(ScoreMap::fill(2, first.data(), begin.data(), end.data(), 2, 0.5F, scores.data()));
  EXPECT_EQ(scores, (Floats{7, 2, 2.5F, 7, 7, 7, 7}));
  run_cpu(ScoreMap::fill(2, first.data(), begin.data(), end.data(), -1, -1, scores.data(), true));
  EXPECT_EQ(scores, (Floats{-1, 2, 2.5F, -2, -1, -2, -3}));
  EXPECT_EQ(call(ScoreMap::fill(2, first.data(), begin.data(), end.data())).outputs, 2);
  EXPECT_EQ(call(ScoreMap::fill(2, first.data(), begin.data(), end.data(), 0, 0, nullptr, true)).bytes, 4 * 5);
}

TEST(Protect, InsideOrOutsideAndOneAboveTheOthersOfAllHeads) {
  PositionRows rows(2, {{0, 1, 9}, {0, 8, 9}});
  const Ints begin{1}, end{9}, none{0}, all{10};
  const Floats scores{100, 3, 50, 70, -1, 0};
  const auto protect = [&](const Ints& from, const Ints& to, bool inside, bool above_max) {
    Floats x = scores;
    run_cpu(Protect{rows.kv, from.data(), to.data(), x.data(), inside, above_max});
    return x;
  };
  EXPECT_EQ(protect(begin, end, false, false), (Floats{kInf, 3, kInf, kInf, -1, kInf}));
  EXPECT_EQ(protect(begin, end, true, false), (Floats{100, kInf, 50, 70, kInf, 0}));
  EXPECT_EQ(protect(begin, end, false, true), (Floats{4, 3, 4, 4, -1, 4}));
  EXPECT_EQ(protect(none, all, true, true), Floats(6, 1.0F)) << "no other token";
  EXPECT_EQ(protect(none, all, false, false), scores);
}

TEST(TokenScores, WordsAsFloatsSumsAndMarks) {
  PositionRows rows(1, {{0, 1, 2}});
  std::vector<std::uint32_t> words(16, 0);
  rows.kv.words = words.data();
  for (std::int32_t i = 0; i < 3; ++i)
    rows.kv.word(1, 0, i) = std::bit_cast<std::uint32_t>(0.5F + static_cast<float>(i)) | (i == 1 ? 0U : 1U);
  Floats scores{kInf, 1, 2};
  run_cpu(TokenScores{rows.kv, TokenScores::Kind::kMark, 1, 0, nullptr, nullptr, scores.data()});
  EXPECT_EQ(scores, (Floats{kInf, 1, -kInf}));
  run_cpu(TokenScores{rows.kv, TokenScores::Kind::kWord, 1, 0, nullptr, nullptr, scores.data()});
  EXPECT_EQ(scores[1], 1.5F);
  run_cpu(TokenScores{rows.kv, TokenScores::Kind::kWordSum, 0, 0, nullptr, nullptr, scores.data(), 2});  // of 0 and 1.5
  EXPECT_EQ(scores[1], 1.5F);
  const OpCall sum = call(TokenScores{rows.kv, TokenScores::Kind::kWordSum, 0, 0, nullptr, nullptr, nullptr, 2}),
               mark = call(TokenScores{rows.kv, TokenScores::Kind::kMark, 1});
  EXPECT_EQ(sum.bytes, 3 * 4 * 3);
  EXPECT_EQ(mark.bytes, 3 * 12);
  EXPECT_EQ(call(TokenScores{rows.kv, TokenScores::Kind::kWord, 1}).flops, 0);
}

TEST(CountScores, PerRowAndNotNan) {
  const Floats scores{3, 2, 1, std::nanf(""), kInf, -1};
  const Longs first{0, 3, 3, 6};
  const auto count = [&](CountScores::Kind kind, double limit, std::int32_t rows) {
    Ints counts(static_cast<std::size_t>(rows), -1);
    run_cpu(CountScores{rows, first.data(), scores.data(), kind, limit, counts.data()});
    return counts;
  };
  EXPECT_EQ(count(CountScores::Kind::kAtLeast, 2, 3), (Ints{2, 0, 1}));
  EXPECT_EQ(count(CountScores::Kind::kAbove, 2, 3), (Ints{1, 0, 1}));
  for (const auto& [share, expected] : {std::pair{0.0, 1}, {0.5, 1}, {0.51, 2}, {1.0, 3}})
    EXPECT_EQ(count(CountScores::Kind::kLeadingMass, share, 2), (Ints{expected, 0})) << share;
}

TEST(WholeChunks, TakesWhatFitsOrAGivenNumber) {
  const Longs first{0, 8};
  const Ints begin{1}, len{6};  // chunks of 4 and 2 tokens, two tokens outside
  const Floats scores{9, 1, 1, 1, 1, 2, 2, 9};
  const auto kept = [&](std::int32_t keep, const std::int32_t* chunks) {
    run_cpu(WholeChunks{1, first.data(), begin.data(), len.data(), 4, scores.data(), chunks, &keep});
    return keep;
  };
  for (const auto& [keep, expected] : {std::pair{1, 1}, {3, 2}, {4, 4}, {7, 4}, {8, 8}}) EXPECT_EQ(kept(keep, nullptr), expected);
  const std::int32_t one = 1, many = 9;
  EXPECT_EQ(kept(5, &one), 4);
  EXPECT_EQ(kept(4, &many), 8);
}

TEST(TokenNorms, AllKindsOfAPagedRow) {
  PositionRows rows(1, {{0, 1}, {0}});
  const Floats key{3, -4, 0, 2}, value{1, 1, -5, 12};
  std::copy(key.begin(), key.end(), rows.kv.key(0, 0));
  std::copy(value.begin(), value.end(), rows.kv.value(0, 0));
  rows.kv.value(1, 0)[0] = -7;
  const auto norms = [&](TokenNorms::Of of, TokenNorms::Kind kind) {
    Floats out(3);
    run_cpu(TokenNorms{rows.kv, of, kind, out.data()});
    return out;
  };
  EXPECT_EQ(norms(TokenNorms::Of::kKey, TokenNorms::Kind::kL1), (Floats{7, 2, 0}));
  EXPECT_EQ(norms(TokenNorms::Of::kKey, TokenNorms::Kind::kL2), (Floats{5, 2, 0}));
  EXPECT_EQ(norms(TokenNorms::Of::kValue, TokenNorms::Kind::kL2Squared), (Floats{2, 169, 49}));
  EXPECT_EQ(call(TokenNorms{rows.kv}),
            (OpCall{.op = "token_norms", .rows = 2, .tokens = 3, .outputs = 3, .bytes = 3 * (2 * 2 + 4), .flops = 3 * 4}));
}

TEST(AnchorCosine, NoAnchorAndOppositeKeys) {
  PositionRows rows(1, {{0, 1, 2}});
  const Floats keys{1, 0, -2, 0, 0, 5};
  std::copy(keys.begin(), keys.end(), rows.kv.key(0, 0));
  const Ints begin{0}, end{1}, none{0};
  Floats out(3);
  run_cpu(AnchorCosine{rows.kv, begin.data(), end.data(), true, 2, out.data()});
  EXPECT_EQ(out, (Floats{2, -2, 0}));
  run_cpu(AnchorCosine{rows.kv, begin.data(), none.data(), false, 1, out.data()});
  EXPECT_EQ(out, (Floats{0, 0, 0}));
}

TEST(ProjectedNorms, MeanOverTheGroup) {
  PositionRows rows(1, {{0}});
  rows.kv.group = 2;
  rows.kv.value(0, 0)[0] = 1, rows.kv.value(0, 0)[1] = -2;
  const Floats w_o{1, 0, 2, 2, 0, 3, 1, 0, 1, 1, 0, 1};  // three outputs, two heads of two channels
  float l1 = 0, l2 = 0;
  run_cpu(ProjectedNorms{rows.kv, w_o.data(), 3, ProjectedNorms::Kind::kL1, &l1});
  EXPECT_FLOAT_EQ(l1, ((1 + 6 + 1) + (2 + 1 + 2)) / 2.0F);
  run_cpu(ProjectedNorms{rows.kv, w_o.data(), 3, ProjectedNorms::Kind::kL2, &l2});
  EXPECT_FLOAT_EQ(l2, (std::sqrt(38.0F) + 3.0F) / 2);
}

// The leverages of a full-rank matrix sum to its rank; each is in [0, 1].
TEST(Leverage, OfKeysSumsToTheSketchsRank) {
  PositionRows rows(1, {{0, 1, 2, 3, 4, 5, 6, 7}});
  Floats keys;
  for (std::uint64_t i = 0; i < 16; ++i) keys.push_back(drawn_normal(3, i, 0));
  const float* by_sequence[] = {keys.data()};
  for (const std::int32_t sketch : {0, 1, 2}) {
    Floats out(8);
    run_cpu(Leverage{.kv = rows.kv, .keys = by_sequence, .sketch_dim = sketch, .seed = 5, .out = out.data()});
    for (const float x : out) EXPECT_TRUE(x >= 0 && x <= 1);
    EXPECT_NEAR(std::accumulate(out.begin(), out.end(), 0.0F), sketch == 1 ? 1 : 2, 1e-3) << sketch;
  }
}

// Calls of a batch are the sums of its rows' calls.
TEST(ScoreOps, CountsAddUpOverRows) {
  PositionRows both(1, {{0, 1, 2}, {0, 1, 2, 3, 4}}), one(1, {{0, 1, 2}}), other(1, {{0, 1, 2, 3, 4}});
  const auto adds_up = [](const OpCall& sum, const OpCall& a, const OpCall& b) {
    return sum.rows == a.rows + b.rows && sum.tokens == a.tokens + b.tokens && sum.bytes == a.bytes + b.bytes &&
           sum.flops == a.flops + b.flops;
  };
  const auto leverage = [](PositionRows& r) { return call(Leverage{r.kv}); };
  EXPECT_TRUE(adds_up(leverage(both), leverage(one), leverage(other)));
  const auto norms = [](PositionRows& r) { return call(ProjectedNorms{r.kv, nullptr, 6}); };
  EXPECT_TRUE(adds_up(norms(both), norms(one), norms(other)));
}

}  // namespace
}  // namespace kvlab
