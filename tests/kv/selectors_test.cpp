#include "base/ceil_div.h"
#include "base/error.h"
#include "kernels/select/cluster/cluster.h"
#include "sim/kv_cost/shape_run.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

using Rows = std::vector<std::vector<std::int32_t>>;

TEST(LServe, PagesByTheBestOfTheirLogicalPagesServeFourSteps) {
  for (const std::int32_t group : {1, 3, 8}) {
    Prefilled d({1, 2 * group, 2, 8, 16}, 1, 127, "lserve", "{page_tokens: 16, logical_tokens: 4, budget_tokens: 64, group: max}");
    Rows chosen(2);
    d.expect_rows(9, [&](std::int32_t r, std::int32_t t) {
      const std::int32_t old = t / 4 * 4, pages = (127 + old) / 16;  // when the choice was made
      std::vector<double> scores;
      for (std::int32_t p = 0; p < pages; ++p) {
        scores.push_back(-1e30);
        for (std::int32_t i = p * 16; i < p * 16 + 16; i += 4) scores.back() = std::max(scores.back(), d.group_bound(r, i, i + 4));
      }
      if (t % 4 == 0) nth(chosen, r) = best(scores, 3);
      return tokens_of(nth(chosen, r), 16, 0, pages * 16, d.tokens());
    });
  }
}

// Votes of all query heads of the layer for the tokens between sinks and newest ones: each head's softmax is over these alone.
std::vector<double> votes(const Decode& d, std::int32_t sinks, std::int32_t recent) {
  std::vector<double> sum(static_cast<std::size_t>(d.tokens() - sinks - recent), 0.0);
  for (std::int32_t r = 0; r < d.model.kv_heads; ++r)
    for (std::int32_t h = 0; h < d.model.group(); ++h) {
      const std::vector<double> p = softmax(d.logits(r, h, sinks, d.tokens() - recent));
      for (std::size_t i = 0; i < p.size(); ++i) sum[i] += p[i];
    }
  return sum;
}

std::vector<std::int32_t> elected(const Decode& d, std::int32_t sinks, std::int32_t recent, std::size_t top) {
  return shifted(best(votes(d, sinks, recent), top), sinks);
}

TEST(TokenSelect, HeadsElectTheSameTokens) {
  for (const std::int32_t group : {1, 4}) {
    Prefilled d({1, 2 * group, 2, 8, 16}, 1, 40, "token_select", "{sink_tokens: 2, recent_tokens: 3, top_tokens: 5, min_cosine: 2}");
    d.expect_rows(3, [&](std::int32_t, std::int32_t) { return tokens_of(elected(d, 2, 3, 5), 1, 2, d.tokens() - 3, d.tokens()); });
  }
}

TEST(TokenSelect, KeepsItsChoiceWhileTheQueryStaysClose) {
  Prefilled d({1, 4, 2, 8, 16}, 1, 40, "token_select", "{sink_tokens: 2, recent_tokens: 3, top_tokens: 5, min_cosine: -1}");
  d.decode();
  const auto first = elected(d, 2, 3, 5);
  for (std::int32_t t = 0; t < 4; ++t) {
    const Rows rows = d.decode();
    EXPECT_EQ(rows[1], tokens_of(first, 1, 2, d.tokens() - 3, d.tokens()));
  }
  EXPECT_EQ(d.part->take_traffic().hit_units, 2 * 4 * 5);
  EXPECT_NE(first, elected(d, 2, 3, 5));
  d.part->forget(0);  // another sequence: no choice to keep
  const Rows rows = d.decode();
  EXPECT_EQ(rows[0], tokens_of(elected(d, 2, 3, 5), 1, 2, d.tokens() - 3, d.tokens()));
}

TEST(TokenSelect, RefusesHeadsOfDifferentLength) {
  Prefilled d({1, 4, 2, 8, 16}, 1, 40, "token_select", "{top_tokens: 5}");
  d.store.shrink(1, 30);
  EXPECT_THROW(d.decode(), InputError);
}

TEST(TokenSelect, BudgetCountsSinksAndNewestTokens) {
  for (const std::int32_t budget : {1, 7, 20, 39}) {
    Prefilled d({1, 4, 2, 8, 16}, 1, 40, "token_select", "{}", {.budget = budget});
    EXPECT_EQ(d.decode()[0].size(), static_cast<std::size_t>(budget));
  }
}

