#include <deque>
#include <set>

#include "policies/kv/recipe/trained_tensors.h"
#include "policies/kv/selector/estimate_keys_op.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

// DeepSeek sparse attention's indexer.

// sum over all query heads of a sequence of f(logit), for each older or new token.
template <class F>
std::vector<double> sums(Decode& d, std::int32_t sequence, F&& f) {
  std::vector<double> all(static_cast<std::size_t>(d.tokens()), 0.0);
  for (std::int32_t i = 0; i < d.tokens(); ++i)
    for (std::int32_t r = sequence * d.model.kv_heads; r < (sequence + 1) * d.model.kv_heads; ++r)
      for (std::int32_t h = 0; h < d.model.group(); ++h) nth(all, i) += f(d.logit(r, h, i));
  return all;
}

// One choice for all heads: the largest sums of rectified products, but for those that 8 bits cannot tell apart.
TEST(LightningIndexer, AllHeadsReadTheLargestRectifiedProducts) {
  for (const std::int32_t head_dim : {32, 48}) {  // the rotation is over 32 and 16 channels
    Prefilled d({4, 8, 2, head_dim, 64}, 2, 120, "lightning_indexer", "{top_tokens: 20}", {.seed = 5});
    for (std::int32_t t = 0; t < 3; ++t) {
      const auto rows = d.decode();
      for (std::int32_t s = 0; s < 2; ++s) {
        const auto& chosen = nth(rows, 2 * s);
        ASSERT_EQ(chosen.size(), 20U);
        EXPECT_EQ(chosen, nth(rows, 2 * s + 1));
        const std::vector<double> exact = sums(d, s, [](double z) { return std::max(0.0, z); });
        const std::vector<std::int32_t> top = best(exact, 20);
        double least = 1e30;
        for (const std::int32_t i : top) least = std::min(least, nth(exact, i));
        for (const std::int32_t i : chosen) EXPECT_GT(nth(exact, i), 0.88 * least);
        for (const std::int32_t i : top) EXPECT_TRUE(std::binary_search(chosen.begin(), chosen.end(), i) || nth(exact, i) < 1.12 * least);
        const std::vector<std::int32_t> plain = best(sums(d, s, [](double z) { return z; }), 20);
        EXPECT_NE(chosen, plain) << "a choice by products that are not rectified is another one";
      }
    }
  }
}

TEST(LightningIndexer, ReadsAllUpToItsBudget) {
  Prefilled d({4, 8, 2, 32, 64}, 1, 19, "lightning_indexer", "{top_tokens: 20}", {.seed = 5});
  EXPECT_EQ(d.decode()[0].size(), 20U);
  EXPECT_EQ(d.decode()[0].size(), 20U);
  EXPECT_EQ(d.decode()[1].size(), 20U);
}

TEST(LightningIndexer, CodesEachKeyOnce) {
  Prefilled d({4, 8, 2, 32, 64}, 1, 100, "lightning_indexer", "{top_tokens: 20}", {.seed = 5});
  d.decode();
  d.decode();
  std::vector<std::int64_t> coded, scored;
  for (const OpCall& c : d.ops.log()) {
    if (c.op == "index_keys") coded.push_back(c.tokens);
    if (c.op == "index_scores") scored.push_back(c.bytes);
  }
  EXPECT_EQ(coded, (std::vector<std::int64_t>{200, 2, 2}));
  EXPECT_EQ(scored, (std::vector<std::int64_t>{2 * 101 * 36 + 4 * 101 + 8 * 32 * 2, 2 * 102 * 36 + 4 * 102 + 8 * 32 * 2}));
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {}).gpu, 2 * 102 * 36);
}

// AttentionPredictor: blocks chosen by the attention of earlier steps.

constexpr std::int32_t kBlockTokens = 4, kSteps = 6, kSinkTokens = 8, kRecent = 8, kTop = 16;
const char* const kParameters = "{block_tokens: 4, history_steps: 6, sink_tokens: 8, recent_tokens: 8, top_tokens: 16, dense_every: 5}";

