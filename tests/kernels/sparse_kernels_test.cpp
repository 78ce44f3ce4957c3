#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/half.h"
#include "kernels/storage/channel_divisors_op.h"
#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/low_rank/low_rank.h"
#include "kernels/storage/sparsify_op.h"
#include "kernels/storage/stored/stored_code.h"
#include "tests/kernels/paged_rows.h"

namespace kvlab {
namespace {

float drawn(std::uint64_t i, std::uint64_t stream) { return drawn_normal(13, stream, i); }

struct DrawnRows : ListedRows {
  DrawnRows(std::int32_t heads, std::int32_t head_dim, std::int32_t tokens)
      : ListedRows(heads, head_dim, drawn_normals(tokens * heads * head_dim, 13, 1), drawn_normals(tokens * heads * head_dim, 13, 2), 2) {}
};

TEST(ChannelStats, HandComputed) {
  DrawnRows rows(2, 2, 2);
  rows.k = {1, -3, 5, 0, -2, 2, 1, -1};  // token, head, channel
  rows.load();
  std::vector<float> out(6, 9.0F);
  const std::int32_t line[] = {2, 0};
  ChannelStats stats{.kv = rows.listed.kv, .line = line, .out = out.data()};
  run_cpu(stats);
  EXPECT_EQ(out, (std::vector<float>{5, 1, 9, 9, 2, 3}));
  stats.kind = ChannelStats::Kind::kMeanSquare;
  run_cpu(stats);
  EXPECT_EQ(out, (std::vector<float>{13, 0.5F, 9, 9, 2.5F, 6.5F}));
  // Queries of 1 token, heads 0 and 1 belong to row 0; multiplied into the line of row 0 alone.
  const std::vector<float> q = {1, 2, 3, 0, 7, 7, 7, 7};
  const Queries queries{q.data(), 1, 1};
  const std::int32_t only_first[] = {2, -1};
  stats.source = ChannelStats::Source::kQueries;
  stats.queries = &queries;
  stats.line = only_first;
  stats.into = ChannelStats::Into::kMultiply;
  run_cpu(stats);
  EXPECT_EQ(out, (std::vector<float>{13, 0.5F, 9, 9, 2.5F * 5, 6.5F * 2}));
  EXPECT_EQ(call(stats).rows, 1);
}

TEST(ChannelDivisors, PairsShareAFactorAndOutliersGetTheirOwn) {
  std::vector<float> lines = {4, 0, 1, 16, 0, 9, 0, 1};  // pairs (0,4) (1,5) (2,6) (3,7)
  const std::int32_t line[] = {0};
  std::vector<float> plain = lines;
  run_cpu(ChannelDivisors{1, 8, line, ChannelDivisors::Kind::kSmooth, plain.data(), 0.5F, true, 0});
  EXPECT_EQ(plain, (std::vector<float>{2, 3, 1, 4, 2, 3, 1, 4}));
  // m / lambda: 2 0 1 4 0 3 0 0.25; the median of eight, the upper of the middle two, is 1.
  run_cpu(ChannelDivisors{1, 8, line, ChannelDivisors::Kind::kSmooth, lines.data(), 0.5F, true, 2});
  EXPECT_EQ(lines, (std::vector<float>{2, 3, 1, 16, 2, 9, 1, 4}));
  std::vector<float> zeros(4, 0.0F);
  run_cpu(ChannelDivisors{1, 4, line, ChannelDivisors::Kind::kSmooth, zeros.data(), 0.5F, true, 2});
  EXPECT_EQ(zeros, std::vector<float>(4, 1.0F));
}

TEST(Sparsify, LowestScoresBecomeZeroTiesKeepTheLowerChannel) {
  DrawnRows rows(1, 4, 3);
  const float scores[] = {0, 0, 0, 0, 2, 1, 2, 1};
  const std::int32_t line[] = {1};
  rows.index[2] = -1;
  run_cpu(Sparsify{rows.listed, 3, Sparsify::Kind::kPrune, nullptr, scores, line});
  for (std::int32_t i = 0; i < 3; ++i)
    for (std::int32_t c = 0; c < 4; ++c)
      EXPECT_EQ(rows.listed.kv.key(0, i)[c], i < 2 && c == 3 ? 0.0F : rows.k[static_cast<std::size_t>(i * 4 + c)]);
}

TEST(Sparsify, KeepsTheLargestNumbersExactlyInFp16) {
  for (const std::int32_t d : {5, 64, 65, 128}) {
    for (const std::int32_t keep : {0, 1, d / 2, d}) {
      DrawnRows rows(2, d, 3);
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(6 * most_sparse_bytes(d, keep)));
      run_cpu(Sparsify{rows.listed, keep, Sparsify::Kind::kPack, packed.data()});
      run_cpu(Sparsify{rows.listed, keep, Sparsify::Kind::kUnpack, packed.data()});
      for (std::int32_t i = 0; i < 3; ++i) {
        const float* const x = rows.k.data() + (i * 2 + 1) * d;
        std::vector<float> sizes;
        for (std::int32_t c = 0; c < d; ++c) sizes.push_back(std::fabs(x[c]));
        std::sort(sizes.rbegin(), sizes.rend());
        for (std::int32_t c = 0; c < d; ++c) {
          const bool kept = keep > 0 && std::fabs(x[c]) >= sizes[static_cast<std::size_t>(keep - 1)];
          EXPECT_EQ(rows.listed.kv.key(1, i)[c], kept ? half_to_float(float_to_half(x[c])) : 0.0F);
        }
      }
    }
  }
}

TEST(Sparsify, TiesKeepTheLowerChannel) {
  DrawnRows rows(1, 4, 1);
  rows.k = {1, -1, 1, -1};
  rows.load();
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(most_sparse_bytes(4, 2)));
  run_cpu(Sparsify{rows.listed, 2, Sparsify::Kind::kPack, packed.data()});
  EXPECT_EQ(packed[0], 3);  // the bitmap
}

