#include <gtest/gtest.h>

#include <numeric>

#include "sim/replay/replay.h"
#include "tests/kv/kv_fixture.h"
#include "traces/synthetic_attention.h"

namespace kvlab {
namespace {

constexpr std::int32_t kPrompt = 400;

// A pass of 30 tokens per chunk, made of the prompt's last queries and keys, whose chunks observe halves of the prompt, or all of it.
ExtraPass pass_over(const AttentionTrace& trace, std::int32_t chunks) {
  ExtraPass pass;
  pass.num_tokens = 30 * chunks;
  for (std::int32_t c = 0; c < chunks; ++c) pass.chunks.push_back({30 * c, 30 * (c + 1), kPrompt * c / chunks, kPrompt * (c + 1) / chunks});
  const auto last = [&](const std::vector<float>& x, std::int32_t width) {
    return std::vector<float>(x.begin() + static_cast<std::ptrdiff_t>(kPrompt - pass.num_tokens) * width,
                              x.begin() + static_cast<std::ptrdiff_t>(kPrompt) * width);
  };
  std::int32_t stream = 0;
  for (const LayerTensors& l : trace.layers) {
    LayerTensors& t = pass.layers.emplace_back();
    t.q = last(l.q, trace.q_heads * trace.head_dim);
    t.k = last(l.k, trace.kv_heads * trace.head_dim);
    t.v = last(l.v, trace.kv_heads * trace.head_dim);
    t.hidden = test::RandomLayer::normals(static_cast<std::size_t>(pass.num_tokens * trace.hidden_dim), 8, ++stream);
  }
  return pass;
}

const AttentionTrace& trace_with_passes() {
  static const AttentionTrace trace = [] {
    Params p = Params::from_text("{layers: 5, q_heads: 8, kv_heads: 2, head_dim: 32, prompt_tokens: 400, decode_tokens: 6}", "synthetic");
    AttentionTrace t = SyntheticAttention(read_synthetic_attention(p), 5).trace();
    t.hidden_dim = 48;
    std::int32_t stream = 0;
    for (LayerTensors& l : t.layers) l.w_o = test::RandomLayer::normals(48U * 8 * 32, 9, ++stream);
    t.passes["reconstruct"] = pass_over(t, 2);
    t.passes["lookahead"] = pass_over(t, 1);
    return t;
  }();
  return trace;
}

// Counts that depend on data, as they came out last.
struct LastCounts final : CountSource {
  void fill(std::string_view, int layer, std::span<std::int32_t> c) override { counts[layer].assign(c.begin(), c.end()); }
  std::map<int, std::vector<std::int32_t>> counts;
};

const AttentionReference& reference() {
  static const AttentionReference full = full_attention(trace_with_passes());
  return full;
}

class AllocatorRecipe : public ::testing::TestWithParam<const char*> {};

TEST_P(AllocatorRecipe, KeepsItsBudgetOnAverageAndEverythingAtFullBudget) {
  for (const std::int32_t budget : {40, 128}) {
    const ReplayResult cut = replay(trace_with_passes(), reference(), load_recipe(GetParam(), budget));
    EXPECT_LE(cut.kept_tokens, budget);
    EXPECT_GE(cut.kept_tokens, budget - 1) << "the budget is used";
    EXPECT_GT(cut.mean.attention_mass, 0.1);
    EXPECT_LT(cut.mean.attention_mass, 1);
    EXPECT_EQ(cut.mean.output_rel_err, replay(trace_with_passes(), reference(), load_recipe(GetParam(), budget)).mean.output_rel_err);
  }
  for (const std::int32_t budget : {kPrompt - 1, kPrompt, 4096}) {
    const ReplayResult all = replay(trace_with_passes(), reference(), load_recipe(GetParam(), budget));
    EXPECT_EQ(all.kept_tokens, std::min(budget, kPrompt));
    if (budget < kPrompt) continue;
    EXPECT_EQ(all.mean.output_rel_err, 0);
    EXPECT_EQ(all.mean.kl, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, AllocatorRecipe,
                         ::testing::Values("pyramidkv", "adakv", "ada_pyramidkv", "criticalkv_ada", "cake", "dynamickv", "kvzip",
                                           "kvzip_plus", "kvzip_uniform", "laq", "laq_plus", "compresskv"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kvlab
