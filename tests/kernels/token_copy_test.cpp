#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "kernels/select/top_k/top_k.h"
#include "kernels/storage/evict_rows_op.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/disposal/slerp_pairs_op.h"
#include "tests/kernels/paged_rows.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

// One row of three tokens in pages of two, the second page before the first.
struct Pool : PagedRows {
  Pool() : PagedRows({3}, 2, 2, 1) {
    std::ranges::copy(std::vector<float>{5, 6, 0, 0, 1, 2, 3, 4}, k.begin());  // [4 slots, 2 channels]
    std::ranges::copy(std::vector<std::int32_t>{30, 0, 10, 20}, position.begin());
    std::ranges::copy(std::vector<std::uint32_t>{33, 0, 11, 22}, words.begin());
  }
};

TEST(TokenCopy, VectorsInTheOrderOfTheList) {
  Pool pool;
  const std::int64_t first[] = {0, 3};
  const std::int32_t index[] = {0, 2, -1};
  std::vector<float> stored(6, 9);
  run_cpu(TokenCopy{{pool.kv, first, index}, TokenCopy::Kind::kVectors, TokenCopy::Way::kFromPages, stored.data()});
  EXPECT_EQ(stored, (std::vector<float>{1, 2, 5, 6, 9, 9}));
  stored = {7, 8, 9, 10, 11, 12};
  run_cpu(TokenCopy{{pool.kv, first, index}, TokenCopy::Kind::kVectors, TokenCopy::Way::kIntoPages, stored.data()});
  EXPECT_EQ(pool.k, (std::vector<float>{9, 10, 0, 0, 7, 8, 3, 4}));
}

// Three tokens of four channels, in two bytes each; into pages a vector of one channel comes whole.
TEST(TokenCopy, BytesOfACall) {
  const std::int64_t first[] = {0, 3};
  KvRows kv;
  kv.num_rows = 1, kv.head_dim = 4, kv.kv_bytes = 2, kv.first = first, kv.num_words = 2;
  TokenCopy copy{{kv, first}};
  EXPECT_EQ(call(copy), (OpCall{.op = "token_copy", .rows = 1, .tokens = 3, .outputs = 3, .bytes = 3 * 4 + 3 * 2 * 8}));
  copy.keep = 1;
  EXPECT_EQ(call(copy).bytes, 3 * 4 + 3 * 2 * 2);
  copy.way = TokenCopy::Way::kIntoPages;
  EXPECT_EQ(call(copy).bytes, 3 * 4 + 3 * 2 * 5);
  EXPECT_EQ(call(copy_words(kv, TokenCopy::Way::kFromPages, nullptr)),
            (OpCall{.op = "token_copy", .rows = 1, .tokens = 3, .outputs = 3, .bytes = 2 * 3 * 3 * 4}));
}

TEST(TokenCopy, ChannelsThatAreNotStoredComeBackAsZeros) {
  Pool pool;
  const std::int64_t first[] = {0, 2};
  const std::int32_t index[] = {0, 2};
  const std::uint8_t second = 2;
  std::vector<float> stored(2);
  TokenCopy copy{.tokens = {pool.kv, first, index}, .stored = stored.data(), .channels = &second, .keep = 1};
  run_cpu(copy);
  EXPECT_EQ(stored, (std::vector<float>{2, 6}));
  copy.way = TokenCopy::Way::kIntoPages;
  run_cpu(copy);
  EXPECT_EQ(pool.k, (std::vector<float>{0, 6, 0, 0, 0, 2, 3, 4}));
}

TEST(TokenCopy, PositionsAndStatistics) {
  Pool pool;
  std::vector<std::uint32_t> stored(6);
  run_cpu(copy_words(pool.kv, TokenCopy::Way::kFromPages, stored.data()));
  EXPECT_EQ(stored, (std::vector<std::uint32_t>{10, 20, 30, 11, 22, 33}));
  stored = {1, 2, 3, 4, 5, 6};
  run_cpu(copy_words(pool.kv, TokenCopy::Way::kIntoPages, stored.data()));
  EXPECT_EQ(pool.position, (std::vector<std::int32_t>{3, 0, 1, 2}));
  EXPECT_EQ(pool.words, (std::vector<std::uint32_t>{6, 0, 4, 5}));
}

using Ints = std::vector<std::int32_t>;