TEST(Sparsify, SizesByHand) {
  // 128 channels at 70 %: 38 stay, 19 in each of two tiles, padded to 24; the paper measures 45 % of 256 bytes.
  EXPECT_EQ(even_sparse_bytes(128, 38), 2 * 12 + 2 * 48);
  EXPECT_NEAR(static_cast<double>(even_sparse_bytes(128, 38)) / 256, 0.45, 0.03);
  EXPECT_EQ(even_sparse_bytes(64, 0), 12);
  // With one tile there is nothing to share; two waste at most one number less than two paddings.
  for (std::int32_t keep = 0; keep <= 64; ++keep) EXPECT_EQ(most_sparse_bytes(64, keep), even_sparse_bytes(64, keep));
  EXPECT_EQ(most_sparse_bytes(128, 64), 2 * 12 + 2 * 72);
  DrawnRows rows(4, 128, 200);
  const std::int64_t most = most_sparse_bytes(128, 38);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(800 * most));
  run_cpu(Sparsify{rows.listed, 38, Sparsify::Kind::kPack, packed.data()});
  double mean = 0;
  for (std::int64_t i = 0; i < 800; ++i) {
    const std::int64_t bytes = sparse_bytes(128, packed.data() + i * most);
    EXPECT_LE(bytes, most);
    mean += static_cast<double>(bytes) / 800;
  }
  EXPECT_NEAR(mean / static_cast<double>(even_sparse_bytes(128, 38)), 1.0, 0.06);
}

double relative_error(const ListedRows& rows, std::int32_t tokens) {
  double wrong = 0, all = 0;
  const KvRows& kv = rows.listed.kv;
  for (std::int32_t i = 0; i < tokens; ++i)
    for (std::int32_t h = 0; h < kv.kv_heads; ++h)
      for (std::int32_t c = 0; c < kv.head_dim; ++c) {
        const double x = rows.k[static_cast<std::size_t>((i * kv.kv_heads + h) * kv.head_dim + c)];
        wrong += std::pow(x - kv.key(h, i)[c], 2), all += x * x;
      }
  return wrong / all;
}

