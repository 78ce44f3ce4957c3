// Operations of scorers, allocators and prompts whose sums are in the CPU's order, or nearly so.

#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/score/head_scores_op.h"
#include "kernels/score/pool1d_op.h"
#include "kernels/score/protect_op.h"
#include "kernels/score/recent_attention_op.h"
#include "kernels/score/reduce_heads_op.h"
#include "kernels/score/score_map_op.h"
#include "kernels/score/token_scores_op.h"
#include "kernels/select/copy_queries_op.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/prompt_rewriter/question_cosine/question_cosine.h"
#include "policies/kv/prompt_rewriter/quota_select_op.h"
#include "policies/kv/scorer/key_redundancy/key_redundancy.h"
#include "policies/kv/scorer/leverage/leverage.h"
#include "policies/kv/scorer/query_centers_op.h"
#include "policies/kv/scorer/token_lists_op.h"
#include "policies/kv/scorer/token_model_op.h"
#include "policies/kv/scorer/whole_chunks_op.h"
#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

const Ints kScorerLen{0, 0, 1, 1, 37, 37, 300, 300};  // two KV heads
const Ints kScorerEnd{0, 1, 37, 300};

class ScorerOpsCuda : public CudaTest {
 protected:
  // op(gpu, out) of `n` numbers that begin as `start`.
  template <class Op>
  void check(const std::vector<float>& start, double tolerance, const Op& op) {
    EXPECT_TRUE(all_near(both(start, op), tolerance, tolerance, true));
  }
  // op(gpu, rows) that writes words.
  template <class T, class Op>
  void check_words(RowsFixture<T>& rows, double tolerance, Op&& op) {
    rows.upload();
    const std::vector<std::uint32_t> before = rows.words;
    run_both([&](bool gpu) { return op(gpu, rows.at(gpu)); });
    const std::vector<std::uint32_t> got = rows.device_words(cuda());
    std::int64_t changed = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const float x = std::bit_cast<float>(got[i]), y = std::bit_cast<float>(rows.words[i]);
      changed += rows.words[i] != before[i] ? 1 : 0;
      ASSERT_TRUE(got[i] == rows.words[i] || std::abs(x - y) <= tolerance * (1 + std::abs(y))) << "word " << i << ": " << x << ", " << y;
    }
    EXPECT_GT(changed, 0);
  }
};

TEST_F(ScorerOpsCuda, ReduceHeadsToTheLargestOfTheFirstRow) {
  const Longs first{0, 5, 10, 15, 18, 21, 24};
  Twice<float> x = normals(24, 1);
  std::vector<float*> rows[2];
  for (const bool gpu : {false, true})
    for (std::size_t r = 0; r < 6; ++r) rows[gpu].push_back(x.at(gpu) + first[r]);
  const Ints len{5, 5, 5, 3, 3, 3};
  const KvRows kv{.num_rows = 6, .kv_heads = 3, .len = len.data(), .first = first.data()};
  run_both([&](bool gpu) { return ReduceHeads{kv, ReduceHeads::Kind::kFirstMax, nullptr, false, rows[gpu].data()}; });
  EXPECT_TRUE(same(x));
  EXPECT_EQ(x.host()[0], std::max({x.host()[0], x.host()[5], x.host()[10]}));
}

TEST_F(ScorerOpsCuda, HeadScoresAreLogits) {
  const Longs first{0, 0, 1, 38, 338};
  const auto check_type = [&]<class T>(T, const RowsShape& shape) {
    RowsFixture<T> rows(shape, kScorerLen, 3);
    const QueriesFixture queries({1, 1, 3, 2}, kScorerEnd, shape.kv_heads * shape.group, shape.head_dim, 4);
    check(std::vector<float>(338), 0, [&](bool gpu, float* out) {
      return HeadScores{rows.at(gpu), queries.at(gpu), first.data(), out, HeadScores::Kind::kLogits};
    });
  };
  check_type(float{}, {2, 3, 33, 8});
  check_type(f16{}, {2, 1, 64});
  check_type(bf16{}, {2, 4, 128, 16});
}

