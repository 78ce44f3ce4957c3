#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "tests/kv/host_fixture.h"
#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

using Key = std::function<std::vector<double>(std::int32_t token)>;

double product(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// The mean key of each chunk of four tokens, and minus the smallest cosine of one of its keys with that.
struct Chunks {
  Chunks(const Key& key, std::int32_t chunks) {
    for (std::int32_t i = 0; i < 4 * chunks; i += 4) {
      std::vector<double> sum(key(i).size(), 0.0);
      for (std::int32_t j = i; j < i + 4; ++j)
        for (std::size_t x = 0; x < sum.size(); ++x) sum[x] += key(j)[x] / 4;
      double worst = 1;
      for (std::int32_t j = i; j < i + 4; ++j)
        worst = std::min(worst, product(key(j), sum) / std::sqrt(product(key(j), key(j)) * product(sum, sum)));
      mean.push_back(sum);
      misfit.push_back(-worst);
    }
  }
  std::vector<std::vector<double>> mean;
  std::vector<double> misfit;
};

// Tokens by the definition: outliers, then the best of the others by the largest softmax share of any query head.
std::vector<std::int32_t> shadow_by_hand(const Decode& d, std::int32_t row, std::int32_t chunks, std::int32_t outliers, std::int32_t keep) {
  const Chunks all([&](std::int32_t i) { return std::vector<double>(d.key(row, i), d.key(row, i) + d.model.head_dim); }, chunks);
  const std::vector<std::int32_t> out = best(all.misfit, static_cast<std::size_t>(outliers));
  std::set<std::int32_t> read(out.begin(), out.end());
  std::vector<std::int32_t> others;
  for (std::int32_t c = 0; c < chunks; ++c)
    if (read.count(c) == 0) others.push_back(c);
  std::vector<double> score(others.size(), 0.0);
  for (std::int32_t h = 0; h < d.model.group(); ++h) {
    std::vector<double> p;
    for (const std::int32_t c : others) {
      double z = 0;
      for (std::size_t x = 0; x < 8; ++x) z += static_cast<double>(d.query(row, h)[x]) * nth(all.mean, c)[x];
      p.push_back(std::exp(z / std::sqrt(8.0)));
    }
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (std::size_t i = 0; i < p.size(); ++i) score[i] = std::max(score[i], p[i] / sum);
  }
  for (const std::int32_t i : best(score, static_cast<std::size_t>(keep))) read.insert(nth(others, i));
  std::vector<std::int32_t> tokens;
  for (const std::int32_t c : read)
    for (std::int32_t i = 4 * c; i < 4 * c + 4; ++i) tokens.push_back(i);
  for (std::int32_t i = chunks * 4; i < d.tokens(); ++i) tokens.push_back(i);
  return tokens;
}

const char* const kSmallShadow = "{chunk_tokens: 4, budget_tokens: 12, outlier_chunks: 3, local_chunks: 2}";

TEST(ShadowKv, OutliersBestChunksAndTheEnd) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t prompt : {63, 64, 65}) {
      Prefilled d({4, 2 * group, 2, 8, 16}, 2, prompt, "shadow_kv", kSmallShadow);
      d.expect_rows(3, [&](std::int32_t r, std::int32_t) { return shadow_by_hand(d, r, prompt / 4 - 2, 3, 3); });
    }
}

TEST(ShadowKv, BringsOnlyValuesOfChunksThatTheLastStepDidNotRead) {
  for (const bool keys : {false, true}) {
    Prefilled d({4, 8, 2, 8, 16}, 1, 64, "shadow_kv",
                std::string("{chunk_tokens: 4, budget_tokens: 12, outlier_chunks: 3, ") +
                    "local_chunks: 2, keys: " + (keys ? "fetched}" : "low_rank}"));
    std::vector<std::vector<std::int32_t>> last(2);
    for (std::int32_t t = 0; t < 4; ++t) {
      const auto rows = d.decode();
      std::int64_t fetched = 0;
      for (std::size_t r = 0; r < 2; ++r) {
        const std::vector<std::int32_t> chunks(rows[r].begin(), rows[r].begin() + 24);
        fetched += newcomers(chunks, last[r]);
        if (t == 0) fetched -= 12;  // outliers never come from the host
        last[r] = chunks;
      }
      const Traffic traffic = d.part->take_traffic();
      EXPECT_EQ(traffic.fetched_bytes, fetched * (keys ? 2 : 1) * 8 * 2);
      EXPECT_EQ(traffic.asked_units, 6);
    }
    LayerStep same = d.step();
    d.part->select(same);
    EXPECT_EQ(d.part->take_traffic().fetched_bytes, 0);
  }
}

TEST(ShadowKv, ValuesLieOnTheHost) {
  Prefilled d({4, 2, 2, 8, 16}, 1, 1000, "shadow_kv", kSmallShadow);
  // 1000 tokens of 16 + 16 bytes: 12 + 12 + 8 of them read; the values of the others on the host, 250 means and 32 keys beside.
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {2 * 32000, 0, 0}),
            (TierBytes{2 * (32000 - 968 * 16 + 250 * 16 + 32 * 16), 2 * 968 * 16, 0}));
}

