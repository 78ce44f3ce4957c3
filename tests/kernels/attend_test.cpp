#include "kernels/attention/attend/attend.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "tests/drawn_sparse_keys.h"
#include "tests/kernels/paged_rows.h"
#include "tests/plain_softmax.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

std::vector<float> noise(std::size_t n, std::uint64_t seed) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>(2 * Draw{seed, Purpose::kTest, i}.uniform() - 1);
  return x;
}

// One KV head of a sequence, with tokens at every second position: 0, 2, 4, ...
struct AttendRow : PagedRows {
  std::int32_t tokens, queries, group, dim;
  std::vector<float> q;

  AttendRow(std::int32_t tokens_, std::int32_t queries_, std::int32_t group_, std::int32_t dim_, std::int32_t page_tokens)
      : PagedRows({tokens_}, dim_, page_tokens), tokens(tokens_), queries(queries_), group(group_), dim(dim_) {
    k = noise(k.size(), 1), v = noise(k.size(), 2), q = noise(static_cast<std::size_t>(lines() * dim), 3);
    kv.k = k.data(), kv.v = v.data(), kv.group = group;
    std::fill(position.begin(), position.end(), -1);
    for (std::int32_t i = 0; i < tokens; ++i) position[slot(i)] = 2 * i;
  }
  [[nodiscard]] std::int32_t lines() const { return queries * group; }
  [[nodiscard]] std::size_t slot(std::int32_t i) const { return static_cast<std::size_t>(kv.slot(0, i)); }
  // Output of a line with exponentials multiplied by these numbers, in double.
  [[nodiscard]] std::vector<double> weighed(std::int32_t line, const std::vector<double>& by) const {
    std::vector<double> sum(static_cast<std::size_t>(dim), 0.0), p;
    for (std::int32_t i = 0; i < tokens; ++i)
      p.push_back(plain_dot(q.data() + line * dim, kv.key(0, i), dim) / std::sqrt(dim) + std::log(by[static_cast<std::size_t>(i)]));
    plain_softmax(p);
    for (std::size_t i = 0; i < p.size(); ++i)
      for (std::size_t c = 0; c < sum.size(); ++c) sum[c] += p[i] * kv.value(0, static_cast<std::int32_t>(i))[c];
    return sum;
  }
  // 1 for the tokens that the line sees.
  [[nodiscard]] std::vector<double> seen(std::int32_t first_position, std::int32_t window, std::int32_t line) const {
    const std::int32_t query = first_position + line / group;
    std::vector<double> by;
    for (std::int32_t i = 0; i < tokens; ++i) by.push_back(2 * i <= query && (window == 0 || 2 * i > query - window) ? 1 : 0);
    return by;
  }
  void check(std::int32_t first_position, std::int32_t window) {
    const Segment all{.kv = kv};
    const Queries asked{q.data(), queries, first_position};
    std::vector<float> out(q.size(), NAN);
    float* outs = out.data();
    run_cpu(Attend{.segments = &all, .num_segments = 1, .queries = &asked, .out = &outs, .window = window});
    for (std::int32_t line = 0; line < lines(); ++line) {
      const std::vector<double> sums = weighed(line, seen(first_position, window, line));
      for (std::int32_t c = 0; c < dim; ++c)
        ASSERT_NEAR(out[static_cast<std::size_t>(line * dim + c)], sums[static_cast<std::size_t>(c)], 2e-6)
            << tokens << " tokens of " << dim << " channels, group " << group << ", from " << first_position << ", window " << window
            << ", line " << line;
    }
  }
};

TEST(AttendCpu, EqualsTheFormula) {
  // Windows in which a query at an odd position sees one token or, of length 1, none; some tokens; all. Queries among the tokens and after.
  AttendRow row(50, 7, 3, 11, 50);
  for (const std::int32_t first_position : {0, 43, 92, 96, 110})
    for (const std::int32_t window : {0, 1, 2, 9, 50, 1000}) row.check(first_position, window);
  // Lines, tokens and channels that fill tiles, fall short of them and go beyond, in pages of several tokens and of one.
  for (const std::int32_t group : {1, 2, 3, 4, 6, 8})
    for (const std::int32_t dim : {8, 16, 64, 80, 128})
      for (const std::int32_t tokens : {1, 15, 16, 17, 47, 100})
        for (const std::int32_t queries : {1, 3}) AttendRow(tokens, queries, group, dim, tokens % 2 == 0 ? 16 : 1).check(2 * tokens - 1, 0);
}