// Rows of tokens whose positions are their places; key and value of a token are its position and its double, its one word is three times
// that.
struct NumberedRows : PagedRows {
  explicit NumberedRows(const Ints& lengths) : PagedRows(lengths, 2, 4, 1) {
    for (std::int32_t r = 0; r < kv.num_rows; ++r)
      for (std::int32_t i = 0; i < kv.len[r]; ++i) put(r, i, i);
  }
  void put(std::int32_t r, std::int32_t i, std::int32_t token) {
    kv.position[kv.slot(r, i)] = token, kv.word(0, r, i) = static_cast<std::uint32_t>(3 * token);
    for (std::int32_t c = 0; c < 2; ++c) kv.key(r, i)[c] = static_cast<float>(token), kv.value(r, i)[c] = static_cast<float>(2 * token);
  }
  // The positions of the first `keep` tokens of a row; expects that all that belongs to a token moved with it.
  Ints tokens(std::int32_t r, std::int32_t keep) {
    Ints held;
    for (std::int32_t i = 0; i < keep; ++i) {
      const std::int32_t token = kv.position[kv.slot(r, i)];
      EXPECT_EQ(kv.key(r, i)[1], static_cast<float>(token));
      EXPECT_EQ(kv.value(r, i)[0], static_cast<float>(2 * token));
      EXPECT_EQ(kv.word(0, r, i), static_cast<std::uint32_t>(3 * token));
      held.push_back(token);
    }
    return held;
  }
};

struct Counts {
  explicit Counts(const Ints& of_rows) : first(1, 0) {
    for (const std::int32_t n : of_rows) first.push_back(first.back() + n);
    dropped.resize(static_cast<std::size_t>(first.back()));
  }
  std::vector<std::int64_t> first;
  Ints dropped;
};

EvictRows op_of(NumberedRows& rows, Counts& counts, const std::vector<float>& scores) {
  EvictRows op;
  op.kv = rows.kv, op.first = counts.first.data(), op.dropped = counts.dropped.data(), op.scores = scores.data();
  return op;
}

TEST(Evict, TheLastTokenTakesThePlace) {
  NumberedRows rows({6, 5});
  Counts counts({1, 1});
  const std::vector<float> scores{5, 1, 4, 3, 2, 6, 3, 3, 3, 3, 0};
  run_cpu(op_of(rows, counts, scores));
  EXPECT_EQ(counts.dropped, (Ints{1, 4}));
  EXPECT_EQ(rows.tokens(0, 5), (Ints{0, 5, 2, 3, 4}));
  EXPECT_EQ(rows.tokens(1, 4), (Ints{0, 1, 2, 3})) << "the last one went itself";
}

TEST(Evict, OfEqualScoresTheLaterPositionGoes) {
  NumberedRows rows({5});
  rows.put(0, 1, 9);  // an earlier place than that of position 4
  Counts counts({1});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  run_cpu(op_of(rows, counts, {7, 1, 1, 1, 1}));
  EXPECT_EQ(counts.dropped, Ints{1});
  run_cpu(op_of(rows, counts, {7, 1, nan, 1, 1}));
  EXPECT_EQ(counts.dropped, Ints{2});
}

// The oldest of the window go, found at their guessed place or anywhere.
TEST(Evict, FindsPositions) {
  struct Case {
    std::int32_t guess, count;
    Ints held;
  };
  for (const Case& c : {Case{-1, 1, {0, 1, 6, 3, 4, 5}}, Case{2, 1, {0, 1, 6, 3, 4, 5}}, Case{4, 1, {0, 1, 6, 3, 4, 5}},
                        Case{99, 1, {0, 1, 6, 3, 4, 5}}, Case{2, 3, {0, 1, 5, 6}}}) {
    NumberedRows rows({7});
    Counts counts({c.count});
    const std::int32_t from = 2;
    EvictRows op = op_of(rows, counts, {});
    op.choice = EvictRows::Choice::kPositions, op.from = &from, op.guess = &c.guess;
    run_cpu(op);
    EXPECT_EQ(rows.tokens(0, 7 - c.count), c.held);
    if (c.count == 3) {
      EXPECT_EQ(counts.dropped, (Ints{2, 3, 4}));
    }
  }
}