TEST(ShadowKv, KeepsTheContract) {
  expect_promises("shadow_kv", kSmallShadow, {{65, 5}, {1, 3}, {3, 3}, {4, 3}, {5, 3}, {12, 3}, {13, 3}}, {65, 4});
}

// The authors' sparse budget is what is chosen; outliers, 24 chunks per 1,024 tokens of it, and the prompt's end are read beside it.
TEST(ShadowKv, BudgetCountsChosenChunksAlone) {
  for (const std::int32_t budget : {128, 512, 1024}) {
    Prefilled d({1, 2, 2, 8, 16}, 1, 1606, "shadow_kv", "{}", {.budget = budget});
    const std::int32_t outliers = budget * 24 / 1024, end = 4 * 8 + 1606 % 8;
    EXPECT_EQ(d.decode()[0].size(), static_cast<std::size_t>(budget + 8 * outliers + end + 1)) << budget;
  }
}

// The policy at work over a trace's prompt, and what its stores hold then.
struct ShadowPrompt : PolicyWalk {
  ShadowPrompt(const AttentionTrace& trace, const Recipe& recipe) : PolicyWalk(trace, recipe, 7) {
    std::int32_t begin = 0;
    for (const std::int32_t end : trace.chunk_ends) {
      step({0, begin, end - begin, trace.prompt_tokens, -1}, [](const PolicyStep&, std::int32_t) {});
      begin = end;
    }
  }
  // Tokens whose stored key is the trace's own, bit by bit.
  std::set<std::int32_t> exact(const AttentionTrace& trace, std::int32_t layer, std::int32_t row) {
    std::set<std::int32_t> tokens;
    const KvRows kv = nth(stores, layer).rows();
    for (std::int32_t i = 0; i < trace.prompt_tokens; ++i) {
      const float* k = nth(trace.layers, layer).k.data() + (i * model.kv_heads + row) * model.head_dim;
      if (std::equal(k, k + model.head_dim, kv.key(row, i))) tokens.insert(i);
    }
    return tokens;
  }
};

// Tokens of the chunks of four in which some key has the smallest cosines to the mean key, and all from the last two chunks on.
std::set<std::int32_t> always_read(const AttentionTrace& trace, std::int32_t layer, std::int32_t row, std::size_t outliers) {
  const std::int32_t d = trace.head_dim, chunks = trace.prompt_tokens / 4 - 2;
  const auto key = [&](std::int32_t i) {
    const float* k = nth(trace.layers, layer).k.data() + (i * trace.kv_heads + row) * d;
    return std::vector<double>(k, k + d);
  };
  std::set<std::int32_t> tokens;
  for (const std::int32_t c : best(Chunks(key, chunks).misfit, outliers))
    for (std::int32_t i = 4 * c; i < 4 * c + 4; ++i) tokens.insert(i);
  for (std::int32_t i = 4 * chunks; i < trace.prompt_tokens; ++i) tokens.insert(i);
  return tokens;
}

TEST(ShadowKv, KeysOfOutliersAndOfThePromptsEndStayExact) {
  const std::string parts = "{recipe: shadowkv, format: {low_rank_keys: {rank: 6, keys: before_rope}}, selector: {shadow_kv: ";
  for (const std::int32_t chunk : {90, 0}) {
    const AttentionTrace trace = sample({.prompt = 203, .decode = 1, .chunk = chunk});
    ShadowPrompt run(trace, recipe_of(parts + kSmallShadow + "}}"));
    for (std::int32_t l = 0; l < 3; ++l)
      for (std::int32_t r = 0; r < 2; ++r) EXPECT_EQ(run.exact(trace, l, r), always_read(trace, l, r, 3)) << l << " " << r;
    ShadowPrompt format_alone(trace, recipe_of("{recipe: shadowkv_keys, format: {low_rank_keys: {rank: 6, keys: before_rope}}}"));
    EXPECT_TRUE(format_alone.exact(trace, 1, 1).empty());
  }
}

// Everything in low rank, and the means, exact K and V of what is read: 12 chosen, 12 of outliers, 8 of the last chunks; V elsewhere.
TEST(ShadowKv, BytesOfExactKeysCount) {
  const AttentionTrace trace = sample({.prompt = 200, .decode = 1});
  ShadowPrompt run(
      trace, recipe_of(std::string("{recipe: shadowkv, format: {low_rank_keys: {rank: 6}}, selector: {shadow_kv: ") + kSmallShadow + "}}"));
  const SeqStep seq{0, 0, 200, 200, -1};
  const std::int64_t line = 32 * 2, low_rank = 200 * 6 * 2 / 2 + 6 * 32 * 2, read = 12 + 12 + 8;
  EXPECT_EQ(run.policy.resident(1, std::span(&seq, 1), run.stores[1].rows()),
            (TierBytes{2 * (low_rank + 50 * line + 2 * read * line), 2 * (200 - read) * line, 0}));
}

TEST(ShadowKv, BuiltAnewAfterAnEviction) {
  Prefilled d({4, 2, 2, 8, 16}, 1, 64, "shadow_kv", kSmallShadow);
  d.decode();
  d.store.shrink(0, 40), d.store.shrink(1, 40);
  const auto rows = d.decode();
  EXPECT_EQ(rows[0].back(), 40);
  EXPECT_EQ(rows[0].size(), 6U * 4 + 8 + 1);
}

}  // namespace
}  // namespace kvlab::test