TEST_F(ScorerOpsCuda, AttentionVotes) {
  const Longs first{0, 0, 1, 38, 338};
  RowsFixture<bf16> rows({2, 2, 32, 8, 1}, kScorerLen, 3, 2.0F);
  for (std::size_t s = 0; s < 4; ++s)  // rows of a sequence hold the same tokens
    for (std::int32_t i = 0; i < kScorerLen[2 * s]; ++i)
      for (std::int32_t h = 0; h < 2; ++h)
        rows.position[static_cast<std::size_t>(rows.host().slot(static_cast<std::int32_t>(2 * s) + h, i))] = i;
  rows.upload();
  const QueriesFixture queries({0, 1, 9, 20}, {0, 0, 36, 299}, 4, 32, 4);
  const auto stats = [&](bool gpu, const KvRows& kv, const AttentionStats::Votes& votes) {
    return AttentionStats{.kv = kv, .queries = queries.at(gpu), .votes = votes};
  };
  check(std::vector<float>(338), 1e-6, [&](bool gpu, float* out) { return stats(gpu, rows.at(gpu), {1.5F, first.data(), out}); });
  const Ints base{0, 0, 5, 260}, recent{4, 1, 10, 30};
  check_words(rows, 1e-6, [&](bool gpu, const KvRows& kv) { return stats(gpu, kv, {1.5F, {}, {}, base.data(), recent.data(), 4}); });
}

TEST_F(ScorerOpsCuda, QuestionCosine) {
  Twice<float> a = normals(50 * 24, 1), b = normals(50 * 24, 2);
  const std::vector<const float*> host{a.at(false), b.at(false)}, device{a.at(true), b.at(true)};
  check(std::vector<float>(50), 1e-6, [&](bool gpu, float* out) { return QuestionCosine{50, 44, 24, gpu ? device : host, out}; });
}

TEST_F(ScorerOpsCuda, QuotaSelect) {
  std::vector<float> coarse = random_elements<float>(700, 5);
  for (float& x : coarse) x = std::round(x * 4) / 4;  // ties
  Twice<float> scores(coarse);
  const Ints widths{1, 5, 33};
  for (const std::int32_t kept : {20, 130, 700}) {
    Twice<std::int32_t> index(Ints(static_cast<std::size_t>(kept)));
    run_both([&](bool gpu) { return QuotaSelect{700, 5, 690, kept, widths.data(), 3, scores.at(gpu), index.at(gpu)}; });
    EXPECT_EQ(index.device(cuda()), index.host()) << kept;
  }
}

// Two sequences with new tokens, one without, and one that lost some of them.
struct TokenModels {
  static constexpr std::int32_t kHeads = 2, kGroup = 3, kDim = 16, kHidden = 77;
  const Ints len{3, 3, 9, 9, 5, 5, 2, 2}, news{3, 4, 0, 4};
  RowsFixture<bf16> rows{{kHeads, kGroup, kDim, 4, 2}, len, 3};
  RowArrays<float> hidden{{3 * kHidden, 4 * kHidden, 0, 4 * kHidden}};
  TokenModels() {
    for (std::size_t s = 0; s < 4; ++s) hidden.row(s) = random_elements<float>(std::ssize(hidden.row(s)), 20 + s);
    hidden.upload();
  }
  TokenModel of(TokenModel::Kind kind, bool gpu, const KvRows& kv, std::int32_t mid_dim) {
    TokenModel op{kv, kind, news.data(), news.data(), 1, kHidden, mid_dim};
    op.hidden = hidden.at(gpu);
    return op;
  }
};

TEST_F(ScorerOpsCuda, TokenModelOfHiddenStates) {
  TokenModels m;
  for (const std::int32_t mid : {0, 40}) {
    Twice<float> w1 = normals(std::max(2, mid) * 77, 1), b1 = normals(std::max(2, mid), 2), w2 = normals(2 * 40, 3), b2 = normals(2, 4);
    check_words(m.rows, 1e-6, [&](bool gpu, const KvRows& kv) {
      TokenModel op = m.of(TokenModel::Kind::kHidden, gpu, kv, mid);
      op.w1 = w1.at(gpu), op.b1 = b1.at(gpu), op.w2 = w2.at(gpu), op.b2 = b2.at(gpu);
      op.channel = mid == 0 ? 0 : 1;
      return op;
    });
  }
}