TEST(Evict, ListsWithoutMoving) {
  NumberedRows rows({6});
  Counts counts({2});
  const std::vector<float> scores{5, 1, 4, 3, 2, 6};
  EvictRows op = op_of(rows, counts, scores);
  op.moves = false;
  run_cpu(op);
  EXPECT_EQ(rows.tokens(0, 6), (Ints{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(counts.dropped, (Ints{1, 4}));
  op.choice = EvictRows::Choice::kListed, op.moves = true;
  run_cpu(op);
  EXPECT_EQ(rows.tokens(0, 4), (Ints{0, 5, 2, 3}));
}

// On drawn rows, in several steps in which tokens are appended, the tokens that stay are those that a selection of the largest scores
// leaves in rows in order.
TEST(Evict, KeepsWhatASelectionInOrderKeeps) {
  std::mt19937_64 random(3);
  for (int draw = 0; draw < 40; ++draw) {
    const auto n = static_cast<std::int32_t>(random() % 40 + 3);
    NumberedRows rows({n});
    Ints ordered(static_cast<std::size_t>(n));
    for (std::int32_t i = 0; i < n; ++i) ordered[static_cast<std::size_t>(i)] = i;
    std::int32_t next = n;
    for (int step = 0; step < 20; ++step) {
      const auto d = static_cast<std::int32_t>(random() % std::min<std::uint64_t>(4, static_cast<std::uint64_t>(n)));
      std::vector<float> of_position(static_cast<std::size_t>(next));
      for (float& x : of_position) x = static_cast<float>(random() % 3);
      std::vector<float> scores, in_order;
      for (std::int32_t i = 0; i < n; ++i) scores.push_back(of_position[static_cast<std::size_t>(rows.kv.position[rows.kv.slot(0, i)])]);
      for (const std::int32_t p : ordered) in_order.push_back(of_position[static_cast<std::size_t>(p)]);
      Counts counts({d});
      run_cpu(op_of(rows, counts, scores));
      Ints index(static_cast<std::size_t>(n - d));
      const std::vector<std::int64_t> first{0, n}, index_first{0, n - d};
      const Ints keep{n - d};
      run_cpu(TopK{1, first.data(), in_order.data(), keep.data(), index_first.data(), index.data()});
      Ints left;
      for (const std::int32_t i : index) left.push_back(ordered[static_cast<std::size_t>(i)]);
      const Ints held = rows.tokens(0, n - d);
      EXPECT_EQ(std::set<std::int32_t>(held.begin(), held.end()), std::set<std::int32_t>(left.begin(), left.end()));
      ordered = left;
      for (std::int32_t i = n - d; i < n; ++i) rows.put(0, i, next), ordered.push_back(next++);
    }
  }
}

// Two heads of 128 channels in 16 bits: K and V of one token are 512 bytes; they are read and written, with the index of a move, position
// and one word of 4 bytes both read and written, and the 4 bytes of the list.
TEST(Evict, CountsOneTokenOfEachRow) {
  const Ints len{100, 50};
  const std::vector<std::int64_t> first{0, 100, 150}, dropped{0, 1, 2};
  EvictRows op;
  op.kv.num_rows = 2, op.kv.head_dim = 128, op.kv.kv_bytes = 2, op.kv.num_words = 1;
  op.kv.len = len.data(), op.kv.first = first.data(), op.first = dropped.data();
  const std::int64_t moved = 2 * 512 + 4 + 8 + 8;
  EXPECT_EQ(call(op).bytes, 2 * (moved + 4) + 4 * 150);
  EXPECT_EQ(call(op).tokens, 150);
  op.choice = EvictRows::Choice::kPositions;
  EXPECT_EQ(call(op).bytes, 2 * (moved + 4) + 2 * 4) << "of the positions one of each row";
  op.choice = EvictRows::Choice::kListed;
  EXPECT_EQ(call(op).bytes, 2 * (moved + 4) + 2 * 4);
  op.choice = EvictRows::Choice::kLowest, op.moves = false;
  EXPECT_EQ(call(op).bytes, 2 * 4 + 4 * 150);
  const std::vector<std::int64_t> of_one{0, 1, 1};
  op.first = of_one.data(), op.moves = true;
  EXPECT_EQ(call(op).bytes, moved + 4 + 4 * 100) << "rows that lose nothing are not read";
}

using Vectors = std::vector<std::vector<float>>;

// Two one-head layers with these keys, merged.
struct Pair {
  Pair(const Vectors& x, const Vectors& y, float t, std::int32_t retain)
      : model{2, 1, 1, static_cast<std::int32_t>(x.front().size()), 4}, a(model, 1, 0, true), b(model, 1, 0, true) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      a.append(0, x[i].data(), x[i].data(), 1, static_cast<std::int32_t>(i));
      b.append(0, y[i].data(), y[i].data(), 1, static_cast<std::int32_t>(i));
    }
    const std::int32_t begin = 0, end = static_cast<std::int32_t>(x.size());
    run_cpu(SlerpPairs{a.rows(), b.rows(), &begin, &end, &retain, false, t});
  }
  std::vector<float> first(std::int32_t i) { return copy(a.rows().key(0, i)); }
  std::vector<float> second(std::int32_t i) { return copy(b.rows().key(0, i)); }
  std::vector<float> copy(const float* x) const { return {x, x + model.head_dim}; }
  ModelShape model;
  KvStore a, b;
};

TEST(SlerpPairs, TurnsBothToTheSameDirectionAndKeepsTheirLengths) {
  Pair p({{2, 0}}, {{0, 3}}, 0.6F, 0);  // 90 degrees: the direction is at 54
  const double angle = 0.6 * std::acos(0.0);
  EXPECT_NEAR(p.first(0)[0], 2 * std::cos(angle), 1e-6);
  EXPECT_NEAR(p.first(0)[1], 2 * std::sin(angle), 1e-6);
  EXPECT_NEAR(p.second(0)[0], 3 * std::cos(angle), 1e-6);
  EXPECT_NEAR(p.second(0)[1], 3 * std::sin(angle), 1e-6);
}

TEST(SlerpPairs, DirectionsThatAreEqualOppositeOrMissing) {
  Pair p({{1, 2, 2}}, {{2, 4, 4}}, 0.6F, 0);
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(p.first(0)[c], c == 0 ? 1 : 2, 1e-6);
    EXPECT_NEAR(p.second(0)[c], c == 0 ? 2 : 4, 1e-6);
  }
  // Sine 0 at both ends: the plain mixture, and the direction with the larger share.
  Pair opposite({{1, 0}}, {{-2, 0}}, 0.6F, 0);
  EXPECT_EQ(opposite.first(0), (std::vector<float>{-1, 0}));
  EXPECT_EQ(opposite.second(0), (std::vector<float>{-2, 0}));
  Pair zero({{0, 0}, {3, 4}}, {{5, 0}, {0, 0}}, 0.6F, 0);
  EXPECT_EQ(zero.first(0), (std::vector<float>{0, 0}));
  EXPECT_EQ(zero.second(0), (std::vector<float>{5, 0}));
  EXPECT_EQ(zero.first(1), (std::vector<float>{3, 4}));
  const float huge = std::numeric_limits<float>::infinity();
  Pair bad({{huge, 1}, {1, 0}}, {{1, 1}, {1, 0}}, 0.6F, 0);
  EXPECT_EQ(bad.second(0), (std::vector<float>{1, 1}));
  EXPECT_EQ(bad.second(1), (std::vector<float>{1, 0}));
}