using History = std::deque<std::vector<double>>;  // the oldest step first; [blocks] each
// The score of a block; blocks before `end` are predicted.
using Score = std::function<double(const History&, std::size_t block, std::size_t end)>;

double of_step(const std::vector<double>& step, std::size_t block) { return block < step.size() ? step[block] : 0; }

// Attention of the query at position t to the tokens, by blocks: the largest of the row's heads and the block's tokens.
std::vector<double> pooled(const Decode& d, std::int32_t row, std::int32_t t, const std::vector<std::int32_t>& tokens, std::int32_t len) {
  std::vector<double> blocks(static_cast<std::size_t>((len + kBlockTokens - 1) / kBlockTokens), 0.0);
  const std::vector<float>& q = nth(d.q, row / d.model.kv_heads);
  for (std::int32_t h = 0; h < d.model.group(); ++h) {
    const float* query = q.data() + (t * d.model.q_heads + row % d.model.kv_heads * d.model.group() + h) * d.model.head_dim;
    const auto weight = [&](std::int32_t i) { return std::exp(d.dot(query, d.key(row, i)) / std::sqrt(d.model.head_dim)); };
    double sum = 0;
    for (const std::int32_t i : tokens) sum += weight(i);
    for (const std::int32_t i : tokens) nth(blocks, i / kBlockTokens) = std::max(nth(blocks, i / kBlockTokens), weight(i) / sum);
  }
  return blocks;
}

// The tokens of a step of n tokens that is not dense: first and newest blocks, and the best between them.
std::vector<std::int32_t> expected_tokens(const History& history, std::int32_t n, const Score& score) {
  const std::int32_t end = std::min(n - kRecent, n - 1) / kBlockTokens, begin = kSinkTokens / kBlockTokens;
  const std::int32_t keep = (kSinkTokens + kRecent + kTop - kSinkTokens - (n - end * kBlockTokens)) / kBlockTokens;
  std::vector<std::pair<double, std::int32_t>> ranked;
  for (std::int32_t b = begin; b < end; ++b)
    ranked.emplace_back(-score(history, static_cast<std::size_t>(b), static_cast<std::size_t>(end)), b);
  std::sort(ranked.begin(), ranked.end());
  EXPECT_GT(nth(ranked, keep).first - nth(ranked, keep - 1).first, 1e-7);
  std::vector<bool> is_chosen(static_cast<std::size_t>(end), false);
  for (std::int32_t i = 0; i < keep; ++i) nth(is_chosen, nth(ranked, i).second) = true;
  std::vector<std::int32_t> tokens;
  for (const std::int32_t i : range(0, n))
    if (i < kSinkTokens || i >= end * kBlockTokens || nth(is_chosen, i / kBlockTokens)) tokens.push_back(i);
  return tokens;
}

// A prompt of 100 tokens and 12 steps, against the same by hand.
void expect_predicted(Selector& part, const Score& score) {
  constexpr std::int32_t kPrompt = 100;
  Decode d({4, 6, 2, 16, 32}, 1, kPrompt, 9);
  d.window_tokens = kSteps;
  d.prefill(part);
  std::vector<History> histories(2);
  for (std::int32_t r = 0; r < 2; ++r)
    for (std::int32_t t = kPrompt - kSteps; t < kPrompt; ++t) nth(histories, r).push_back(pooled(d, r, t, range(0, t + 1), kPrompt));
  for (std::int32_t step = 1; step <= 12; ++step) {
    const auto rows = d.decode(part);
    for (std::int32_t r = 0; r < 2; ++r) {
      SCOPED_TRACE("step " + std::to_string(step) + ", row " + std::to_string(r));
      History& history = nth(histories, r);
      const std::int32_t n = kPrompt + step;
      const std::vector<std::int32_t> expected = step % 5 == 0 ? range(0, n) : expected_tokens(history, n, score);
      EXPECT_EQ(nth(rows, r), expected);
      history.push_back(pooled(d, r, n - 1, expected, n));
      history.pop_front();
    }
  }
}