TEST_F(ScorerOpsCuda, TokenModelOfAGate) {
  TokenModels m;
  constexpr std::int32_t kRank = 12, kSinks = 5;
  Twice<float> wq = normals(6 * kRank * 77, 1, 0.3F), bq = normals(6 * kRank, 2), wk = normals(2 * kRank * 77, 3, 0.3F);
  Twice<float> q_norm = normals(kRank, 4), k_norm = normals(kRank, 5), k_base = normals(2 * kSinks * kRank, 6), b = normals(6, 7);
  check_words(m.rows, 1e-6, [&](bool gpu, const KvRows& kv) {
    TokenModel op = m.of(TokenModel::Kind::kGate, gpu, kv, kRank);
    op.w1 = wq.at(gpu), op.b1 = bq.at(gpu), op.w2 = wk.at(gpu), op.b2 = b.at(gpu);
    op.q_norm = q_norm.at(gpu), op.k_norm = k_norm.at(gpu), op.k_base = k_base.at(gpu), op.sinks = kSinks;
    return op;
  });
}

TEST_F(ScorerOpsCuda, TokenModelOfQueryKeyAndValue) {
  TokenModels m;
  constexpr std::int32_t kMid = 20, kWidth = 2 * (3 + 2) * 16;
  const Ints begin{0, 5, 5, 0}, news{3, 4, 0, 1}, appended{3, 4, 0, 2};
  const QueriesFixture queries({3, 9, 5, 2}, {2, 8, 4, 1}, 6, 16, 4);
  RowArrays<float> keys({3 * 32, 9 * 32, 5 * 32, 2 * 32});
  for (std::size_t s = 0; s < 4; ++s) keys.row(s) = random_elements<float>(std::ssize(keys.row(s)), 40 + s);
  keys.upload();
  Twice<float> w1 = normals(kMid * kWidth, 1, 0.3F), w2 = normals(2 * kMid, 2);
  check_words(m.rows, 1e-6, [&](bool gpu, const KvRows& kv) {
    TokenModel op = m.of(TokenModel::Kind::kQkv, gpu, kv, kMid);
    op.count = news.data(), op.from_end = appended.data(), op.begin = begin.data();
    op.queries = queries.at(gpu), op.keys = keys.at(gpu);
    op.w1 = w1.at(gpu), op.w2 = w2.at(gpu);
    return op;
  });
}

// Rings that the queries fill, and whose oldest queries they replace.
TEST_F(ScorerOpsCuda, RecentAttention) {
  constexpr std::int32_t kRing = 8;
  RowsFixture<f16> rows({2, 3, 48, 8}, kScorerLen, 3);
  const QueriesFixture queries({0, 1, 8, 5}, {0, 0, 36, 299}, 6, 48, 4);
  RowArrays<float> ring(Longs(4, kRing * 6 * 48), 0.25F);
  run_both([&](bool gpu) { return CopyQueries{4, 6, 48, queries.at(gpu), ring.at(gpu), CopyQueries::Kind::kRing, kRing}; });
  EXPECT_TRUE(same(ring));
  std::vector<Queries> rings[2];
  for (const bool gpu : {false, true})
    for (std::size_t s = 0; s < 4; ++s) rings[gpu].push_back({ring.at(gpu)[s], kScorerEnd[s], 0});
  check(std::vector<float>(676), 1e-6, [&](bool gpu, float* out) {
    constexpr auto kScores = RecentAttention::Kind::kScores;
    return RecentAttention{.kv = rows.at(gpu), .queries = rings[gpu].data(), .kind = kScores, .steps = kRing, .scores = out};
  });
}

TEST_F(ScorerOpsCuda, KeyRedundancy) {
  RowsFixture<bf16> rows({2, 3, 48, 8}, {0, 1, 37, 60}, 3);
  for (std::int32_t i = 0; i < 60; i += 7)  // keys that repeat another
    std::copy_n(rows.host().key(3, i / 2), 48, rows.host().key(3, i));
  rows.upload();
  for (const float similar : {0.3F, -0.5F})
    check(std::vector<float>(98), 1e-6, [&](bool gpu, float* out) { return KeyRedundancy{rows.at(gpu), similar, out}; });
}

