#include <gmock/gmock.h>

#include "sim/replay/replay.h"
#include "tests/error_of.h"
#include "tests/recipes_in.h"
#include "traces/synthetic_attention.h"

namespace kvlab {
namespace {

using testing::EndsWith;

TEST(UnequalHeads, AreRefusedWhereAPartTakesThemTogether) {
  const std::string together = " takes all KV heads of a layer together, but ";
  const std::string cuts = " lets them keep different numbers of tokens";
  const auto why = [](const std::string& text) { return error_of([&] { recipe_of(text); }); };
  for (const std::string allocator : {"ada", "global", "head_split", "score_threshold", "table"}) {
    const std::string part = allocator == "table" ? "{table: {values: 0=40 0.1=48}}" : allocator;
    const std::string of = together + "allocator '" + allocator + "'" + cuts;
    EXPECT_THAT(why("{recipe: snapkv, format: low_rank_keys, allocator: " + part + "}"), EndsWith("format 'low_rank_keys'" + of));
    EXPECT_THAT(why("{recipe: snapkv, selector: token_select, allocator: " + part + "}"), EndsWith("selector 'token_select'" + of));
    EXPECT_THAT(why("{recipe: kvcrush, allocator: " + part + "}"), EndsWith("scorer 'representatives'" + of));
    if (allocator == "global") continue;  // not in decode
    EXPECT_THAT(why("{recipe: compresskv, trigger: lagged, allocator: " + part + "}"),
                EndsWith("scorer 'retrieval_head_window'" + of + ", and trigger 'lagged' acts on them again"));
  }
  const std::string table = "allocator: {table: {values: 0=40 0.1=48}}}", of = together + "allocator 'table'" + cuts;
  EXPECT_THAT(why("{recipe: snapkv, scorer: {blocks: {of: key_norm}}, " + table), EndsWith("scorer 'blocks'" + of));
  EXPECT_THAT(why("{recipe: snapkv, trigger: every_step, scorer: {slices: {of: key_norm, scored: alone}}, " + table),
              EndsWith("scorer 'slices'" + of + ", and trigger 'every_step' acts on them again"));
  EXPECT_THAT(why("{recipe: snapkv, format: low_rank_keys, scorer: {chunks: {heads: own}}}"),
              EndsWith("format 'low_rank_keys'" + together + "scorer 'chunks'" + cuts));
}

TEST(UnequalHeads, AreFineWhereNothingTakesThemTogether) {
  Params p = Params::from_text("{layers: 2, q_heads: 8, kv_heads: 2, head_dim: 64, prompt_tokens: 200, decode_tokens: 4}", "synthetic");
  const AttentionTrace trace = SyntheticAttention(read_synthetic_attention(p), 5).trace();
  const AttentionReference reference = full_attention(trace);
  for (const std::string recipe :
       {"snapkv, budget_tokens: 64, format: {low_rank_keys: {keys: after_rope}}, allocator: pyramid",
        "snapkv, budget_tokens: 64, format: {low_rank_keys: {keys: after_rope}}, allocator: {table: {values: 0=64 1=48}}",
        "compresskv, budget_tokens: 64, allocator: head_split", "compresskv, budget_tokens: 64, trigger: every_step, allocator: pyramid"})
    EXPECT_GT(replay(trace, reference, recipe_of("{recipe: " + recipe + "}")).mean.attention_mass, 0) << recipe;
}

}  // namespace
}  // namespace kvlab