TEST(AttentionPredictor, WithoutWeightsRecentAttentionCounts) {
  expect_predicted(*make_part<SelectorRegistry>("attention_predictor", kParameters),
                   [](const History& history, std::size_t block, std::size_t) {
                     double sum = 0;
                     for (const std::vector<double>& step : history) sum = 0.9 * sum + of_step(step, block);
                     return sum;
                   });
}

// A network that passes on one channel, of the block `shift` blocks later.
std::string file_of_network(std::size_t shift) {
  std::vector<float> w1(16 * 9), b1(16), w2(32 * 16 * 9), w3(32);
  w1[4 + shift] = 2.0F, w2[4] = 1.5F, w3[0] = 3.0F;
  w1[9 + 4] = 1.0F, b1[1] = -2.0F, w2[9 + 4] = 100.0F;  // never positive before it is rectified
  TrainedFile network;
  network.add("conv1.weight", {16, 1, 3, 3}, w1), network.add("conv1.bias", {16}, b1);
  network.add("conv2.weight", {32, 16, 3, 3}, w2), network.add("conv2.bias", {32}, std::vector<float>(32));
  network.add("conv3.weight", {1, 32, 1}, w3), network.add("conv3.bias", {1}, {0.5F});
  return network.file();
}

TEST(AttentionPredictor, NetworkReadsTheHistory) {
  for (const std::size_t shift : {0U, 1U}) {
    const auto part = make_part<SelectorRegistry>("attention_predictor", kParameters);
    part->set_weights(TrainedTensors::open(file_of_network(shift)));
    expect_predicted(*part, [&](const History& history, std::size_t block, std::size_t end) {
      double sum = 0;
      for (const std::vector<double>& h : history) sum += block + shift < end ? of_step(h, block + shift) : 0;
      return sum;
    });
    if (HasFailure()) return;
  }
}

TEST(AttentionPredictor, CostsWhatItComputesWithWeights) {
  expect_cost_is_replay(sample({}), recipe_of("{recipe: attention_predictor, budget_tokens: 64, weights: " + file_of_network(0) + "}"));
}

// Estimated keys of all rows, [row][tokens * head_dim].
std::vector<std::vector<float>> estimated(const KvRows& kv, std::int32_t bits) {
  std::vector<std::vector<float>> keys;
  std::vector<float*> to;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) keys.emplace_back(static_cast<std::size_t>(kv.len[r] * kv.head_dim));
  for (auto& k : keys) to.push_back(k.data());
  const std::vector<std::int32_t> from(keys.size(), 0);
  run_cpu(EstimateKeys{kv, bits, false, from.data(), to.data()});
  return keys;
}

// Tokens that the fewest-of-mass rule keeps of `candidates`, in doubles.
std::vector<std::int32_t> pruned(const Decode& d, std::int32_t row, const std::vector<float>& keys,
                                 const std::vector<std::int32_t>& candidates, double mass) {
  std::set<std::int32_t> kept{candidates.back()};
  for (std::int32_t h = 0; h < d.model.group(); ++h) {
    std::vector<std::pair<double, std::int32_t>> weights;
    double sum = 0, so_far = 0;
    for (const std::int32_t i : candidates) {
      weights.emplace_back(-std::exp(d.dot(d.query(row, h), keys.data() + i * d.model.head_dim) / std::sqrt(d.model.head_dim)), i);
      sum -= weights.back().first;
    }
    std::sort(weights.begin(), weights.end());
    for (const auto& [weight, token] : weights) {
      if (so_far >= mass * sum) break;
      kept.insert(token);
      so_far -= weight;
    }
  }
  return {kept.begin(), kept.end()};
}

TEST(EstimateKeys, AreWithinHalfAStepAndOfSixteenLevels) {
  RandomLayer layer({1, 2, 1, 64, 2}, 1, 20, 3);
  const KvRows kv = layer.store.rows();
  const auto keys = estimated(kv, 4);
  for (std::int32_t i = 0; i < 20; ++i) {
    const float* exact = kv.key(0, i);
    const float* coded = keys[0].data() + i * 64;
    const auto [low, high] = std::minmax_element(exact, exact + 64);
    for (std::int32_t c = 0; c < 64; ++c) EXPECT_NEAR(coded[c], exact[c], (*high - *low) / 30 * 1.02F + 0.004F);
    EXPECT_LE(std::set<float>(coded, coded + 64).size(), 16U);
    EXPECT_GT(std::set<float>(coded, coded + 64).size(), 8U);
  }
}

