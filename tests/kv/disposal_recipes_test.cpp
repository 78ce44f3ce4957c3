#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

// Nothing but tokens alike: a few directions, so that merging has something to find.
ReplayResult replayed(const Recipe& recipe) {
  static const AttentionTrace trace =
      synthetic_trace("layers: 4, q_heads: 8, kv_heads: 2, head_dim: 32, prompt_tokens: 160, decode_tokens: 24, chunk_tokens: 64");
  static const AttentionReference reference = full_attention(trace);
  return replay(trace, reference, recipe);
}

class DisposalRecipe : public ::testing::TestWithParam<std::string> {
 protected:
  static Recipe recipe(std::int32_t budget) { return load_recipe(GetParam(), GetParam() == "minicache" ? 0 : budget); }
};

TEST_P(DisposalRecipe, ReplaysWithASmallBudget) {
  const ReplayResult r = replayed(recipe(48));
  EXPECT_GT(r.mean.output_rel_err, 0);
  EXPECT_LT(r.mean.output_rel_err, 2);
  EXPECT_LT(r.resident_bytes_frac, 1);
  EXPECT_EQ(r.host_bytes_frac > 0, GetParam() == "h2o_offload");
}

TEST(MiniCache, IsExactWhereAllIsRetained) {
  const ReplayResult r = replayed(recipe_of("{recipe: minicache, disposal: {layer_pairs: {retain_frac: 1}}}"));
  EXPECT_EQ(r.mean.output_rel_err, 0);
  EXPECT_EQ(r.mean.topk_recall, 1);
}

// A step on shapes needs no history where the recipe acts in every step.
TEST_P(DisposalRecipe, FreshStateEqualsTheSteppedOne) {
  constexpr ModelShape kShape{4, 8, 2, 64, 128};
  ShapeRun stepped(recipe(128), kShape), fresh(recipe(128), kShape);
  ShapeRun::Seq seq{0, 300, 300, {}, {}};
  for (std::int32_t t = 0; t < 25; ++t) {
    const ShapeRun::Result a = stepped.step(std::span(&seq, 1));
    fresh.forget();
    const ShapeRun::Result b = fresh.step(std::span(&seq, 1));
    EXPECT_EQ(std::tie(a.calls, a.held, a.before, a.after), std::tie(b.calls, b.held, b.before, b.after)) << "step " << t;
    seq.seen_tokens += seq.new_tokens, seq.new_tokens = 1, seq.held = a.held;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, DisposalRecipe,
                         ::testing::Values("d2o", "d2o_values", "snapkv_d2o", "cam", "kvmerger", "kvmerger_mean", "h2o_attention_merge",
                                           "look_m_averaged", "look_m_pivotal", "look_m_weighted", "elastic_cache", "minicache", "mikv",
                                           "razor_compensation", "merge_values", "h2o_offload"),
                         [](const auto& info) { return info.param; });

// In decode one token goes for each new one in every layer, so that the rows stay as the prompt's end left them; the share of the newest
// mean in the running threshold decides what merges.
TEST(D2o, MergesByARunningThresholdInEveryStep) {
  std::vector<double> errors;
  for (const std::string share : {"0", "0.5", "1"}) {
    const auto run = [&](const std::string& trigger) {
      return replayed(recipe_of("{recipe: d2o, budget_tokens: 48, trigger: " + trigger +
                                ", disposal: {merge_nearest: {threshold: running_mean, new_share_frac: " + share + "}}}"));
    };
    const ReplayResult all = run("every_step"), at_end = run("prefill_end");  // which keeps all 24 decoded tokens
    errors.push_back(all.mean.output_rel_err);
    std::size_t held = 0;
    for (std::size_t r = 0; r < all.kept.size(); ++r) {
      EXPECT_EQ(all.kept[r].size(), at_end.kept[r].size() - 24) << "row " << r;
      held += all.kept[r].size();
    }
    EXPECT_LE(held, all.kept.size() * 48);
  }
  EXPECT_EQ(std::set(errors.begin(), errors.end()).size(), 3U);
}

// A prompt within the budget is shared out in the step that exceeds it, and held from then on.
TEST(D2o, SharesOutInDecodeWhereThePromptFits) {
  const ReplayResult r = replayed(load_recipe("d2o", 170));
  std::size_t held = 0;
  for (const auto& row : r.kept) held += row.size();
  EXPECT_EQ(held, r.kept.size() * 170);
}

// Triggers that let rows grow between cuts have no use for counts that stay.
TEST(D2o, RefusesTriggersThatLetRowsGrow) {
  for (const std::string trigger : {"every_n", "when_full", "page_full", "{every_step: {share_of: sequence}}"})
    EXPECT_THROW(recipe_of("{recipe: d2o, trigger: " + trigger + "}"), InputError) << trigger;
  for (const std::string trigger : {"every_step", "prefill_end", "{every_step: {from: decode_only}}"})
    EXPECT_NO_THROW(recipe_of("{recipe: d2o, trigger: " + trigger + "}")) << trigger;
}

// The tokens in CPU memory are those that left the GPU, and attention is that of deleting them.
TEST(H2oOffload, AttendsAsH2oAndLosesNoByte) {
  const ReplayResult kept = replayed(load_recipe("h2o_offload", 48)), plain = replayed(load_recipe("h2o", 48));
  EXPECT_EQ(kept.mean.output_rel_err, plain.mean.output_rel_err);
  EXPECT_EQ(kept.mean.attention_mass, plain.mean.attention_mass);
  const std::int64_t token = 2 * 32 * 2, rows = 4 * 2;
  for (std::size_t i = 2; i < kept.resident.size(); ++i) {
    const std::int64_t n = i == 2 ? 160 : 158 + static_cast<std::int64_t>(i);
    EXPECT_EQ(kept.resident[i].host, rows * (n - 48) * token) << i;
    EXPECT_EQ(kept.resident[i].gpu, plain.resident[i].gpu) << i;
  }
  EXPECT_EQ(kept.traffic.stored_bytes, 24 * rows * token);  // one token out per row and decode step
}

// MiKV reads everything: more bits are better, and both beat deleting.
TEST(MiKv, MoreBitsAreBetter) {
  const auto error = [](std::int32_t bits) {
    const ReplayResult r = replayed(recipe_of("{recipe: mikv, disposal: {low_precision: {bits: " + std::to_string(bits) + "}}}"));
    EXPECT_NEAR(r.mean.attention_mass, 1, 1e-5);
    return r.mean.output_rel_err;
  };
  EXPECT_LT(error(4), error(2));
  EXPECT_LT(error(8), error(4) / 4);
  EXPECT_LT(error(4), replayed(load_recipe("h2o")).mean.output_rel_err);
}

}  // namespace
}  // namespace kvlab::test
