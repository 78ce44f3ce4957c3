#include <set>

#include "policies/kv/selector/key_codes/key_codes.h"
#include "policies/kv/selector/product_codes_op.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

TEST(KCache, ReadsTheUnionOfEachQueryHeadsLargestLogits) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t prompt : {7, 8, 63, 65}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, prompt, "k_cache", "{top_tokens: 6}");
      d.expect_rows(1, [&](std::int32_t r, std::int32_t) {
        std::set<std::int32_t> expected{d.tokens() - 1};
        for (std::int32_t h = 0; h < group; ++h)
          for (const std::int32_t i : best(d.logits(r, h, 0, prompt), 6)) expected.insert(i);
        return Ints(expected.begin(), expected.end());
      });
    }
}

TEST(KCache, FetchesNothingWhereNothingChanged) {
  Prefilled d({4, 8, 2, 8, 16}, 1, 80, "k_cache", "{top_tokens: 6}");
  d.decode();
  d.part->take_traffic();
  LayerStep same = d.step();
  d.part->select(same);
  const Traffic traffic = d.part->take_traffic();
  EXPECT_GT(traffic.asked_units, 0);
  EXPECT_EQ(traffic.fetched_bytes, 0);
}

TEST(KCache, HalfOfTheCacheLiesOnTheHost) {
  Prefilled d({4, 2, 2, 8, 16}, 1, 1000, "k_cache", "{top_tokens: 6}");
  const TierBytes held{2 * 1000 * 2 * 8 * 2, 0, 0};
  EXPECT_EQ(d.part->resident_in_layer(2, d.model, d.store.rows(), held), (TierBytes{(1000 + 7) * 2 * 8 * 2, (1000 - 7) * 2 * 8 * 2, 0}));
  EXPECT_EQ(d.part->resident_in_layer(1, d.model, d.store.rows(), held), held);
}

constexpr const char* kNearest = "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5}";

// Tokens outside the windows that some query head of the row has among its `top` nearest.
std::set<std::int32_t> nearest_keys(const Decode& d, std::int32_t row, std::size_t top) {
  std::set<std::int32_t> nearest;
  for (std::int32_t h = 0; h < d.model.group(); ++h)
    for (const std::int32_t i : best(d.logits(row, h, 4, d.tokens() - 8), top)) nearest.insert(i + 4);
  return nearest;
}

TEST(RetrievalAttention, WindowsAndTheUnionOfNearestKeys) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t prompt : {11, 12, 13, 14, 90}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, prompt, "retrieval_attention", kNearest);
      d.expect_rows(1, [&](std::int32_t r, std::int32_t) {
        std::set<std::int32_t> expected = nearest_keys(d, r, 5);
        for (std::int32_t i = 0; i < d.tokens(); ++i)
          if (i < 4 || i >= d.tokens() - 8) expected.insert(i);
        return std::vector<std::int32_t>(expected.begin(), expected.end());
      });
    }
}

TEST(RetrievalAttention, SearchIsPricedByItsVisits) {
  Prefilled d({4, 8, 2, 8, 16}, 1, 1000, "retrieval_attention", "{sink_tokens: 0, recent_tokens: 1, top_tokens: 5, visit_frac: 0.02}");
  d.decode();
  // 20 of 1000 keys, for each of 4 query heads of 2 rows: keys of 8 channels read by each head, and lists of 5 written.
  EXPECT_EQ(d.ops.log().front(), (OpCall{.op = "ann_search",
                                         .rows = 2,
                                         .tokens = 40,
                                         .outputs = 40,
                                         .bytes = 2 * (20 * 4 * 8 * 2 + 4 * 20),
                                         .flops = 2 * 2 * 20 * 4 * 8}));
}

constexpr const char* kGraph =
    "{sink_tokens: 4, recent_tokens: 8, top_tokens: 10, search: hnsw, links: 8, build_candidates: 64, search_candidates: 64}";

TEST(RetrievalAttention, GraphFindsMostOfTheNearestKeys) {
  Prefilled d({4, 8, 2, 16, 16}, 2, 700, "retrieval_attention", kGraph);
  double found = 0, all = 0, visited = 0;
  for (std::int32_t t = 0; t < 12; ++t) {
    d.ops.clear_log();
    const auto rows = d.decode();
    for (const OpCall& c : d.ops.log()) visited += c.op == "ann_visits" ? static_cast<double>(c.tokens) : 0;
    for (std::int32_t r = 0; r < 4; ++r) {
      const std::set<std::int32_t> nearest = nearest_keys(d, r, 10);
      const auto& row = nth(rows, r);
      for (const std::int32_t i : nearest) found += std::binary_search(row.begin(), row.end(), i) ? 1 : 0;
      all += static_cast<double>(nearest.size());
      for (const std::int32_t i : row) EXPECT_TRUE(i < d.tokens());
    }
  }
  EXPECT_GT(found / all, 0.85);
  EXPECT_LT(visited, 0.9 * 12 * 16 * 700);  // fewer keys looked at than there are
}