TEST(Twilight, KeepsTheFewestTokensOfTheMass) {
  for (const std::int32_t group : {1, 3})
    for (const double mass : {0.3, 0.85}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, 60, "twilight", "{of: all, mass_frac: " + std::to_string(mass) + ", unpruned_layers: 0}");
      std::size_t kept = 0, held = 0;
      for (std::int32_t t = 0; t < 3; ++t) {
        const auto rows = d.decode();
        const Ints all = range(0, d.tokens());
        const auto keys = estimated(d.store.rows(), 4);
        for (std::int32_t r = 0; r < 4; ++r) {
          const auto at = static_cast<std::size_t>(r);
          EXPECT_EQ(rows[at], pruned(d, r, keys[at], all, mass)) << "row " << r << " step " << t;
          kept += rows[at].size(), held += all.size();
        }
      }
      // The union over three heads may be all of one row, not of every row.
      EXPECT_LT(kept, held);
    }
}

TEST(Twilight, PrunesWhatTheOtherSelectorChose) {
  const std::string quest = "{page_tokens: 8, budget_tokens: 32, dense_layers: 0}";
  Decode d({4, 4, 2, 8, 16}, 1, 100, 3), same({4, 4, 2, 8, 16}, 1, 100, 3);
  auto part = make_part<SelectorRegistry>("twilight", "{of: {quest: " + quest + "}, mass_frac: 0.6, unpruned_layers: 2}");
  auto base = make_part<SelectorRegistry>("quest", quest);
  d.prefill(*part), same.prefill(*base);
  for (std::int32_t t = 0; t < 9; ++t) {
    const auto rows = d.decode(*part), candidates = same.decode(*base);
    const auto keys = estimated(d.store.rows(), 4);
    for (std::int32_t r = 0; r < 2; ++r) {
      const auto at = static_cast<std::size_t>(r);
      EXPECT_EQ(rows[at], pruned(d, r, keys[at], candidates[at], 0.6)) << "row " << r << " step " << t;
    }
  }
}

TEST(Twilight, FirstLayersReadAllCandidates) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 100, "twilight",
              "{of: {quest: {page_tokens: 8, budget_tokens: 32, dense_layers: 0}}, unpruned_layers: 2}", {.layer = 1});
  EXPECT_EQ(d.decode()[0].size(), 3U * 8 + 5);
  for (const OpCall& c : d.ops.log()) EXPECT_NE(c.op, "estimate_keys");
}

TEST(Twilight, TheWholeMassIsEveryCandidate) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 40, "twilight", "{of: all, mass_frac: 1}");
  EXPECT_EQ(d.decode()[0].size(), 41U);
}

TEST(Twilight, RefusesASelectorOfLowerTiers) {
  const ModelShape model{4, 4, 2, 8, 16};
  EXPECT_NE(make_part<SelectorRegistry>("twilight", "{of: a2ats}")->refuses(model).find("'a2ats' reads others"), std::string::npos);
  EXPECT_NE(make_part<SelectorRegistry>("twilight", "{of: spe_cache}")->refuses(model), "");
  EXPECT_EQ(make_part<SelectorRegistry>("twilight", "{of: quest}")->refuses(model), "");
}

// Codes of 8 channels take 4 bytes, zero and scale 4.
TEST(Twilight, CodesAreBesideTheCache) {
  KvStore store({4, 4, 2, 8, 16}, 1, 0, false);
  store.append(0, nullptr, nullptr, 100, 0);
  auto part = make_part<SelectorRegistry>("twilight", "{of: all}");
  EXPECT_EQ(part->resident_in_layer(2, {4, 4, 2, 8, 16}, store.rows(), {}).gpu, 2 * 100 * 8);
  EXPECT_EQ(part->resident_in_layer(1, {4, 4, 2, 8, 16}, store.rows(), {}).gpu, 0);
}

}  // namespace
}  // namespace kvlab::test