// A weight for each token and query head multiplies the token's exponential; -infinity hides it from that head. Twice: a list that leaves
// out every third token, then whole rows.
TEST(AttendCpu, WeighsTokensForEachHead) {
  AttendRow row(37, 1, 3, 16, 8);
  std::vector<std::int32_t> listed, all(37);
  std::iota(all.begin(), all.end(), 0);
  for (std::int32_t i = 0; i < 37; ++i)
    if (i % 3 != 1) listed.push_back(i);
  for (const std::vector<std::int32_t>& tokens : {listed, all}) {
    const auto n = static_cast<std::int64_t>(tokens.size());
    std::vector<float> weight = noise(static_cast<std::size_t>(3 * n), 9);
    for (std::size_t i = 0; i < weight.size(); i += 5) weight[i] = -INFINITY;
    const std::int64_t first[2] = {0, n};
    Segment segment;
    segment.kv = row.kv, segment.token_log_weight = weight.data(), segment.weighs_tokens = true;
    if (n < 37) segment.index_first = first, segment.index = tokens.data();
    const Queries asked{row.q.data(), 1, 80};
    std::vector<float> out(row.q.size()), plain(row.q.size());
    float *outs = out.data(), *plains = plain.data();
    run_cpu(Attend{&segment, 1, &asked, &outs});
    EXPECT_EQ(call(Attend{&segment, 1, &asked, &outs}).bytes, (2 * n * 16 * 2) + (n < 37 ? 4 * n : 0) + 4 * n * 3 + 2 * 3 * 16 * 2);
    for (std::size_t head = 0; head < 3; ++head) {
      std::vector<double> by(37, 0.0);
      for (std::size_t i = 0; i < tokens.size(); ++i)
        by[static_cast<std::size_t>(tokens[i])] = std::exp(static_cast<double>(weight[i * 3 + head]));
      const std::vector<double> expected = row.weighed(static_cast<std::int32_t>(head), by);
      for (std::size_t c = 0; c < 16; ++c) EXPECT_NEAR(out[head * 16 + c], expected[c], 2e-6);
    }
    segment.token_log_weight = nullptr;
    run_cpu(Attend{&segment, 1, &asked, &plains});
    EXPECT_NE(out, plain);
  }
}

// The same for each of several queries, in a segment beside one without weights; every query sees all tokens.
TEST(AttendCpu, WeighsTokensForEachQuery) {
  AttendRow row(21, 3, 2, 16, 8);
  std::vector<float> weight = noise(21 * 3 * 2, 9);
  for (std::size_t i = 0; i < weight.size(); i += 5) weight[i] = -INFINITY;
  Segment segments[2];
  segments[0].kv = segments[1].kv = row.kv;
  segments[1].token_log_weight = weight.data(), segments[1].weighs_tokens = true, segments[1].weighed_queries = 3;
  const Queries asked{row.q.data(), 3, 80};
  std::vector<float> out(row.q.size());
  float* outs = out.data();
  const Attend op{segments, 2, &asked, &outs};
  run_cpu(op);
  EXPECT_EQ(call(op).bytes, 2 * (2 * 21 * 16 * 2) + 4 * 21 * 3 * 2 + 2 * 3 * 2 * 16 * 2);
  for (std::size_t line = 0; line < 6; ++line) {
    std::vector<double> by;
    for (std::size_t i = 0; i < 21; ++i) by.push_back(1 + std::exp(static_cast<double>(weight[(line / 2 * 21 + i) * 2 + line % 2])));
    const std::vector<double> expected = row.weighed(static_cast<std::int32_t>(line), by);
    for (std::size_t c = 0; c < 16; ++c) EXPECT_NEAR(out[line * 16 + c], expected[c], 2e-6);
  }
}

struct SparseCase {
  DrawnSparseKeys::Shape shape;
  std::int64_t kv_heads, head_dim, window = 0;
  DrawnSparseKeys::Chances chances;
};

std::vector<float> normal_floats(std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& f : x) f = normal(random);
  return x;
}

// Operands and results of one call.
struct SparseCall {
  SparseCall(const SparseCase& c, std::uint64_t seed)
      : lists(c.shape, c.chances, seed),
        q(normal_floats(c.shape.new_tokens * c.shape.q_heads * c.head_dim, seed + 1)),
        k(normal_floats((c.shape.kv_before + c.shape.new_tokens) * c.kv_heads * c.head_dim, seed + 2)),
        v(normal_floats((c.shape.kv_before + c.shape.new_tokens) * c.kv_heads * c.head_dim, seed + 3)),
        out(q.size(), NAN),
        log_sum(static_cast<std::size_t>(c.shape.new_tokens * c.shape.q_heads), NAN) {
    op = {q.data(),        k.data(),   v.data(),   out.data(), log_sum.data(), c.shape.new_tokens, c.shape.kv_before,
          c.shape.q_heads, c.kv_heads, c.head_dim, 0.4F,       c.window,       lists.keys()};
  }
  SparseCall(const SparseCall&) = delete;
  SparseCall& operator=(const SparseCall&) = delete;

