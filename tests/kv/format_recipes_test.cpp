#include <gtest/gtest.h>

#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

AttentionTrace trace_of(std::int32_t prompt_tokens) {
  return synthetic_trace("layers: 2, q_heads: 8, kv_heads: 2, head_dim: 64, outlier_channels: 0, decode_tokens: 4, prompt_tokens: " +
                         std::to_string(prompt_tokens));
}

struct Expected {
  const char* name;
  double least_bytes, most_bytes, most_error;
};

// Bytes as the papers count them for 600 tokens and heads of 64. Errors are ceilings, for K without large channels: two bits and
// pruning change the sharp attention generated here by about the size of its output.
TEST(FormatRecipes, SaveWhatTheirPapersSay) {
  const AttentionTrace trace = trace_of(600);
  const AttentionReference reference = full_attention(trace);
  for (const Expected& e :
       {Expected{"fp16", 1, 1, 1e-3}, Expected{"bf16", 1, 1, 1e-2}, Expected{"fp8", 0.5, 0.5, 0.1},
        Expected{"int8_per_token", 0.53, 0.54, 0.03}, Expected{"flexgen_int4", 0.28, 0.29, 0.4},
        Expected{"int4_per_channel", 0.28, 0.36, 0.4}, Expected{"kivi4", 0.4, 0.5, 0.2}, Expected{"kivi2", 0.3, 0.42, 1.5},
        Expected{"qserve_kv4", 0.28, 0.29, 0.4}, Expected{"fireq", 0.26, 0.28, 0.4}, Expected{"mustafar50", 0.6, 0.65, 0.8},
        Expected{"mustafar70", 0.48, 0.52, 1.5}, Expected{"think", 0.8, 0.82, 0.8}, Expected{"gear", 0.3, 0.45, 0.3},
        Expected{"zipcache", 0.2, 0.3, 1.2}, Expected{"zipvl", 0.2, 0.35, 0.8}, Expected{"cachegen", 1, 1, 0.3},
        Expected{"dfloat11", 0.55, 0.75, 1e-2},
        // 2 + 32 bytes of 128; with the sketch 4 more for K. KVQuant: one outlier of 3 bytes, and the first token.
        Expected{"turboquant4", 0.26, 0.27, 0.4}, Expected{"turboquant3", 0.2, 0.21, 0.8}, Expected{"turboquant4_qjl", 0.26, 0.28, 1.5},
        Expected{"kvquant4", 0.27, 0.31, 0.4}, Expected{"kvquant3", 0.21, 0.25, 0.8},
        // Half the numbers, and a basis of 4 x 32 x 64 bytes for each side.
        Expected{"palu", 0.6, 0.62, 2}}) {
    const ReplayResult result = replay(trace, reference, load_recipe(e.name));
    EXPECT_GE(result.resident_bytes_frac, e.least_bytes) << e.name;
    EXPECT_LE(result.resident_bytes_frac, e.most_bytes) << e.name;
    EXPECT_GT(result.mean.output_rel_err, 0) << e.name;
    EXPECT_LT(result.mean.output_rel_err, e.most_error) << e.name;
    EXPECT_NEAR(result.mean.attention_mass, 1, 1e-5) << e.name;  // no token is dropped
  }
}

TEST(FormatRecipes, MoreBitsAreNearerToTheFullCache) {
  const AttentionTrace trace = trace_of(400);
  const AttentionReference reference = full_attention(trace);
  const auto error = [&](const std::string& yaml) { return replay(trace, reference, recipe_of(yaml)).mean.output_rel_err; };
  EXPECT_LT(error("{recipe: kivi4}"), error("{recipe: kivi2}"));
  EXPECT_LT(error("{recipe: mustafar50}"), error("{recipe: mustafar70}"));
  EXPECT_LT(error("{recipe: int8_per_token}"), error("{recipe: qserve_kv4}"));
  EXPECT_LT(error("{recipe: shadowkv_keys, format: {low_rank_keys: {rank: 96, keys: after_rope}}}"),
            error("{recipe: shadowkv_keys, format: {low_rank_keys: {rank: 32, keys: after_rope}}}"));
}

TEST(FormatRecipes, CompositionsDropAndEncode) {
  const AttentionTrace trace = trace_of(600);
  const AttentionReference reference = full_attention(trace);
  const ReplayResult both = replay(trace, reference, load_recipe("snapkv_kivi2", 256)),
                     cut = replay(trace, reference, load_recipe("snapkv", 256));
  EXPECT_EQ(both.kept_tokens, 256);
  EXPECT_LT(both.resident_bytes_frac, cut.resident_bytes_frac);
  EXPECT_GT(both.mean.output_rel_err, cut.mean.output_rel_err);
  EXPECT_EQ(replay(trace, reference, load_recipe("knorm_int4")).kept_tokens, 300);
}

}  // namespace
}  // namespace kvlab::test
