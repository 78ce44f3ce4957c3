#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/allocate/pool_numbers_op.h"
#include "tests/kv/allocator_fixture.h"

namespace kvlab::test {
namespace {

using Row = std::vector<double>;
const ModelShape kLayersModel{5, 8, 2, 8, 16};
constexpr std::int32_t kTokens = 90;

double sum(const Row& x, std::int32_t begin, std::int32_t end) {
  double total = 0;
  for (std::int32_t i = begin; i < end; ++i) total += nth(x, i);
  return total;
}

// Every head of the layer and sequence keeps the same; that count.
std::int32_t count_of(const ScoredModel& m, std::int32_t layer, std::int32_t s) {
  const Ints& keep = nth(m.keep, layer);
  const auto row = static_cast<std::size_t>(s * m.model.kv_heads);
  for (std::int32_t h = 1; h < m.model.kv_heads; ++h) EXPECT_EQ(keep[row + static_cast<std::size_t>(h)], keep[row]);
  return keep[row];
}

// The counts of all layers for the first sequence.
Ints counts_of(const ScoredModel& m) {
  Ints counts;
  for (std::int32_t l = 0; l < m.model.num_layers; ++l) counts.push_back(count_of(m, l, 0));
  return counts;
}

// A layer's preference by plain loops: entropy and variance of the window's attention to earlier tokens, over all query heads.
double plain_preference(const RandomLayer& layer, std::int32_t s, std::int32_t w, double tau_entropy, double tau_variance) {
  double entropy = 0, variance = 0;
  for (std::int32_t h = 0; h < layer.model.q_heads; ++h) {
    std::vector<Row> rows;
    for (std::int32_t t = kTokens - w; t < kTokens; ++t) rows.push_back(plain_row_of_head(layer, s, h, t));
    for (std::size_t i = 0; i < static_cast<std::size_t>(kTokens - w); ++i) {
      double mean = 0, var = 0;
      for (const Row& p : rows) mean += p[i] / w, entropy -= p[i] * std::log(p[i]);
      for (const Row& p : rows) var += (p[i] - mean) * (p[i] - mean) / (w - 1);
      variance += var;
    }
  }
  return std::pow(entropy, 1 / tau_entropy) * std::pow(variance, 1 / tau_variance);
}

// Layers attend differently where some keys are longer.
void stretch_keys(ScoredModel& m) {
  for (std::int32_t l = 0; l < m.model.num_layers; ++l) {
    RandomLayer& layer = *nth(m.layers, l);
    const float by = 0.5F + 0.4F * static_cast<float>(l);
    for (auto& k : layer.k)
      for (float& x : k) x *= by;
    const KvRows kv = layer.store.rows();
    for (std::int64_t i = 0; i < kv.pool_tokens * kv.head_dim; ++i) kv.k[i] *= by;
  }
}

TEST(CakeLayers, ShareTheBudgetByPreference) {
  ScoredModel m(kLayersModel, 2, kTokens, 8, 20);
  stretch_keys(m);
  auto cake = make_part<AllocatorRegistry>("cake", "{window_tokens: 8, tau_entropy: 1.6, tau_variance: 2}");
  m.allocate(*cake);
  for (std::int32_t s = 0; s < 2; ++s) {
    Row preference;
    for (const auto& layer : m.layers) preference.push_back(plain_preference(*layer, s, 8, 1.6, 2));
    const double total = sum(preference, 0, 5);
    EXPECT_EQ(m.kept_in_model(s), 5 * 2 * 20);
    EXPECT_GT(*std::max_element(preference.begin(), preference.end()), 1.3 * *std::min_element(preference.begin(), preference.end()));
    for (std::int32_t l = 0; l < 5; ++l) EXPECT_NEAR(count_of(m, l, s), 8 + 5 * 12 * nth(preference, l) / total, 1.01) << l;
  }
}

TEST(CakeLayers, NeverHoldMoreThanTheBudgetOfTheModel) {
  ScoredModel m(kLayersModel, 1, kTokens, 8, 20);
  auto cake = make_part<AllocatorRegistry>("cake", "{window_tokens: 8}");
  std::vector<ScoredLayer> layers;
  for (std::int32_t l = 0; l < 5; ++l) {
    layers.push_back(m.scored(l));
    cake->allocate(m.ops(), kLayersModel, m.layers[0]->seqs, layers);
    std::int64_t kept = 0;
    for (std::int32_t i = 0; i <= l; ++i) kept += m.kept(i, 0);
    EXPECT_EQ(kept, std::min<std::int64_t>(2 * (l + 1) * kTokens, 2 * (5 * 12 + (l + 1) * 8))) << l;
  }
}

TEST(CakeLayers, ABudgetBelowTheWindowIsTheBudget) {
  ScoredModel m(kLayersModel, 1, kTokens, 8, 5);
  m.allocate(*make_part<AllocatorRegistry>("cake", "{window_tokens: 8}"));
  EXPECT_EQ(counts_of(m), Ints(5, 5));
}

// How many of the `budget` largest scores of all layers are in each of them.
Row plain_won(const ScoredModel& m, std::int32_t s, std::int64_t budget) {
  std::vector<std::pair<float, std::size_t>> all;
  for (std::size_t l = 0; l < m.scores.size(); ++l)
    for (std::int32_t i = s * m.model.kv_heads * kTokens; i < (s + 1) * m.model.kv_heads * kTokens; ++i)
      all.emplace_back(-nth(m.scores[l], i), l);
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Row won(m.scores.size(), 0.0);
  for (std::int64_t i = 0; i < budget; ++i) ++won[nth(all, i).second];
  return won;
}

TEST(DynamicLayers, OneCompetitionCountsThePooledScores) {
  ScoredModel m(kLayersModel, 2, kTokens, 4, 20);
  const std::vector<Row> won{plain_won(m, 0, 200), plain_won(m, 1, 200)};
  m.allocate(*make_part<AllocatorRegistry>("dynamic_layers", "{window_tokens: 4, surplus: 10, every_layers: 5}"));
  for (std::int32_t s = 0; s < 2; ++s) {
    EXPECT_EQ(m.kept_in_model(s), 200);
    for (std::int32_t l = 0; l < 5; ++l) EXPECT_NEAR(count_of(m, l, s), nth(nth(won, s), l) / 2, 1) << l;
  }
}

TEST(DynamicLayers, KeepASurplusUntilTheNextCompetition) {
  ScoredModel m(kLayersModel, 1, kTokens, 4, 10);
  auto dynamic = make_part<AllocatorRegistry>("dynamic_layers", "{window_tokens: 4, surplus: 3, every_layers: 2}");
  std::vector<ScoredLayer> layers{m.scored(0)};
  dynamic->allocate(m.ops(), kLayersModel, m.layers[0]->seqs, layers);
  EXPECT_EQ(count_of(m, 0, 0), 4 + 3 * 6);
  layers.push_back(m.scored(1));
  dynamic->allocate(m.ops(), kLayersModel, m.layers[0]->seqs, layers);
  EXPECT_EQ(m.kept(0, 0) + m.kept(1, 0), 2 * 2 * 10);
  layers.push_back(m.scored(2));
  dynamic->allocate(m.ops(), kLayersModel, m.layers[0]->seqs, layers);
  EXPECT_EQ(count_of(m, 2, 0), 4 + 3 * 6);
  EXPECT_EQ(count_of(m, 0, 0), kTokens) << "earlier layers are left alone, as long as they are";
}

// The dense layers have half of the budget together, since they hold more than that.
TEST(D2oLayers, ShareBySmallVarianceWhatDenseLayersLeave) {
  constexpr std::int32_t kLayers = 6, kBudget = 20;
  ScoredModel m({kLayers, 4, 2, 8, 16}, 1, kTokens, 4, kBudget);
  Row weight;
  double total = 0;
  for (std::size_t l = 2; l < 5; ++l) {
    double mean = 0, var = 0;
    std::vector<float> finite;
    std::copy_if(m.scores[l].begin(), m.scores[l].end(), std::back_inserter(finite), [](float x) { return std::isfinite(x); });
    for (const float x : finite) mean += x / static_cast<double>(finite.size());
    for (const float x : finite) var += (x - mean) * (x - mean) / static_cast<double>(finite.size());
    total += weight.emplace_back(std::exp(-var / 50));
  }
  m.allocate(*make_part<AllocatorRegistry>("d2o_layers", "{temperature: 50}"));
  for (const std::int32_t l : {0, 1, 5}) EXPECT_EQ(count_of(m, l, 0), kBudget) << l;
  for (const std::int32_t l : {2, 3, 4}) EXPECT_NEAR(count_of(m, l, 0), 3 * kBudget * nth(weight, l - 2) / total, 1) << l;
  EXPECT_EQ(m.kept_in_model(0), 2 * kLayers * kBudget);
}

// Evict3R: flatter layers get more, none less than half of the mean.
TEST(D2oLayers, SharesByEntropy) {
  ScoredModel m({4, 2, 2, 4, 16}, 2, kTokens, 0, 40);
  for (std::size_t l = 0; l < 4; ++l)
    for (std::size_t i = 0; i < m.scores[l].size(); ++i) m.scores[l][i] = i % kTokens < 2 + 28 * l ? 1.0F : 0.0F;  // these share alike
  for (float& x : m.scores[0]) x = x > 0 ? x : 1e-12F;
  m.allocate(*make_part<AllocatorRegistry>(
      "d2o_layers", "{shares: entropy, dense_first_layers: 0, dense_last_layers: 0, least_frac: 0, least_mean_frac: 0.5}"));
  EXPECT_EQ(m.kept_in_model(1), 2 * 4 * 40);
  EXPECT_GE(count_of(m, 0, 1), 20);
  EXPECT_LT(count_of(m, 0, 1), 40);
  for (const std::int32_t l : {1, 2, 3}) EXPECT_GT(count_of(m, l, 1), count_of(m, 0, 1)) << l;
}

TEST(PoolNumbers, EntropyOfFiniteScores) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> scores{1, 1, 1, 1, infinity, 3, 1, 0, infinity, 5};
  const std::vector<std::int64_t> first{0, 5, 9, 10};
  std::vector<float> out(3);
  run_cpu(PoolNumbers{3, 1, first.data(), scores.data(), out.data(), PoolNumbers::Kind::kEntropy});
  EXPECT_NEAR(out[0], 1, 1e-6);
  EXPECT_NEAR(out[1], -(0.75 * std::log(0.75) + 0.25 * std::log(0.25)) / std::log(3), 1e-6);
  EXPECT_EQ(out[2], 0) << "one score has nothing to be flat against";
}

TEST(D2oLayers, HoldTheModelsBudget) {
  for (const std::int32_t layers : {1, 3, 4, 5, 12, 32})
    for (const std::int32_t budget : {1, 3, 20, 80, 89, 90})
      for (const std::string temperature : {"1e-6", "1", "1e6"}) {
        SCOPED_TRACE(std::to_string(layers) + " layers, budget " + std::to_string(budget) + ", temperature " + temperature);
        const ModelShape shape{layers, 2, 2, 4, 16};
        ScoredModel m(shape, 2, kTokens, 0, budget);
        const auto d2o = make_part<AllocatorRegistry>("d2o_layers", "{temperature: " + temperature + "}");
        m.allocate(*d2o);
        std::int64_t dense = 0, expected = 0;
        for (std::int32_t l = 0; l < layers; ++l) {
          if (l < 2 || l == layers - 1) dense += m.kept(l, 1);
          expected += 2 * d2o->expected(shape, l, 0, budget, kTokens);
        }
        const std::int64_t room = std::max(0, layers - 3) * 2LL * kTokens;  // of the others
        EXPECT_LE(dense, std::max<std::int64_t>(layers * budget, 2LL * layers * budget - room));
        EXPECT_EQ(m.kept_in_model(1), 2LL * layers * budget);
        EXPECT_EQ(expected, 2LL * layers * budget);
      }
}

// Layers of many tokens hold less than half of the budget, and are whole.
TEST(D2oLayers, DenseLayersAreWholeWhereTheBudgetAllows) {
  ScoredModel m({32, 2, 2, 4, 16}, 1, kTokens, 0, 20);
  m.allocate(*make_part<AllocatorRegistry>("d2o_layers", "{}"));
  for (const std::int32_t l : {0, 1, 31}) EXPECT_EQ(count_of(m, l, 0), kTokens);
  EXPECT_EQ(m.kept_in_model(0), 2 * 32 * 20);
}

TEST(HeadSplit, ListedHeadsKeepEverything) {
  ScoredModel m(kLayersModel, 2, kTokens, 4, 20);
  auto split = make_part<AllocatorRegistry>("head_split", "{retrieval_heads: \"0.1 3\", sinks_tokens: 4, streaming_frac: 0.3}");
  EXPECT_FALSE(split->depends_on_data());
  m.allocate(*split);
  for (std::int32_t l = 0; l < 5; ++l)
    for (std::int32_t row = 0; row < 4; ++row) {
      const bool retrieves = l == 3 || (l == 0 && row % 2 == 1);
      EXPECT_EQ(nth(nth(m.keep, l), row), retrieves ? kTokens : 4 + 27);
      EXPECT_EQ(split->expected(kLayersModel, l, row % 2, 20, kTokens), retrieves ? kTokens : 31);
    }
  EXPECT_NE(make_part<AllocatorRegistry>("head_split", "{retrieval_heads: \"0.2\"}")->refuses(kLayersModel), "");
  EXPECT_NE(make_part<AllocatorRegistry>("head_split", "{retrieval_heads: \"5\"}")->refuses(kLayersModel), "");
}

TEST(HeadSplit, FindsHeadsThatLookElsewhere) {
  ScoredModel m(kLayersModel, 2, kTokens, 4, 20);
  m.allocate(*make_part<AllocatorRegistry>("head_split", "{retrieval_frac: 0.3, window_tokens: 6, sinks_tokens: 4}"));
  for (std::int32_t s = 0; s < 2; ++s) {
    std::vector<std::pair<double, Ints>> mass;
    for (std::int32_t l = 0; l < 5; ++l)
      for (std::int32_t h = 0; h < 2; ++h) {
        const Row sums = plain_window(*nth(m.layers, l), s, h, 6);
        mass.push_back({sum(sums, 0, 4) + sum(sums, kTokens - 16, kTokens), {l, s * 2 + h}});
      }
    std::sort(mass.begin(), mass.end());
    for (std::size_t i = 0; i < mass.size(); ++i) {
      const Ints& at = mass[i].second;
      EXPECT_EQ(nth(nth(m.keep, at[0]), at[1]), i < 3 ? kTokens : 20) << i;
    }
  }
}

// In decode the heads are those that lost nothing; another sequence of the batch may be at its first cut.
TEST(HeadSplit, LaterStepsKnowTheHeads) {
  ScoredModel m(kLayersModel, 2, kTokens, 4, 20), alone(kLayersModel, 2, kTokens, 4, 20);
  auto split = make_part<AllocatorRegistry>("head_split", "{retrieval_frac: 0.3, window_tokens: 6, sinks_tokens: 4}");
  alone.allocate(*split);
  const std::set<Ints> retrieves{{0, 1}, {2, 0}, {2, 1}};
  for (std::int32_t l = 0; l < 5; ++l)
    for (std::int32_t h = 0; h < 2; ++h)
      if (!retrieves.contains({l, h})) nth(m.layers, l)->store.shrink(h, 21);
  m.allocate(*split);
  for (std::int32_t l = 0; l < 5; ++l) {
    const auto at = static_cast<std::size_t>(l);
    for (std::int32_t h = 0; h < 2; ++h) EXPECT_EQ(nth(m.keep[at], h), retrieves.contains({l, h}) ? kTokens : 20) << l;
    for (std::size_t r = 2; r < 4; ++r) EXPECT_EQ(m.keep[at][r], alone.keep[at][r]) << l;
  }
}

TEST(LazyLayers, KeepTheBudgetWhereTheLastQueryAttendsToEnds) {
  for (const bool kvpress : {false, true}) {
    const std::int32_t end = kvpress ? kTokens - 1 : kTokens, recent = kvpress ? 17 : 16;
    ScoredModel m(kLayersModel, 2, kTokens, 4, 20);
    stretch_keys(m);
    std::map<double, Ints> mass;  // ascending
    for (std::int32_t l = 0; l < 5; ++l)
      for (std::int32_t s = 0; s < 2; ++s) {
        double mean = 0;
        for (std::int32_t h = 0; h < 2; ++h) {
          const Row p = plain_row(*nth(m.layers, l), s, h, kTokens - 1);
          mean += (sum(p, 0, 4) + sum(p, end - recent, end)) / 2;
        }
        mass[mean] = {l, s};
      }
    const double tau = (std::next(mass.begin(), 4)->first + std::next(mass.begin(), 5)->first) / 2;  // five are above
    m.allocate(*make_part<AllocatorRegistry>("lazy_layers",
                                             "{tau: " + std::to_string(tau) + ", measures: " + (kvpress ? "kvpress}" : "kept_tokens}")));
    for (const auto& [share, at] : mass) EXPECT_EQ(count_of(m, at[0], at[1]), share > tau ? 20 : kTokens) << share << " " << tau;
  }
}

TEST(LazyLayers, LeaveShortPromptsAloneAsKvpressDoes) {
  for (const std::int32_t tokens : {21, 22, 23}) {
    ScoredModel m(kLayersModel, 1, tokens, 4, 20), paper(kLayersModel, 1, tokens, 4, 20);
    m.allocate(*make_part<AllocatorRegistry>("lazy_layers", "{tau: 0, measures: kvpress}"));
    paper.allocate(*make_part<AllocatorRegistry>("lazy_layers", "{tau: 0}"));
    EXPECT_EQ(count_of(m, 0, 0), tokens <= 22 ? tokens : 20);
    EXPECT_EQ(count_of(paper, 0, 0), 20);
  }
}

TEST(LayerGlobal, LayersCompeteWithTheirHeadsMeanByRank) {
  ScoredModel m(kLayersModel, 2, kTokens, 4, 20);
  m.allocate(*make_part<AllocatorRegistry>("layer_global"));
  for (std::int32_t s = 0; s < 2; ++s) {
    std::vector<std::pair<double, std::size_t>> entries;
    for (std::size_t l = 0; l < 5; ++l) {
      Row mean(kTokens, 0.0);
      for (std::int32_t r = 2 * s; r < 2 * s + 2; ++r) {
        std::vector<float> x(m.scores[l].begin() + r * kTokens, m.scores[l].begin() + (r + 1) * kTokens);
        std::sort(x.begin(), x.end(), std::greater<>());
        for (std::size_t j = 0; j < x.size(); ++j) mean[j] += x[j] / 2.0;
      }
      for (const double x : mean) entries.emplace_back(-x, l);
    }
    std::sort(entries.begin(), entries.end());
    Ints wanted(5, 0);
    for (std::size_t i = 0; i < 100; ++i) ++wanted[entries[i].second];
    for (std::int32_t l = 0; l < 5; ++l) EXPECT_EQ(count_of(m, l, s), nth(wanted, l)) << l;
  }
}

TEST(AttentionMassShare, CountsWhatHoldsTheShare) {
  ScoredModel m(kLayersModel, 2, kTokens, 4, 20);
  stretch_keys(m);
  m.allocate(*make_part<AllocatorRegistry>("attention_mass_share", "{tau: 0.7, window_tokens: 6}"));
  std::int32_t above = 0;
  for (std::int32_t l = 0; l < 5; ++l)
    for (std::int32_t s = 0; s < 2; ++s) {
      Row ranked(kTokens, 0.0);
      for (std::int32_t h = 0; h < 2; ++h) {
        Row sums = plain_window(*nth(m.layers, l), s, h, 6);
        std::sort(sums.begin(), sums.end(), std::greater<>());
        for (std::size_t j = 0; j < sums.size(); ++j) ranked[j] += sums[j] / 2;
      }
      std::int32_t count = 1;
      while (sum(ranked, 0, count) < 0.7 * sum(ranked, 0, kTokens)) ++count;
      EXPECT_EQ(count_of(m, l, s), std::max(count, 20)) << l;
      above += count > 20 ? 1 : 0;
    }
  EXPECT_GT(above, 0);
}

TEST(SensitivityLayers, ShareWithinBoundsByImportance) {
  ScoredModel m(kLayersModel, 1, kTokens, 4, 20);
  // 5 * (20 - 5) = 75 by 1:1:1:2:10 is 5, 5, 5, 10, 50; at most 60 in all, 55 beside the least.
  m.allocate(*make_part<AllocatorRegistry>("sensitivity_layers", "{least_tokens: 5, importance: \"0=1 1=1 2=1 3=2 4=10\"}"));
  EXPECT_EQ(counts_of(m), (Ints{10, 10, 10, 15, 55}));
  // At most 30, 25 beside the least: the last layer's 25 too many go to the others by importance, 5, 5, 5, 10 more.
  m.allocate(
      *make_part<AllocatorRegistry>("sensitivity_layers", "{least_tokens: 5, most_factor: 1.5, importance: \"0=1 1=1 2=1 3=2 4=10\"}"));
  EXPECT_EQ(counts_of(m), (Ints{15, 15, 15, 25, 30}));
  EXPECT_NE(make_part<AllocatorRegistry>("sensitivity_layers", "{importance: \"0=1\"}")->refuses(kLayersModel), "");
  EXPECT_THROW(make_part<AllocatorRegistry>("sensitivity_layers", "{importance: \"0.1=1\"}"), InputError);
}

TEST(Table, GivesWhatIsListed) {
  ScoredModel m(kLayersModel, 2, kTokens, 4, 20);
  m.allocate(*make_part<AllocatorRegistry>("table", "{values: \"1=7 1.1=1000 4=0\"}"));
  EXPECT_EQ(m.keep[0], (Ints{20, 20, 20, 20}));
  EXPECT_EQ(m.keep[1], (Ints{7, 90, 7, 90}));
  EXPECT_EQ(m.keep[4], (Ints{0, 0, 0, 0}));
  m.allocate(*make_part<AllocatorRegistry>("table", "{unit: budget_frac, values: \"0=1.5 2.0=0.25\"}"));
  EXPECT_EQ(m.keep[0], (Ints{30, 30, 30, 30}));
  EXPECT_EQ(m.keep[2], (Ints{5, 20, 5, 20}));
  EXPECT_NE(make_part<AllocatorRegistry>("table", "{values: \"5=1\"}")->refuses(kLayersModel), "");
  for (const char* bad : {"{}", "{values: \"1\"}", "{values: \"a=1\"}", "{values: \"1=-1\"}", "{values: \"1.x=1\"}"})
    EXPECT_THROW(make_part<AllocatorRegistry>("table", bad), InputError) << bad;
}

// Holds for every allocator: counts within rows; those that share a budget sum to it, and a budget beyond the prompt keeps everything.
class SharedBudget : public testing::TestWithParam<NamedPart> {};

TEST_P(SharedBudget, SumsToTheBudget) {
  const auto& [name, parameters] = GetParam();
  for (const std::int32_t tokens : {8, 63, 64, 65})
    for (const std::int32_t budget : {8, 17, 33, 62, 64, 200}) {
      ScoredModel m(kLayersModel, 2, tokens, 4, budget);
      m.allocate(*make_part<AllocatorRegistry>(name, parameters));
      for (std::int32_t s = 0; s < 2; ++s) EXPECT_EQ(m.kept_in_model(s), 10 * std::min(tokens, budget)) << tokens << " " << budget;
      for (const Ints& layer : m.keep)
        for (const std::int32_t k : layer) EXPECT_TRUE(k >= std::min(4, budget) && k <= tokens) << k;
    }
}

TEST_P(SharedBudget, EqualScoresKeepTheSum) {
  const auto& [name, parameters] = GetParam();
  ScoredModel m(kLayersModel, 1, 40, 0, 13);
  for (auto& layer : m.scores) std::fill(layer.begin(), layer.end(), 0.25F);
  m.allocate(*make_part<AllocatorRegistry>(name, parameters));
  EXPECT_EQ(m.kept_in_model(0), 130);
}

INSTANTIATE_TEST_SUITE_P(All, SharedBudget,
                         testing::Values(NamedPart{"uniform", "{}"}, NamedPart{"pyramid", "{window_tokens: 4}"}, NamedPart{"ada", "{}"},
                                         NamedPart{"ada", "{safeguard: forced_first}"},
                                         NamedPart{"ada", "{layers: {pyramid: {window_tokens: 4}}}"},
                                         NamedPart{"ada", "{layers: layer_global}"}, NamedPart{"global", "{}"},
                                         NamedPart{"global", "{safeguard_frac: 0.5}"}, NamedPart{"layer_global", "{}"},
                                         NamedPart{"cake", "{window_tokens: 4}"},
                                         NamedPart{"dynamic_layers", "{window_tokens: 4, every_layers: 2}"},
                                         NamedPart{"sensitivity_layers", "{least_tokens: 4, importance: \"0=1 1=2 2=3 3=4 4=50\"}"}));

}  // namespace
}  // namespace kvlab::test