TEST(SlerpPairs, RetainsTheLargestAnglesAndTheLowestOfTies) {
  const Vectors x = {{1, 0}, {1, 0}, {1, 0}, {1, 0}}, y = {{1, 0.1F}, {0, 1}, {0, 2}, {1, 0.2F}};
  Pair p(x, y, 0.6F, 1);
  EXPECT_EQ(p.second(1), y[1]);
  EXPECT_EQ(p.first(1), x[1]);
  EXPECT_NE(p.second(2), y[2]);
  EXPECT_NE(p.first(0), x[0]);
  Pair all(x, y, 0.6F, 4);
  for (std::int32_t i = 0; i < 4; ++i) EXPECT_EQ(all.second(i), y[static_cast<std::size_t>(i)]);
}

// The shared direction cuts the angle as t says; lengths stay. Any vectors.
TEST(SlerpPairs, AnglesOfRandomVectors) {
  for (const std::int32_t d : {3, 8, 128}) {
    const auto x = RandomLayer::normals(static_cast<std::size_t>(d), 3, d), y = RandomLayer::normals(static_cast<std::size_t>(d), 4, d);
    Pair p({x}, {y}, 0.6F, 0);
    const auto e = p.first(0);
    const auto length = [](const std::vector<float>& v) {
      double s = 0;
      for (const float c : v) s += double{c} * double{c};
      return std::sqrt(s);
    };
    const auto angle = [&](const std::vector<float>& u, const std::vector<float>& v) {
      double s = 0;
      for (std::size_t c = 0; c < u.size(); ++c) s += double{u[c]} * double{v[c]};
      return std::acos(s / length(u) / length(v));
    };
    EXPECT_NEAR(length(e), length(x), 1e-5);
    EXPECT_NEAR(length(p.second(0)), length(y), 1e-5);
    EXPECT_NEAR(angle(e, p.second(0)), 0, 1e-3);
    EXPECT_NEAR(angle(x, e), 0.6 * angle(x, y), 1e-5);
    EXPECT_NEAR(angle(y, e), 0.4 * angle(x, y), 1e-5);
  }
}

}  // namespace
}  // namespace kvlab::test