  DrawnSparseKeys lists;
  std::vector<float> q, k, v, out, log_sum;
  SparsePrefill op;
};

struct PlainRow {
  std::vector<double> out;
  double log_sum;
};

// Query head h at token t, in double precision: the formula.
PlainRow plain_row(const SparseCall& c, std::int64_t t, std::int64_t h) {
  const SparsePrefill& a = c.op;
  const std::int64_t d = a.head_dim, g = h * a.kv_heads / a.q_heads;
  std::vector<double> p;
  std::vector<std::int64_t> seen;
  for (std::int64_t i = 0; i <= a.kv_before + t; ++i) {
    if (!sees(a.keys, c.lists.list_of(h, t), i, a.kv_before + t, a.window)) continue;
    seen.push_back((i * a.kv_heads + g) * d);
    p.push_back(plain_dot(a.q + (t * a.q_heads + h) * d, a.k + seen.back(), d) * double{a.scale});
  }
  PlainRow row{std::vector<double>(static_cast<std::size_t>(d), 0.0), plain_softmax(p)};
  for (std::size_t i = 0; i < p.size(); ++i)
    for (std::int64_t x = 0; x < d; ++x) row.out[static_cast<std::size_t>(x)] += p[i] * double{a.v[seen[i] + x]};
  return row;
}

// Means of values below 5 in fp32; logits are sums of head_dim products.
void expect_plain(const SparseCall& c) {
  const SparsePrefill& a = c.op;
  for (std::int64_t t = 0; t < a.new_tokens; ++t) {
    for (std::int64_t h = 0; h < a.q_heads; ++h) {
      const PlainRow expected = plain_row(c, t, h);
      const std::size_t line = static_cast<std::size_t>(t * a.q_heads + h);
      if (std::isinf(expected.log_sum))
        ASSERT_EQ(double{c.log_sum[line]}, expected.log_sum) << "token " << t << " head " << h;
      else
        ASSERT_NEAR(c.log_sum[line], expected.log_sum, 1e-5 * (1 + std::abs(expected.log_sum))) << "token " << t << " head " << h;
      for (std::size_t x = 0; x < expected.out.size(); ++x)
        ASSERT_NEAR(c.out[line * expected.out.size() + x], expected.out[x], 2e-5) << "token " << t << " head " << h << " channel " << x;
    }
  }
}

// In order: whole blocks; chunks that begin and end inside of blocks; one head's list for all of a group, and lists of its own for each;
// GQA of 8, whose 128 rows share a tile; windows below, at and above a block; columns; more than a tile of 256 keys, in a row and apart; a
// list of one token's block; blocks after the queries' own.
const SparseCase kSparseCases[] = {
    {{128, 0, 2, 64}, 2, 8, 0, {}},
    {{100, 37, 2, 16}, 1, 4, 0, {.block = 0.5, .column = 0.2}},
    {{1, 63, 4, 64}, 2, 4, 0, {.block = 1.0}},
    {{3, 62, 2, 64}, 1, 5, 0, {.block = 1.0, .column = 0.1}},
    {{70, 90, 4, 16}, 1, 8, 0, {.block = 0.4, .column = 0.1, .shared = true}},
    {{50, 5, 8, 16}, 1, 3, 0, {.block = 0.8, .shared = true}},
    {{90, 130, 2, 32}, 1, 4, 20, {.block = 0.7, .column = 0.2}},
    {{90, 130, 2, 32}, 2, 4, 32, {.block = 0.7}},
    {{90, 130, 2, 32}, 2, 4, 33, {.block = 0.7, .column = 0.5}},
    {{40, 1300, 1, 64}, 1, 4, 0, {.block = 1.0}},
    {{40, 1300, 1, 64}, 1, 4, 0, {.block = 0.5, .column = 0.02}},
    {{40, 1300, 2, 64}, 1, 4, 700, {.block = 0.6, .column = 0.02, .shared = true}},
    {{200, 20, 2, 128}, 2, 4, 0, {.block = 0.5, .own = 0.3, .column = 0.01, .later = 0.5}},
    {{150, 0, 1, 200}, 1, 4, 0, {}},
};

class SparsePrefillCpu : public testing::TestWithParam<SparseCase> {};

TEST_P(SparsePrefillCpu, EqualsTheFormula) {
  SparseCall c(GetParam(), 1);
  run_cpu(c.op);
  expect_plain(c);
}
INSTANTIATE_TEST_SUITE_P(Shapes, SparsePrefillCpu, testing::ValuesIn(kSparseCases));