TEST(Recycled, LargestTokensOfTheFullStepMakeRoomForNewOnes) {
  for (const std::int32_t group : {1, 3}) {
    Prefilled d({1, 2 * group, 2, 8, 16}, 2, 40, "recycled", "{budget_tokens: 12, every_steps: 4, schedule: fixed}");
    std::vector<std::vector<double>> full(4);
    d.expect_rows(9, [&](std::int32_t r, std::int32_t t) {
      const std::int32_t since = t % 4;
      if (since == 0) nth(full, r) = d.attention(r);
      return tokens_of(best(nth(full, r), since == 0 ? 1000 : static_cast<std::size_t>(12 - since)), 1, 0, d.tokens() - since, d.tokens());
    });
  }
}

TEST(Recycled, DynamicScheduleTakesFullStepsWhereTheQueryTurned) {
  for (const double cosine : {-1.0, 1.0}) {
    Prefilled d({1, 4, 2, 8, 16}, 1, 40, "recycled", "{budget_tokens: 12, every_steps: 3, min_cosine: " + std::to_string(cosine) + "}");
    for (std::int32_t t = 0; t < 7; ++t) {
      const std::size_t n = d.decode()[0].size();
      const bool full = t == 0 || (cosine > 0 && t % 3 == 0);
      EXPECT_EQ(n, full ? static_cast<std::size_t>(d.tokens()) : 12U) << "step " << t;
    }
  }
}

TEST(InfLlm2, BlocksByTheBestWindowThatTouchesThem) {
  for (const std::int32_t group : {1, 3, 8}) {
    Prefilled d({1, 2 * group, 2, 8, 16}, 1, 150, "infllm2",
                "{kernel_tokens: 8, stride_tokens: 4, block_tokens: 16, window_tokens: 20, top_blocks: 4, dense_tokens: 64}");
    d.expect_rows(20, [&](std::int32_t r, std::int32_t) {
      const std::int32_t n = d.tokens(), blocks = (n - 20) / 16;
      std::vector<double> scores(static_cast<std::size_t>(blocks), -1.0), sum(static_cast<std::size_t>((n + 3) / 4), 0.0);
      for (std::int32_t h = 0; h < group; ++h) {
        double total = 0;
        for (std::int32_t j = 0; j * 4 < n; ++j) total += std::exp(d.mean_logit(r, h, j * 4, j * 4 + 8));
        for (std::int32_t j = 0; j * 4 < n; ++j) nth(sum, j) += std::exp(d.mean_logit(r, h, j * 4, j * 4 + 8)) / total;
      }
      for (std::int32_t b = 1; b < blocks; ++b)
        for (std::int32_t j = 0; j * 4 < n; ++j)
          if (j * 4 < b * 16 + 16 && j * 4 + 8 > b * 16) nth(scores, b) = std::max(nth(scores, b), nth(sum, j));
      return tokens_of(best(scores, 3), 16, 16, blocks * 16, n);
    });
  }
}

TEST(InfLlm2, ShortRowsAreDense) {
  Prefilled d({1, 4, 2, 8, 16}, 1, 150, "infllm2", "{window_tokens: 20, top_blocks: 1, block_tokens: 16, dense_tokens: 152}");
  EXPECT_EQ(d.decode()[0].size(), 151U);
  EXPECT_LT(d.decode()[0].size(), 151U);
}

TEST(RetrievalChunks, FirstQueryChoosesForAllSteps) {
  for (const std::int32_t group : {1, 4})
    for (const std::int32_t prompt : {63, 64, 65}) {
      Prefilled d({1, 2 * group, 2, 8, 16}, 1, prompt, "retrieval_chunks", "{budget_tokens: 32}");
      Rows chosen(2);
      d.expect_rows(3, [&](std::int32_t r, std::int32_t t) {
        std::vector<double> scores;
        for (std::int32_t c = 1; c < prompt / 8; ++c) {
          scores.push_back(0);
          for (std::int32_t h = 0; h < group; ++h) scores.back() += d.mean_logit(r, h, c * 8, c * 8 + 8);
        }
        if (t == 0) nth(chosen, r) = shifted(best(scores, 3), 1);
        return tokens_of(nth(chosen, r), 8, 8, prompt / 8 * 8, d.tokens());
      });
    }
}

