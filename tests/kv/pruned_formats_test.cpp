#include "base/error.h"
#include "tests/kv/format_fixture.h"

namespace kvlab::test {
namespace {

constexpr ModelShape kPrunedShape{1, 8, 2, 64, 128};

TEST(Mustafar, PrunesWhatLeavesTheWindow) {
  FormatRun run("mustafar", "{key_sparsity: 0.5, value_sparsity: 0.75, recent_tokens: 4}", kPrunedShape, 10, 0);
  EXPECT_EQ(run.changed_keys(0), 6);
  run.step(1);
  EXPECT_EQ(run.changed_keys(1), 7);
  std::int32_t k_zeros = 0, v_zeros = 0;
  for (std::int32_t c = 0; c < 64; ++c) k_zeros += run.key(1, 6, c) == 0 ? 1 : 0, v_zeros += run.value(1, 6, c) == 0 ? 1 : 0;
  EXPECT_EQ(k_zeros, 32);
  EXPECT_EQ(v_zeros, 48);
}

// Score of channel c by plain loops: group mean of the window's q_c^2, times the mean of k_c^2 over all tokens.
std::vector<double> think_scores(const FormatRun& run, std::int32_t head, std::int32_t n, std::int32_t window) {
  const ModelShape& m = run.model;
  std::vector<double> scores;
  for (std::int32_t c = 0; c < m.head_dim; ++c) {
    double q = 0, k = 0;
    for (std::int32_t t = n - window; t < n; ++t)
      for (std::int32_t g = 0; g < m.group(); ++g)
        q += std::pow(double{nth(run.q, (t * m.q_heads + head * m.group() + g) * m.head_dim + c)}, 2);
    for (std::int32_t i = 0; i < n; ++i) k += std::pow(double{run.k[run.place(head, i, c)]}, 2);
    scores.push_back(q / (window * m.group()) * k / n);
  }
  return scores;
}

TEST(Think, PrunesTheLowestChannelsOfOlderTokens) {
  for (const std::int32_t q_heads : {2, 6, 8, 16}) {  // groups of 1, 3, 4, 8
    FormatRun run("think", "{ratio: 0.4, window_tokens: 8}", {1, q_heads, 2, 64, 128}, 30, 0);
    for (std::int32_t h = 0; h < 2; ++h) {
      const std::vector<double> scores = think_scores(run, h, 30, 8);
      std::vector<double> sorted = scores;
      std::sort(sorted.begin(), sorted.end());
      const double threshold = sorted[25];  // 0.4 * 64 = 25.6: 25 are pruned
      for (std::int32_t i = 0; i < 30; ++i)
        for (std::int32_t c = 0; c < 64; ++c)
          EXPECT_EQ(run.key(h, i, c), i < 22 && nth(scores, c) < threshold ? 0.0F : run.k[run.place(h, i, c)]);
    }
    EXPECT_EQ(run.changed_values(0), 0);
  }
}

TEST(Think, TheMaskStaysInDecode) {
  FormatRun run("think", "{ratio: 0.5, window_tokens: 4}", kPrunedShape, 12, 6);
  EXPECT_EQ(run.changed_keys(1), 14);
  for (std::int32_t c = 0; c < 64; ++c) EXPECT_EQ(run.key(1, 0, c) == 0, run.key(1, 13, c) == 0);
}

TEST(Think, ScopePromptPrunesTheWholePromptOnce) {
  FormatRun run("think", "{ratio: 0.5, window_tokens: 4, scope: prompt}", kPrunedShape, 12, 6);
  EXPECT_EQ(run.changed_keys(1), 12);
}

TEST(LowRankKeys, FactorsThePromptAndLeavesTheRest) {
  FormatRun run("low_rank_keys", "{rank: 100, keys: after_rope}", kPrunedShape, 60, 2);
  EXPECT_LT(run.error(false), 1e-5);  // 60 tokens have at most rank 60
  EXPECT_EQ(run.changed_values(0), 0);
  for (std::int32_t c = 0; c < 64; ++c) EXPECT_EQ(run.key(1, 61, c), run.k[run.place(1, 61, c)]);
  // The fixture's keys before and after RoPE are the same ones.
  FormatRun before("low_rank_keys", "{rank: 100, keys: before_rope}", kPrunedShape, 60, 2);
  EXPECT_LT(before.error(false), 1e-5);
  EXPECT_TRUE(before.format->needs().pre_rope_keys);
}

TEST(LowRankKeys, RowBytesAndRefusal) {
  const auto format = make_part<FormatRegistry>("low_rank_keys", "{rank: 160}");
  const ModelShape m{1, 32, 8, 128, 4096};
  EXPECT_EQ(format->row_bytes(m, 0, 1000), 1000 * 256 + 1000 * 160 * 2 / 8 + 160 * 128 * 2);
  EXPECT_EQ(format->refuses(m), "");
  EXPECT_EQ(format->refuses(kPrunedShape), "rank 160 of format 'low_rank_keys' saves nothing on keys of 2 x 64 = 128 channels");
}

TEST(Qserve, SmoothingHelpsWhereAPairOfChannelsIsLarge) {
  double plain = 0, smoothed = 0;
  for (const std::string name : {"per_token", "qserve", "fireq"}) {
    FormatRun run(name, "{}", kPrunedShape, 0, 0);
    std::vector<float> k = RandomLayer::normals(40 * 128, 5, 9);
    for (std::size_t i = 7; i < k.size(); i += 32) k[i] *= 30.0F;
    run.take(k, std::vector<float>(k.size()));
    double wrong = 0;
    for (std::int32_t i = 0; i < 40; ++i)
      for (std::int32_t c = 0; c < 64; ++c)
        if (c % 32 != 7) wrong += std::pow(double{run.key(0, i, c)} - run.k[run.place(0, i, c)], 2);
    (name == "per_token" ? plain : smoothed) = wrong;
    if (name != "per_token") {
      EXPECT_LT(smoothed * 4, plain) << name;
    }
  }
}

TEST(PrunedFormats, AreSound) {
  for (const std::int32_t n : {1, 8, 9, 40}) {
    expect_sound("mustafar", "{recent_tokens: 8}", kPrunedShape, n, 10);
    expect_sound("think", "{window_tokens: 8}", kPrunedShape, n, 10);
    expect_sound("think", "{window_tokens: 8, scope: prompt}", {1, 6, 2, 5, 16}, n, 3);
    expect_sound("low_rank_keys", "{rank: 9}", kPrunedShape, n, 3);
    expect_sound("qserve", "{}", kPrunedShape, n, 3);
    expect_sound("fireq", "{}", {1, 6, 2, 5, 16}, n, 3);
  }
}

}  // namespace
}  // namespace kvlab::test
