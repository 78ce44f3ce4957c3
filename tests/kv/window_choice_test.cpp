#include <gtest/gtest.h>

#include "tests/kv/host_fixture.h"
#include "tests/kv/tier_fixture.h"

namespace kvlab::test {
namespace {

// The tokens that the decode steps of a sample attend to, rows of one step and layer after the other; the cache keeps all of them.
std::vector<std::vector<std::int32_t>> attended_rows(const AttentionTrace& trace, const std::string& recipe) {
  PolicyWalk walk(trace, recipe_of(recipe));
  std::vector<std::vector<std::int32_t>> rows;
  walk.run([&](const PolicyStep& step, std::int32_t l) {
    const KvStore& store = nth(walk.stores, l);
    for (std::int32_t r = 0; r < walk.model.kv_heads; ++r) EXPECT_EQ(store.len(r), step.seqs.front().end());
    if (!step.seqs.front().decoding()) return;
    walk.policy.before_attention(step, l, walk.segments);
    const Segment& s = walk.segments.front();
    for (std::int32_t r = 0; r < walk.model.kv_heads; ++r) rows.emplace_back(s.index + s.index_first[r], s.index + s.index_first[r + 1]);
  });
  for (const KvStore& store : walk.stores)
    for (std::int32_t r = 0; r < walk.model.kv_heads; ++r) EXPECT_EQ(store.len(r), trace.num_tokens);
  return rows;
}

// The draft's cache has the tokens that SnapKV with the same window and pool keeps, then all decoded ones.
TEST(WindowChoice, AttendsToTheTokensThatSnapKvKeeps) {
  const AttentionTrace trace = sample({});
  const std::string scorer = "scorer: {window_attention: {window_tokens: 16, pool: avg, pool_tokens: 5}}";
  const auto kept = replay_listed("{recipe: snapkv, budget_tokens: 60, " + scorer + "}", trace).kept_of_prompt;
  const auto rows = attended_rows(trace, "{recipe: magicdec_cache, selector: {window_choice: {window_tokens: 16}}, budget_tokens: 60}");
  ASSERT_EQ(rows.size(), kept.size() * static_cast<std::size_t>(trace.num_tokens - trace.prompt_tokens));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::int32_t> expected = kept[i % kept.size()];
    for (std::size_t t = 0; t <= i / kept.size(); ++t) expected.push_back(trace.prompt_tokens + static_cast<std::int32_t>(t));
    EXPECT_EQ(rows[i], expected);
  }
}

TEST(WindowChoice, ACopyInAdditionToTheCache) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 100, "window_choice", "{window_tokens: 8, budget_tokens: 40}", {.window = 8});
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {2 * 100 * 32, 0, 0}), (TierBytes{2 * 100 * 32 + 2 * 40 * 32, 0, 0}));
  for (const auto& row : d.decode()) EXPECT_EQ(row.size(), 41U);
}

TEST(WindowChoice, KeepsTheContract) {
  constexpr const char* kSmall = "{window_tokens: 8, budget_tokens: 20}";
  EXPECT_TRUE(large_budget_selects_everything("window_choice", kSmall));
  EXPECT_TRUE(deterministic_and_well_formed("window_choice", kSmall, 90, 5, 8));
  EXPECT_TRUE(deterministic_and_well_formed("window_choice", kSmall, 1, 9, 8));
  EXPECT_TRUE(same_log_without_data("window_choice", kSmall, 65, 4, 8));
}

}  // namespace
}  // namespace kvlab::test