// Halving by intervals, in doubles.
std::vector<std::int32_t> halve(const Decode& d, std::int32_t row, std::int32_t sinks, std::int32_t block, std::int32_t blocks,
                                std::int32_t keep) {
  struct Interval {
    std::int32_t begin, end;
  };
  std::vector<Interval> groups;
  for (std::int32_t g = 0; g < keep; ++g) groups.push_back({g * blocks / keep, (g + 1) * blocks / keep});
  std::int32_t largest = ceil_div(blocks, keep);
  for (; largest > 1; largest = (largest + 1) / 2) {
    std::vector<Interval> halves;
    std::vector<double> scores;
    for (const Interval& g : groups) {
      const std::int32_t middle = (g.begin + g.end) / 2;
      for (const Interval& half : {Interval{g.begin, middle}, Interval{middle, g.end}}) {
        if (half.begin == half.end) continue;
        halves.push_back(half);
        scores.push_back(0);
        for (std::int32_t h = 0; h < d.model.group(); ++h) scores.back() += d.logit(row, h, sinks + (half.begin + half.end) * block / 2);
      }
    }
    groups.clear();
    for (const std::int32_t i : best(scores, static_cast<std::size_t>(keep))) groups.push_back(nth(halves, i));
  }
  std::vector<std::int32_t> found;
  for (const Interval& g : groups) {
    EXPECT_LE(g.end - g.begin, 1);
    found.push_back(g.begin);
  }
  return found;
}

TEST(Hip, FindsBlocksByHalving) {
  for (const std::int32_t group : {1, 3, 4})
    for (const std::int32_t prompt : {40, 99, 257}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 1, prompt, "hip", "{top_tokens: 20, block_tokens: 2, sink_tokens: 3, recent_tokens: 5}",
                  {.layer = 3});
      d.expect_rows(4, [&](std::int32_t r, std::int32_t) {
        const std::int32_t blocks = (d.tokens() - 8) / 2;
        std::vector<std::int32_t> expected{0, 1, 2};
        for (const std::int32_t b : halve(d, r, 3, 2, blocks, 10)) expected.push_back(3 + 2 * b), expected.push_back(4 + 2 * b);
        for (std::int32_t i = 3 + blocks * 2; i < d.tokens(); ++i) expected.push_back(i);
        return expected;
      });
    }
}

TEST(MpCache, SiftsLargeClustersThenSmallOnesAndSharesBetweenLayers) {
  for (const std::int32_t group : {1, 4}) {
    Prefilled d({4, 2 * group, 2, 8, 16}, 1, 130, "mpcache", "{large_tokens: 8, small_tokens: 4, keep_frac: 0.25}");
    for (std::int32_t t = 0; t < 3; ++t) {
      const Rows rows = d.decode();
      LayerStep next = d.step(3);
      const Selection shared = d.part->select(next);
      const std::int32_t large = d.tokens() / 8 - (d.tokens() % 8 == 0 ? 1 : 0);  // before the newest
      for (std::int32_t r = 0; r < 2; ++r) {
        const auto blend = [&](std::int32_t begin, std::int32_t end) {
          double sum = 0;
          for (std::int32_t h = 0; h < group; ++h)
            for (std::int32_t c = 0; c < 8; ++c) {
              const auto [low, high] = d.channel_range(r, c, begin, end);
              sum += static_cast<double>(d.query(r, h)[c]) * (0.6 * high + 0.4 * low);
            }
          return sum;
        };
        std::vector<double> coarse, fine;
        for (std::int32_t u = 1; u < large; ++u) coarse.push_back(blend(u * 8, u * 8 + 8));
        std::vector<std::int32_t> candidates, chosen;
        for (const std::int32_t u : best(coarse, static_cast<std::size_t>((large - 1 + 1) / 2)))
          candidates.push_back(2 * (u + 1)), candidates.push_back(2 * (u + 1) + 1);
        for (const std::int32_t u : candidates) fine.push_back(blend(u * 4, u * 4 + 4));
        for (const std::int32_t i : best(fine, static_cast<std::size_t>((2 * (large - 1) + 3) / 4))) chosen.push_back(nth(candidates, i));
        const auto expected = tokens_of(chosen, 4, 8, large * 8, d.tokens());
        EXPECT_EQ(nth(rows, r), expected);
        EXPECT_EQ(tokens_in(shared, r), expected);
      }
    }
  }
}

TEST(MpCache, BudgetInTokensTakesThePlaceOfTheShare) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 130, "mpcache", "{large_tokens: 8, small_tokens: 4}", {.budget = 60});
  const std::size_t n = d.decode()[0].size();
  EXPECT_LE(n, 60U);
  EXPECT_GT(n, 56U);
}

