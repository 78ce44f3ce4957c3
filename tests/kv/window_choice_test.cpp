#include <gtest/gtest.h>

#include "tests/kv/host_fixture.h"
#include "tests/kv/tier_fixture.h"
#include "tests/recipes_in.h"

namespace kvlab::test {
namespace {

// The tokens that the decode steps of a sample attend to, rows of one step and layer after the other; the cache keeps all of them.
std::vector<std::vector<std::int32_t>> attended_rows(const AttentionTrace& trace, const std::string& recipe) {
  const ModelShape model = shape_of(trace, 2);
  KvPolicy policy(recipe_of(recipe), model);
  Ops ops(Ops::Backend::kCpu);
  TraceObserver observer(trace, policy.needs());
  std::vector<KvStore> stores;
  for (std::int32_t l = 0; l < model.num_layers; ++l) stores.emplace_back(model, 1, policy.num_words(), true);
  std::vector<Segment> segments;
  std::vector<std::vector<std::int32_t>> rows;
  std::int32_t begin = 0;
  for (const std::int32_t end : step_ends(trace)) {
    const SeqStep seq{0, begin, end - begin, trace.prompt_tokens, trace.question_begin};
    observer.set_step(seq);
    const PolicyStep step{ops, model, std::span(&seq, 1), stores, observer, 1};
    for (std::int32_t l = 0; l < model.num_layers; ++l) {
      KvStore& store = stores[static_cast<std::size_t>(l)];
      const LayerTensors& t = trace.layers[static_cast<std::size_t>(l)];
      const auto at = static_cast<std::ptrdiff_t>(begin) * model.kv_heads * model.head_dim;
      store.append(0, t.k.data() + at, t.v.data() + at, end - begin, begin);
      const Ops::Frame frame(ops);
      if (seq.decoding()) {
        policy.before_attention(step, l, segments);
        const Segment& s = segments.front();
        for (std::int32_t r = 0; r < model.kv_heads; ++r) rows.emplace_back(s.index + s.index_first[r], s.index + s.index_first[r + 1]);
      }
      policy.after_attention(step, l);
      for (std::int32_t r = 0; r < model.kv_heads; ++r) EXPECT_EQ(store.len(r), end);
    }
    begin = end;
  }
  return rows;
}

// The draft's cache has the tokens that SnapKV with the same window and pool keeps, then all decoded ones.
TEST(WindowChoice, AttendsToTheTokensThatSnapKvKeeps) {
  const AttentionTrace trace = sample({});
  ReplayOptions options;
  options.lists_kept = true;
  const std::string scorer = "scorer: {window_attention: {window_tokens: 16, pool: avg, pool_tokens: 5}}";
  const auto kept =
      replay(trace, full_attention(trace), recipe_of("{recipe: snapkv, budget_tokens: 60, " + scorer + "}"), options).kept_of_prompt;
  const auto rows = attended_rows(trace, "{recipe: magicdec_cache, selector: {window_choice: {window_tokens: 16}}, budget_tokens: 60}");
  ASSERT_EQ(rows.size(), kept.size() * static_cast<std::size_t>(trace.num_tokens - trace.prompt_tokens));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::int32_t> expected = kept[i % kept.size()];
    for (std::size_t t = 0; t <= i / kept.size(); ++t) expected.push_back(trace.prompt_tokens + static_cast<std::int32_t>(t));
    EXPECT_EQ(rows[i], expected);
  }
}

TEST(WindowChoice, ACopyInAdditionToTheCache) {
  Decode d({4, 4, 2, 8, 16}, 1, 100, 3);
  auto part = make_part<SelectorRegistry>("window_choice", "{window_tokens: 8, budget_tokens: 40}");
  d.window_tokens = 8;
  d.prefill(*part);
  EXPECT_EQ(part->resident(d.model, d.store.rows(), {2 * 100 * 32, 0, 0}), (TierBytes{2 * 100 * 32 + 2 * 40 * 32, 0, 0}));
  for (const auto& row : d.decode(*part)) EXPECT_EQ(row.size(), 41U);
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
