#include "sim/replay/replay.h"

#include <gtest/gtest.h>

#include "traces/synthetic_attention.h"

namespace kvlab {
namespace {

AttentionTrace small_trace() {
  Params p = Params::from_text("{layers: 3, q_heads: 8, kv_heads: 2, head_dim: 32, prompt_tokens: 200, decode_tokens: 6}", "synthetic");
  return SyntheticAttention(read_synthetic_attention(p), 5).trace();
}

TEST(Replay, FullCacheAgreesToTheLastBit) {
  const AttentionTrace trace = small_trace();
  const AttentionReference reference = full_attention(trace);
  const ReplayResult full = replay(trace, reference, load_recipe("full"));
  EXPECT_NEAR(full.mean.attention_mass, 1, 1e-5);
  EXPECT_EQ(full.mean.output_rel_err, 0);
  EXPECT_EQ(full.mean.topk_recall, 1);
  EXPECT_EQ(full.resident_bytes_frac, 1);
  EXPECT_EQ(full.kept_tokens, 200);
}

TEST(Replay, SnapKvKeepsItsBudgetAndMostOfTheMass) {
  const AttentionTrace trace = small_trace();
  const AttentionReference reference = full_attention(trace);
  const ReplayResult cut = replay(trace, reference, load_recipe("snapkv", 64));
  EXPECT_EQ(cut.kept_tokens, 64);
  EXPECT_EQ(cut.budget_tokens, 64);
  EXPECT_GT(cut.mean.attention_mass, 0.5);
  EXPECT_LT(cut.mean.attention_mass, 1);
  EXPECT_GT(cut.mean.output_rel_err, 0);
  EXPECT_EQ(replay(trace, reference, load_recipe("snapkv", 200)).mean.output_rel_err, 0);
}

}  // namespace
}  // namespace kvlab