TEST_F(ScorerOpsCuda, CenterScores) {
  RowsFixture<bf16> rows({2, 3, 48, 8}, kScorerLen, 3);
  const QueriesFixture queries({0, 1, 37, 100}, {0, 0, 36, 299}, 6, 48, 4);
  RowArrays<float> sum(Longs(4, 6 * 48), 0.5F), size(Longs(4, 6 * 24), 0.5F);
  run_both([&](bool gpu) { return QueryCenters{queries.at(gpu), 4, 6, 48, sum.at(gpu), size.at(gpu)}; });
  EXPECT_TRUE(all_near(sum.device(cuda()), sum.host(), 0, 1e-6));
  EXPECT_TRUE(all_near(size.device(cuda()), size.host(), 0, 1e-6));
  const Ints count{1, 1, 37, 100};
  std::vector<float> frequencies;
  for (int i = 0; i < 4 * 24; ++i) frequencies.push_back(std::pow(0.7F, static_cast<float>(i % 24)));
  for (const float* const f : {static_cast<const float*>(frequencies.data()), static_cast<const float*>(nullptr)})
    check(std::vector<float>(676), 1e-5, [&](bool gpu, float* out) {
      return CenterScores{rows.at(gpu), sum.at(gpu), size.at(gpu), count.data(), f, kScorerEnd.data(), 9, out};
    });
}

TEST_F(ScorerOpsCuda, TokenLists) {
  using Kind = TokenLists::Kind;
  RowsFixture<bf16> rows({2, 1, 8, 8}, kScorerLen, 3);
  Twice<std::int32_t> listed(Ints(12)), token(Ints(2 * 16)), index(Ints{15, 0, 3, 3, 7, 9, 1, 2, 3, 4, 14, 12});
  Ints slots[2] = {Ints(32), Ints(32)};
  const auto lists = [&](bool gpu, Kind kind, float* scores = nullptr) {
    return TokenLists{rows.at(gpu), 2, 6, 20, 30, listed.at(gpu), token.at(gpu), slots[gpu].data(), index.at(gpu), scores, kind};
  };
  for (const Kind kind : {Kind::kFirst, Kind::kCandidates, Kind::kChosen}) run_both([&](bool gpu) { return lists(gpu, kind); });
  EXPECT_TRUE(same(token));
  EXPECT_EQ(slots[1], slots[0]);
  EXPECT_EQ(slots[0][16 + 7], rows.host().slot(5, 21));
  EXPECT_TRUE(same(listed));
  EXPECT_EQ(listed.host()[0], 29);
  check(random_elements<float>(676, 9), 0, [&](bool gpu, float* scores) { return lists(gpu, Kind::kKeep, scores); });
}

