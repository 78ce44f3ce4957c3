#include <gtest/gtest.h>

#include <map>

#include "policies/kv/selector/sentences_op.h"
#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

constexpr const char* kShortSentences =
    "{budget_tokens: 16, sink_tokens: 3, recent_tokens: 4, candidate_factor: 2, window_tokens: 5, pool_tokens: 3, sentence_tokens: 6}";

// SnapKV's choice of candidates: 32 of the tokens [3, prompt - 4), by the last 5 queries and a maximum over 3 neighbours.
std::vector<std::int32_t> candidates_of(const Decode& d, std::int32_t row, std::int32_t prompt) {
  std::vector<double> sum(static_cast<std::size_t>(prompt), 0.0);
  for (std::int32_t t = prompt - 5; t < prompt; ++t)
    for (std::int32_t h = 0; h < d.model.group(); ++h) {
      const float* q =
          nth(d.q, row / 2).data() + (static_cast<std::ptrdiff_t>(t) * d.model.q_heads + row % 2 * d.model.group() + h) * d.model.head_dim;
      std::vector<double> p;
      double all = 0;
      for (std::int32_t i = 0; i <= t; ++i) p.push_back(std::exp(d.dot(q, d.key(row, i)) / std::sqrt(d.model.head_dim))), all += p.back();
      for (std::size_t i = 0; i < p.size(); ++i) sum[i] += p[i] / all / d.model.group();
    }
  std::vector<double> pooled;
  for (std::int32_t i = 3; i < prompt - 4; ++i) {
    double best = nth(sum, i);  // the last 5 tokens are not smoothed
    for (std::int32_t j = i - 1; j <= i + 1 && i < prompt - 5; ++j)
      if (j < prompt - 5) best = std::max(best, nth(sum, j));
    pooled.push_back(best);
  }
  std::vector<std::int32_t> chosen = best(pooled, 32);
  for (std::int32_t& i : chosen) i += 3;
  return chosen;
}

TEST(Sentence, BestSentencesByTheMeanQueryOfTheCurrentOne) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    const std::int32_t prompt = 62;
    Prefilled d({4, 2 * group, 2, 8, 16}, 2, prompt, "sentence", kShortSentences, {.window = 5});
    d.expect_rows(14, [&](std::int32_t r, std::int32_t) {
      const std::int32_t n = d.tokens(), tail = n - 4, begin = std::max(prompt, (n - 1) / 6 * 6);
      std::vector<std::int32_t> candidates = candidates_of(d, r, prompt);
      for (std::int32_t i = prompt - 4; i < tail; ++i) candidates.push_back(i);
      std::map<std::int32_t, std::vector<std::int32_t>> sentences;
      for (const std::int32_t i : candidates) sentences[i / 6].push_back(i);
      std::vector<std::pair<double, std::int32_t>> ranked;
      for (const auto& [number, members] : sentences) {
        double sum = 0;
        for (const std::int32_t i : members)
          for (std::int32_t u = begin; u < n; ++u)
            for (std::int32_t h = 0; h < group; ++h)
              sum += d.dot(d.query(r, h) - static_cast<std::ptrdiff_t>(n - 1 - u) * d.model.q_heads * 8, d.key(r, i)) /
                     static_cast<double>(members.size()) / (n - begin);
        ranked.emplace_back(-sum, number);
      }
      std::sort(ranked.begin(), ranked.end());
      std::vector<std::int32_t> expected{0, 1, 2};
      std::size_t left = 16 - 3 - 4;
      for (const auto& [score, number] : ranked)
        for (const std::int32_t i : sentences[number])
          if (left > 0) expected.push_back(i), --left;
      for (std::int32_t i = tail; i < n; ++i) expected.push_back(i);
      std::sort(expected.begin(), expected.end());
      return expected;
    });
  }
}

TEST(Sentence, TokenIdsCloseSentences) {
  const std::int32_t ids[] = {5, 9, 9, 1, 2, 7, 4, 9, 3};
  const std::int32_t* text = ids;
  const std::int32_t closing[] = {7, 9};
  std::vector<std::int32_t> sentence(9, -1);
  std::int32_t* out = sentence.data();
  const std::int32_t bounds[] = {0, 4, 9};
  run_cpu(SplitSentences{1, 1, 2, closing, &text, bounds, bounds + 1, &out});
  run_cpu(SplitSentences{1, 1, 2, closing, &text, bounds + 1, bounds + 2, &out});
  EXPECT_EQ(sentence, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 1, 2, 2, 3}));
}

TEST(Sentence, CountsWhatComesFromTheHost) {
  Prefilled d({4, 8, 2, 8, 16}, 1, 90, "sentence", kShortSentences, {.window = 5});
  std::vector<std::vector<std::int32_t>> last(2);
  for (std::int32_t t = 0; t < 4; ++t) {
    const auto rows = d.decode();
    std::int64_t fetched = 0;
    for (std::size_t r = 0; r < 2; ++r) {
      EXPECT_EQ(rows[r].size(), 16U);
      fetched += newcomers({rows[r].begin() + 3, rows[r].end() - 4}, last[r]);
      last[r] = rows[r];
    }
    const Traffic traffic = d.part->take_traffic();
    EXPECT_EQ(traffic.asked_units, 2 * 9);
    EXPECT_EQ(traffic.fetched_bytes, fetched * 2 * 8 * 2);
    EXPECT_EQ(traffic.hit_units, 18 - fetched);
  }
  // 94 tokens of 32 bytes in 2 rows: 16 of each on the GPU, and 16 mean keys.
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {2 * 94 * 32, 0, 0}), (TierBytes{2 * 16 * 32 + 2 * 16 * 16, 2 * 78 * 32, 0}));
}

TEST(Sentence, KeepsTheContract) {
  const std::string ids =
      "{budget_tokens: 16, sink_tokens: 3, recent_tokens: 4, candidate_factor: 2, window_tokens: 5, closing_ids: \"3 1\"}";
  EXPECT_TRUE(large_budget_selects_everything("sentence", "{}"));
  for (const std::string& parameters : {std::string(kShortSentences), ids}) {
    EXPECT_TRUE(deterministic_and_well_formed("sentence", parameters, 60, 9, 5));
    EXPECT_TRUE(deterministic_and_well_formed("sentence", parameters, 1, 25, 5));
    EXPECT_TRUE(same_log_with_recorded_counts("sentence", parameters, 65, 9));
  }
  EXPECT_THROW(make_part<SelectorRegistry>("sentence", "{closing_ids: \"3 x\"}"), InputError);
  EXPECT_THROW(make_part<SelectorRegistry>("sentence", "{pool_tokens: 4}"), InputError);
}

}  // namespace
}  // namespace kvlab::test