TEST(RetrievalAttention, GraphOfFewKeysFindsAll) {
  Prefilled d({4, 2, 2, 8, 16}, 1, 40, "retrieval_attention", kGraph);
  auto exact = make_part<SelectorRegistry>("retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 10}");
  for (std::int32_t t = 0; t < 8; ++t) {
    const auto rows = d.decode();
    LayerStep same = d.step();
    const Selection chosen = exact->select(same);
    for (std::int32_t r = 0; r < 2; ++r) EXPECT_EQ(nth(rows, r), tokens_in(chosen, r));
  }
}

std::vector<double> turned(const float* x, std::int32_t d, const RopeForm& rope, std::int32_t steps) {
  std::vector<double> y(x, x + d);
  for (std::int32_t c = 0; c < d / 2 && rope.base > 0; ++c) {
    const double angle = steps / rope.scaling.factor * std::pow(rope.base, -2.0 * c / d), a = static_cast<double>(x[c]),
                 b = static_cast<double>(x[c + d / 2]);
    nth(y, c) = a * std::cos(angle) - b * std::sin(angle);
    nth(y, c + d / 2) = b * std::cos(angle) + a * std::sin(angle);
  }
  return y;
}

// A center for every key: the look-up is exact, and what remains is the rule of far queries.
TEST(A2ats, WithoutLossItRanksFarKeysAtOneDistance) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const RopeForm& rope : {RopeForm(0), RopeForm(10000), RopeForm(10000, {RopeScaling::Kind::kLinear, 8})}) {
      SCOPED_TRACE(rope.base / rope.scaling.factor);
      Prefilled d({4, 2 * group, 2, 8, 16, 2, rope}, 2, 60, "a2ats",
                  "{sink_tokens: 3, local_tokens: 8, top_frac: 0.1, tokens_per_code: 1, far_tokens: 32}");
      d.expect_rows(1, [&](std::int32_t r, std::int32_t) {
        const Ints always = tokens_of({}, 1, 3, 61 - 8, 61);
        std::set<std::int32_t> expected(always.begin(), always.end());
        for (std::int32_t h = 0; h < group; ++h) {
          const std::vector<double> q = turned(d.query(r, h), 8, rope, 32 - 60);
          std::vector<double> z;
          for (std::int32_t i = 3; i < 61 - 8; ++i) z.push_back(dot(q, turned(d.key(r, i), 8, rope, -i)));
          for (const std::int32_t i : best(z, 6)) expected.insert(i + 3);
        }
        return Ints(expected.begin(), expected.end());
      });
    }
}

TEST(A2ats, CodesAreNearestUnderTheQueriesMetric) {
  RandomLayer layer({1, 2, 1, 4, 8}, 1, 40, 3);
  const KvRows kv = layer.store.rows();
  std::vector<float> gram(16), root(16), centers(5 * 4);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 4; ++j)
      for (std::size_t t = 0; t < 80; ++t) gram[4 * i + j] += layer.q[0][4 * t + i] * layer.q[0][4 * t + j];
  std::vector<std::int32_t> code(40);
  const std::int32_t codes = 5, from = 0, to = 40;
  const std::int64_t seed = 7;
  const float* g = gram.data();
  float *l = root.data(), *c = centers.data();
  std::int32_t* out = code.data();
  run_cpu(KeyCodes{kv, KeyCodes::Kind::kTrain, nullptr, &codes, &l, &c, 10, &seed, &g});
  run_cpu(KeyCodes{.kv = kv, .codes = &codes, .root = &l, .centers = &c, .from = &from, .to = &to, .code = &out});
  double size = 0, spread = 0, whole = 0;
  for (const float x : gram) size += static_cast<double>(x) * static_cast<double>(x) / 16;
  const auto distance = [&](const float* a, const float* b) {
    double sum = 0;
    for (std::size_t i = 0; i < 4; ++i)
      for (std::size_t j = 0; j < 4; ++j)
        sum += static_cast<double>(a[i] - b[i]) * (static_cast<double>(gram[4 * i + j]) / std::sqrt(size) + (i == j ? 1e-6 : 0)) *
               static_cast<double>(a[j] - b[j]);
    return sum;
  };
  const float zero[4] = {};
  for (std::int32_t i = 0; i < 40; ++i) {
    const double own = distance(kv.key(0, i), c + nth(code, i) * 4);
    for (std::int32_t j = 0; j < 5; ++j) EXPECT_LE(own, distance(kv.key(0, i), c + j * 4) + 1e-4);
    spread += own, whole += distance(kv.key(0, i), zero);
  }
  EXPECT_LT(spread, 0.6 * whole);  // centers represent their keys
}