TEST_F(ScorerOpsCuda, ProtectLowersImages) {
  RowsFixture<bf16> rows({2, 1, 8, 8}, kScorerLen, 3);
  std::vector<float> scores = random_elements<float>(676, 9);
  scores[1] = kInf, scores[40] = -kInf;  // the first is all that its row holds
  Ints ids(4 * 2000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i % 3 == 0 ? 9 : static_cast<std::int32_t>(i % 50);
  const Longs first{0, 2000, 4000, 6000, 8000};
  check(scores, 0, [&](bool gpu, float* x) {
    return Protect{.kv = rows.at(gpu), .scores = x, .lowers = true, .ids_first = first.data(), .ids = ids.data(), .id = 9};
  });
}

TEST_F(ScorerOpsCuda, DrawsBeginWithEachSequence) {
  RowsFixture<bf16> rows({2, 1, 8, 8}, {0, 0, 700, 700, 3, 3}, 3);
  const std::vector<float> draws = random_elements<float>(1400, 9);
  std::vector<float> found(1406);
  const auto drawn = [&](bool gpu, float* x) {
    return TokenScores{.kv = rows.at(gpu), .kind = TokenScores::Kind::kDrawn, .scores = x, .draws = draws.data()};
  };
  run_cpu(drawn(false, found.data()));
  EXPECT_TRUE(std::equal(draws.begin(), draws.end(), found.begin()) && std::equal(found.begin() + 1400, found.end(), draws.begin()));
  check(found, 0, drawn);
}

TEST_F(ScorerOpsCuda, RowParts) {
  RowsFixture<bf16> rows({2, 1, 8, 8}, kScorerLen, 3);
  Twice<std::int32_t> position(Ints(rows.position.size(), -1));
  run_both([&](bool gpu) {
    KvRows kv = rows.at(gpu);
    kv.position = position.at(gpu);
    return TokenCopy{.tokens = {kv, kv.first}, .kind = TokenCopy::Kind::kNumbers};
  });
  EXPECT_TRUE(same(position));
  const Longs from{0, 3, 3, 10}, to{20, 0, 5};
  Twice<float> part = normals(10, 3);
  check(random_elements<float>(40, 9), 0, [&](bool gpu, float* x) {
    ScoreMap copy{3, from.data(), ScoreMap::Kind::kPart, part.at(gpu)};
    copy.out = x, copy.start = to.data();
    return copy;
  });
}

// Without equal scores.
TEST_F(ScorerOpsCuda, GatedChunks) {
  RowsFixture<bf16> rows({.kv_heads = 2, .head_dim = 8, .page_tokens = 8}, kScorerLen, 4);
  const Ints budget{0, 0, 1, 1, 20, 20, 130, 130};
  check(random_elements<float>(rows.first.back(), 10), 0, [&](bool gpu, float* x) {
    return GatedChunks{rows.at(gpu), 10, 4, budget.data(), x};
  });
}

TEST_F(ScorerOpsCuda, BestUnits) {
  const Longs first{0, 70, 400};
  const Ints begin{3, 0}, len{60, 330};
  check(random_elements<float>(400, 9), 0,
        [&](bool, float* x) { return Pool1d{2, first.data(), begin.data(), len.data(), x, 15, Pool1d::Kind::kBestUnit, false, 5}; });
}

// In double like the CPU version: what differs is the order of sums, at a condition of at most 1e6.
TEST_F(ScorerOpsCuda, LeverageOfKeys) {
  const std::int32_t d = 16, kv_heads = 2;
  RowsFixture<f16> rows({.kv_heads = kv_heads, .head_dim = d, .page_tokens = 8}, {0, 1, 5, 70, 40, 130}, 1);
  std::int32_t positions = 0;
  rows.for_each_token([&](std::int32_t, std::int32_t, std::size_t slot) { positions = std::max(positions, rows.position[slot] + 1); });
  RowArrays<float> keys(Longs(3, positions * kv_heads * d));
  for (std::size_t s = 0; s < 3; ++s) keys.row(s) = random_elements<float>(positions * kv_heads * d, 10 + s);
  keys.upload();
  for (const std::int32_t sketch : {0, 7}) {
    const auto leverage = both<float>(246, [&](bool gpu, float* out) {
      return Leverage{.kv = rows.at(gpu), .keys = keys.at(gpu), .sketch_dim = sketch, .seed = 3, .out = out};
    });
    EXPECT_TRUE(all_near(leverage, 1e-6, 1e-6));
  }
}

TEST_F(ScorerOpsCuda, LeverageOfValues) {
  RowsFixture<f16> rows({.kv_heads = 2, .group = 2, .head_dim = 16, .page_tokens = 8}, {0, 1, 5, 70}, 2);
  Twice<float> mean = normals(8 * 16, 3);
  for (const std::int32_t sinks : {0, 4}) {
    const auto leverage = both<float>(76, [&](bool gpu, float* out) {
      return Leverage{.kv = rows.at(gpu), .kind = Leverage::Kind::kValues, .mean = mean.at(gpu), .sinks = sinks, .out = out};
    });
    EXPECT_TRUE(all_near(leverage, 1e-6, 1e-5));
  }
}

}  // namespace
}  // namespace kvlab