// Clusters of a row's prompt from the same operation, then the definition in doubles: weights, threshold, tokens.
TEST(Squeezed, ClustersAboveTheCalibratedThreshold) {
  for (const std::int32_t group : {1, 3}) {
    Prefilled d({1, 2 * group, 2, 8, 16}, 1, 120, "squeezed", "{clusters_frac: 0.1, drop_frac: 0.6, window_tokens: 10, rounds: 4}",
                {.window = 10});
    const Ints tokens(2, 120), clusters(2, 12);
    std::vector<Ints> of(2, Ints(120)), sizes(2, Ints(12));
    std::vector<std::vector<float>> centroids(2, std::vector<float>(12 * 8));
    std::vector<std::int32_t*> of_rows{of[0].data(), of[1].data()}, size_rows{sizes[0].data(), sizes[1].data()};
    std::vector<float*> centroid_rows{centroids[0].data(), centroids[1].data()};
    run_cpu(ClusterKeys{d.store.rows(), tokens.data(), clusters.data(), 4, of_rows.data(), centroid_rows.data(), size_rows.data()});
    const auto weights = [&](std::int32_t row, std::int32_t token) {
      const auto r = static_cast<std::size_t>(row);
      std::vector<double> mean(12, 0.0);
      for (std::int32_t h = 0; h < group; ++h) {
        const float* q = d.q[0].data() + ((token * 2 + row) * group + h) * 8;
        double total = 0;
        for (std::size_t c = 0; c < 12; ++c) total += sizes[r][c] * std::exp(d.dot(q, centroids[r].data() + c * 8) / std::sqrt(8.0));
        for (std::size_t c = 0; c < 12; ++c) mean[c] += std::exp(d.dot(q, centroids[r].data() + c * 8) / std::sqrt(8.0)) / total / group;
      }
      return mean;
    };
    std::vector<double> all;  // one weight per token, query and head: the threshold is a plain quantile of these
    for (std::int32_t r = 0; r < 2; ++r)
      for (std::int32_t t = 110; t < 120; ++t) {
        const auto w = weights(r, t);
        for (const std::int32_t c : nth(of, r)) all.push_back(nth(w, c));
      }
    std::sort(all.begin(), all.end(), std::greater<>());
    const double threshold = nth(all, static_cast<std::int64_t>(0.4 * 2400));
    d.expect_rows(5, [&](std::int32_t r, std::int32_t) {
      const auto w = weights(r, d.tokens() - 1);
      Ints expected;
      for (std::int32_t i = 0; i < 120; ++i)
        if (nth(w, nth(nth(of, r), i)) > threshold * (1 + 1e-6)) expected.push_back(i);
      return tokens_of(expected, 1, 0, 120, d.tokens());
    });
  }
}

TEST(ActQkv, ChunksBestMatchedByTheProbe) {
  Prefilled d({1, 4, 2, 8, 16}, 1, 150, "act_qkv",
              "{chunk_tokens: 8, window_tokens: 6, sink_tokens: 8, recent_tokens: 10, budget_tokens: 50}", {.window = 6});
  d.expect_rows(9, [&](std::int32_t r, std::int32_t) {
    const std::int32_t n = d.tokens(), chunks = (n - 10) / 8;
    std::vector<double> mean(32, 0.0), probe(32, 0.0), distance(6, 0.0);
    const auto q = [&](std::int32_t i, std::size_t c) { return static_cast<double>(d.q[0][static_cast<std::size_t>(n - 6 + i) * 32 + c]); };
    for (std::int32_t i = 0; i < 6; ++i)
      for (std::size_t c = 0; c < 32; ++c) mean[c] += q(i, c) / 6;
    for (std::int32_t i = 0; i < 6; ++i)
      for (std::size_t c = 0; c < 32; ++c) nth(distance, i) += std::pow(q(i, c) - mean[c], 2);
    const double deviation = std::accumulate(distance.begin(), distance.end(), 0.0) / 6;
    double total = 0;
    for (double& x : distance) total += x = std::exp(std::sqrt(x / deviation));
    for (std::int32_t i = 0; i < 6; ++i)
      for (std::size_t c = 0; c < 32; ++c) probe[c] += nth(distance, i) / total * q(i, c);
    std::vector<double> scores(static_cast<std::size_t>(chunks), 0.0);
    for (std::size_t h = 0; h < 2; ++h) {
      std::vector<double> e(scores.size(), 0.0);
      for (std::int32_t i = 0; i < chunks * 8; ++i)
        for (std::size_t x = 0; x < 8; ++x)
          nth(e, i / 8) += probe[static_cast<std::size_t>(r) * 16 + h * 8 + x] * static_cast<double>(d.key(r, i)[x]) / 8 / std::sqrt(8.0);
      double sum = 0;
      for (double& x : e) sum += x = std::exp(x);
      for (std::size_t c = 0; c < e.size(); ++c) scores[c] += e[c] / sum / 2;
    }
    scores[0] = -1;  // the sinks' chunk is in anyway; one layer alone gets the average number of chunks
    const auto top = best(scores, static_cast<std::size_t>((50 - 8 - (n - chunks * 8)) / 8));
    return tokens_of(top, 8, 8, chunks * 8, n);
  });
}

}  // namespace
}  // namespace kvlab::test