void approximate(const LowRankFactor& of) {
  LowRankFactor factor = of;
  std::vector<std::uint16_t> left(static_cast<std::size_t>(left_numbers(factor))), right(static_cast<std::size_t>(right_numbers(factor)));
  factor.left = left.data(), factor.right = right.data();
  run_cpu(factor);
  run_cpu(unpacking(factor));
}

TEST(LowRank, AMatrixOfThatRankComesBack) {
  for (const std::int32_t tokens : {1, 2, 5, 40}) {
    for (const bool joint : {false, true}) {
      DrawnRows rows(2, 8, tokens);
      for (std::int32_t i = 0; i < tokens; ++i)
        for (std::int32_t c = 0; c < 16; ++c) {
          float& x = rows.k[static_cast<std::size_t>(i * 16 + c)];
          x = 0;
          for (std::uint64_t j = 0; j < 3; ++j)
            x += drawn(static_cast<std::uint64_t>(i) * 3 + j, 7) * drawn(static_cast<std::uint64_t>(c) * 3 + j, 8);
        }
      rows.load();
      approximate({rows.listed, joint, 3, 2, 3});
      EXPECT_LT(relative_error(rows, tokens), 1e-5) << tokens << joint;  // fp16 factors
    }
  }
}

TEST(LowRank, ErrorFallsWithRankToTheRoundingOfTheFactors) {
  double before = 1.0;
  for (const std::int32_t rank : {1, 2, 4, 8, 16, 20}) {
    DrawnRows rows(2, 8, 30);
    approximate({rows.listed, true, rank, 4, 3});
    const double error = relative_error(rows, 30);
    if (rank <= 16) {
      EXPECT_LT(error, before);
    }
    if (rank >= 16) {
      EXPECT_LT(error, 1e-5);
    }
    before = error;
  }
}

// The share of the largest singular value of diag(3, 1, 1, ...) is known: rank 1 leaves the rest.
TEST(LowRank, FindsTheLargestDirection) {
  DrawnRows rows(1, 4, 4);
  rows.k = {3, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  rows.load();
  approximate({rows.listed, false, 1, 12, 3});
  EXPECT_NEAR(relative_error(rows, 4), 3.0 / 12, 1e-4);
}

TEST(LowRank, RefusesListsOfDifferentLengthSideBySide) {
  DrawnRows rows(2, 8, 6);
  const std::vector<std::int64_t> first{0, 6, 11};
  rows.listed.first = first.data();
  const LowRankFactor factor{rows.listed, true};
  EXPECT_THROW(run_cpu(factor), InternalError);
  EXPECT_THROW(run_cpu(unpacking(factor)), InternalError);
}

TEST(LowRank, KeysBeforeRopeAreTurnedToWhereTheyWere) {
  constexpr std::int32_t n = 12, heads = 2, d = 8;
  std::vector<float> before(n * heads * d);
  for (std::size_t i = 0; i < before.size(); ++i)  // rank 1 before rotation
    before[i] = drawn(i / (heads * d), 7) * drawn(i % (heads * d), 8);
  DrawnRows rows(heads, d, n);
  for (std::int32_t i = 0; i < n; ++i)
    for (std::int32_t h = 0; h < heads; ++h)
      for (std::int32_t c = 0; c < d / 2; ++c) {
        const auto at = static_cast<std::size_t>((i * heads + h) * d + c);
        const double angle = i * std::pow(10000.0, -2.0 * c / d), x = before[at], y = before[at + d / 2];
        rows.k[at] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
        rows.k[at + d / 2] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
      }
  rows.load();
  DrawnRows after(heads, d, n);
  after.k = rows.k, after.v = rows.v;
  after.load();
  approximate({after.listed, true, 1, 4, 3});
  EXPECT_GT(relative_error(after, n), 0.1);  // after rotation the keys have no rank 1

  const float* const pre_rope[] = {before.data()};
  approximate({.tokens = rows.listed, .joint_heads = true, .rank = 1, .rounds = 4, .pre_rope = pre_rope, .is_pre_rope = true});
  EXPECT_LT(relative_error(rows, n), 1e-5);
}

}  // namespace
}  // namespace kvlab