TEST(SparsePrefillProperty, DrawnShapesEqualTheFormula) {
  std::mt19937_64 random(7);
  const auto draw = [&](std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
  };
  for (std::uint64_t round = 0; round < (short_run() ? 30U : 200U); ++round) {
    const std::int64_t group = draw(1, 5), kv_heads = draw(1, 3);
    SparseCase c{{draw(1, 80), draw(0, 150), group * kv_heads, static_cast<std::int32_t>(draw(1, 40))}, kv_heads, draw(1, 9), 0, {}};
    c.window = draw(0, 2) == 0 ? draw(1, 120) : 0;
    c.chances = {0.1 * static_cast<double>(draw(0, 10)), 0.5 * static_cast<double>(draw(0, 2)), 0.1 * static_cast<double>(draw(0, 4)),
                 0.5 * static_cast<double>(draw(0, 1)), draw(0, 1) == 0};
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << c.shape.new_tokens << " after " << c.shape.kv_before << ", "
                                    << c.shape.q_heads << " on " << kv_heads << " heads, block " << c.shape.block << ", window "
                                    << c.window);
    SparseCall call(c, round);
    run_cpu(call.op);
    expect_plain(call);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(SparsePrefillCpuRange, ListsOfAllBlocksAreDensePrefill) {
  const SparseCase s{{300, 45, 4, 32}, 2, 16, 0, {.block = 1.0}};
  SparseCall c(s, 3);
  c.op.log_sum = nullptr;
  run_cpu(c.op);
  std::vector<float> expected(c.out.size());
  AttentionPrefill dense{c.q.data(), c.k.data(), c.v.data(), expected.data(), nullptr, 300, 45, 4, 2, 16, c.op.scale, 0};
  std::vector<float> scratch(static_cast<std::size_t>(scratch_floats(dense)));
  dense.scratch = scratch.data();
  run_cpu(dense);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(c.out[i], expected[i], 2e-6) << i;
  EXPECT_EQ(call(c.op).flops, flops(shape(dense)));
}

TEST(SparsePrefillCpuRange, AQueryThatSeesNothingGetsZeros) {
  SparseCall c({{70, 10, 2, 32}, 1, 4, 0, {.block = 0.0, .own = 0.0}}, 4);
  run_cpu(c.op);
  EXPECT_EQ(c.out, std::vector<float>(c.out.size(), 0.0F));
  EXPECT_EQ(c.log_sum, std::vector<float>(c.log_sum.size(), -std::numeric_limits<float>::infinity()));
  c.op.keys.column_first = nullptr, c.op.keys.columns = nullptr;  // the same without lists of columns
  run_cpu(c.op);
  EXPECT_EQ(c.out, std::vector<float>(c.out.size(), 0.0F));
  c.op.new_tokens = 0;
  run_cpu(c.op);
}

// A NaN in a block that is not listed does not reach the result.
TEST(SparsePrefillCpuRange, KeysThatAreNotListedAreNotTouched) {
  SparseCall c({{20, 44, 1, 16}, 1, 4, 0, {.block = 0.0}}, 5);
  c.lists.blocks = {1, 2, 1, 3}, c.lists.block_first = {0, 2, 4}, c.lists.columns = {5}, c.lists.column_first = {0, 1, 1};
  ASSERT_EQ(c.lists.query_blocks, 2);
  c.op.keys = c.lists.keys();
  for (std::size_t i = 0; i < 64 * 4; ++i)
    if (i / 4 < 16 && i / 4 != 5) c.k[i] = c.v[i] = NAN;
  run_cpu(c.op);
  expect_plain(c);
}

// Two query blocks of 4 at positions 6 .. 9 (a half each), of one head: {0, 1} and {2} with a column.
TEST(SparsePrefillCall, CountsPairsAndBytes) {
  const std::int64_t block_first[] = {0, 2, 3}, column_first[] = {0, 0, 1};
  SparsePrefill a;
  a.new_tokens = 4, a.kv_before = 6, a.q_heads = 1, a.kv_heads = 1, a.head_dim = 8;
  a.keys = {4, block_first, nullptr, column_first, nullptr};
  const OpCall c = call(a);
  EXPECT_EQ(c.flops, 4 * 8 * ((4 + 3) + (4 + 4) + (1 + 1) + (1 + 2)));
  EXPECT_EQ(c.tokens, (4 + 4) + (1 + 2));
  EXPECT_EQ(c.outputs, 4);
  EXPECT_EQ(c.bytes, 2 * 10 * 8 * 4 + 2 * 4 * 8 * 4 + 4 * (3 + 1));  // all 10 keys once, q and out, the lists
  a.keys.column_first = nullptr;
  EXPECT_EQ(call(a).tokens, 8 + 2);
  a.activation_bytes = a.kv_bytes = 2;
  EXPECT_EQ(call(a).bytes, 2 * 10 * 8 * 2 + 2 * 4 * 8 * 2 + 4 * 3);
}

}  // namespace
}  // namespace kvlab