TEST(A2ats, OneCenterRanksNothing) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 60, "a2ats", "{sink_tokens: 3, local_tokens: 8, top_frac: 0.1, max_codes: 1}");
  for (const auto& row : d.decode()) EXPECT_EQ(row, tokens_of({}, 1, 3 + 6, 61 - 8, 61));
}

// A center for every token: look-ups are exact.
TEST(PqCache, WithoutLossItReadsTheLargestAttentionBetweenFirstAndNewest) {
  for (const std::int32_t group : {1, 3}) {
    Prefilled d({4, 2 * group, 2, 8, 16}, 2, 60, "pq_cache", "{sink_tokens: 3, read_frac: 0.5, centers: 57}");
    d.expect_rows(3, [&](std::int32_t r, std::int32_t) {
      const std::int32_t tail = d.tokens() - 14;  // a quarter of 57 tokens are newest ones, and as many are found
      std::vector<double> scores(static_cast<std::size_t>(tail - 3), 0.0);
      for (std::int32_t h = 0; h < group; ++h) {
        const std::vector<double> p = softmax(d.logits(r, h, 3, tail));
        for (std::size_t i = 0; i < p.size(); ++i) scores[i] += p[i];
      }
      return tokens_of(shifted(best(scores, 14), 3), 1, 3, tail, d.tokens());
    });
  }
}

TEST(ProductCodes, AreTheNearestCentersOfEachPart) {
  RandomLayer layer({1, 2, 1, 8, 8}, 1, 60, 3);
  const KvRows kv = layer.store.rows();
  constexpr std::int32_t kCenters = 6, kWidth = 4;
  std::vector<float> center(2 * kCenters * kWidth);
  std::vector<std::int32_t> code(60 * 2, -1);
  float* c = center.data();
  std::int32_t* out = code.data();
  const std::int32_t begin = 4, end = 60, count = kCenters;
  run_cpu(ProductCodes{kv, {2, kCenters}, ProductCodes::Kind::kTrain, &begin, &end, &count, &c, nullptr, 8});
  run_cpu(ProductCodes{kv, {2, kCenters}, ProductCodes::Kind::kAssign, &begin, &end, &count, &c, &out});
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(code[i], -1);
  double spread = 0, whole = 0;
  for (std::int32_t i = begin; i < end; ++i)
    for (std::int32_t p = 0; p < 2; ++p) {
      const auto distance = [&](std::int32_t to) {
        double sum = 0;
        for (std::int32_t j = 0; j < kWidth; ++j) {
          const auto x = static_cast<double>(kv.key(0, i)[p * kWidth + j]);
          const double y = to < 0 ? 0.0 : static_cast<double>(c[(p * kCenters + to) * kWidth + j]);
          sum += (x - y) * (x - y);
        }
        return sum;
      };
      const double own = distance(nth(code, 2 * i + p));
      for (std::int32_t to = 0; to < kCenters; ++to) EXPECT_LE(own, distance(to) + 1e-4);
      spread += own, whole += distance(-1);
    }
  EXPECT_LT(spread, 0.7 * whole);  // centers are near their keys
}

TEST(PqCache, RefusesPartsThatDoNotDivideAHead) {
  const ModelShape model{4, 2, 1, 8, 16};
  EXPECT_NE(make_part<SelectorRegistry>("pq_cache", "{parts: 3}")->refuses(model).find("8 channels"), std::string::npos);
  EXPECT_EQ(make_part<SelectorRegistry>("pq_cache", "{parts: 4}")->refuses(model), "");
}

// Nothing but first tokens in the prompt: codes begin when there is a token for each center.
TEST(PqCache, AShortPromptIsReadWholeUntilThereAreEnoughTokens) {
  Prefilled d({4, 2, 1, 8, 16}, 1, 3, "pq_cache", "{sink_tokens: 3, read_frac: 0.5, centers: 8}");
  for (std::size_t n = 4; n < 11; ++n) EXPECT_EQ(d.decode()[0].size(), n);
  for (std::int32_t t = 0; t < 7; ++t) EXPECT_EQ(d.decode()[0].size(), 3U + 1 + 1);
}

}  // namespace
}  // namespace kvlab::test
