#include <gtest/gtest.h>

#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

// A synthetic prompt; what the generator does not make is filled in: queries and keys before RoPE are the trace's own, W_o is a
// simple pattern.
const AttentionTrace& whole_trace() {
  static const AttentionTrace trace = [] {
    AttentionTrace t = synthetic_trace("layers: 3, q_heads: 8, kv_heads: 2, head_dim: 32, prompt_tokens: 400, decode_tokens: 6");
    t.hidden_dim = 48;
    t.question_begin = 380;
    for (auto& layer : t.layers) {
      if (layer.pre_q.empty()) layer.pre_q = layer.q;
      if (layer.pre_k.empty()) layer.pre_k = layer.k;
      for (std::size_t i = layer.w_o.size(); i < 48U * 8 * 32; ++i) layer.w_o.push_back(static_cast<float>(i * 37 % 101) / 101 - 0.5F);
    }
    return t;
  }();
  return trace;
}

class GeometryRecipe : public ::testing::TestWithParam<const char*> {};

TEST_P(GeometryRecipe, KeepsItsBudget) {
  static const AttentionReference reference = full_attention(whole_trace());
  const std::string name = GetParam();
  const ReplayResult cut = replay(whole_trace(), reference, load_recipe(name, 128));
  EXPECT_LE(cut.kept_tokens, name == "lagkv" ? 144 : 128);  // its first tokens and tail have 144
  EXPECT_GT(cut.kept_tokens, 128 - 20) << "at most one chunk below";
  EXPECT_GT(cut.mean.attention_mass, 0.1);
  EXPECT_LT(cut.mean.attention_mass, 1);
}

// Two partitions are cut; 16 first tokens and a tail of 128 count in the budget.
TEST(LagKv, HoldsWhatOthersHoldAtTheSameBudget) {
  const AttentionReference reference = full_attention(whole_trace());
  const auto kept = [&](std::int32_t budget) { return replay(whole_trace(), reference, load_recipe("lagkv", budget)).kept_tokens; };
  for (const std::int32_t budget : {160, 200, 256, 384}) EXPECT_EQ(kept(budget), 144 + (budget - 144) / 2 * 2) << budget;
  for (const std::int32_t budget : {16, 128}) EXPECT_EQ(kept(budget), 144) << budget;
  EXPECT_EQ(kept(0), 144 + 128) << "the paper's share";
}

INSTANTIATE_TEST_SUITE_P(All, GeometryRecipe,
                         ::testing::Values("knorm", "keydiff", "lagkv", "expected_attention", "expected_attention_mean", "paged_eviction",
                                           "cur", "leverage", "noncausal_attention", "compactor", "capkv", "q_filters", "quick_prefill",
                                           "infinipot_v", "chunkkv", "windowkv", "vatp", "criticalkv", "graphkv", "kvcrush",
                                           "fair_eviction"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kvlab::test
