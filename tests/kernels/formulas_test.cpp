#include <gtest/gtest.h>

#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/model/layer/layer.h"
#include "kernels/model/sampling/sampling.h"
#include "kernels/storage/compact/compact.h"

namespace kvlab {
namespace {

TEST(KernelFormulas, LinearReadsWeightsOnceAndActivationsPerToken) {
  // 2 tokens, 3 -> 5 channels: 15 weights, 2 * (3 + 5) activations, two bytes each.
  EXPECT_EQ(bytes(LinearShape{2, 5, 3, 2, 16}), 2 * 15 + 2 * 16);
  EXPECT_EQ(flops(LinearShape{2, 5, 3}), 2 * 2 * 15);
  EXPECT_EQ(weight_bytes(LinearShape{2, 6, 4, 2, 4}), 12);  // 24 four-bit weights
  EXPECT_EQ(bytes(LinearShape{0, 5, 3}), 0);                // nothing to do, nothing read
}

TEST(KernelFormulas, DecodeReadsKvOncePerKvHead) {
  // Geometry of the published H100 figure "64 x 4,096 in 354 us, 91 % of 3.35 TB/s": 1.0737 GB of K and V.
  const AttentionDecodeShape s{64, 64 * 4096, 32, 8, 128, 2, 2};
  EXPECT_EQ(bytes(s), 2LL * 64 * 4096 * 8 * 128 * 2 + 2LL * 64 * 32 * 128 * 2);
  EXPECT_NEAR(static_cast<double>(bytes(s)) / 354e-6 / 3.35e12, 0.91, 0.005);
  EXPECT_EQ(flops(s), 4LL * 64 * 4096 * 32 * 128);
}

TEST(KernelFormulas, PrefillCountsPairsUnderTheDiagonal) {
  AttentionPrefillShape s{3, 2, 1, 1, 1, 2, 2, 0};
  EXPECT_EQ(attended_pairs(s), 3 + 4 + 5);
  EXPECT_EQ(flops(s), 4 * 12);
  EXPECT_EQ(bytes(s), 2 * 5 * 2 + 2 * 3 * 2);  // 5 tokens of K and V, 3 of q and out
  s.window = 4;
  EXPECT_EQ(attended_pairs(s), 3 + 4 + 4);
  s.window = 2;
  EXPECT_EQ(attended_pairs(s), 2 + 2 + 2);
  EXPECT_EQ(bytes(AttentionPrefillShape{0, 100, 1, 1, 1}), 0);
  EXPECT_EQ(attended_pairs(AttentionPrefillShape{1, 0, 1, 1, 1}), 1);
}

// A prompt in chunks attends to as many pairs as in one piece.
TEST(KernelFormulas, ChunksAddUpToTheWholePrompt) {
  for (const std::int64_t window : {0, 1, 37, 100, 5000}) {
    std::int64_t pairs = 0;
    for (std::int64_t before = 0; before < 1000; before += 100) pairs += attended_pairs({100, before, 1, 1, 1, 2, 2, window});
    EXPECT_EQ(pairs, attended_pairs({1000, 0, 1, 1, 1, 2, 2, window})) << "window " << window;
  }
}

TEST(KernelFormulas, ElementwiseOperations) {
  EXPECT_EQ(bytes(RmsNormShape{10, 8, 2, true}), (40 + 1) * 8 * 2);
  EXPECT_EQ(bytes(RmsNormShape{10, 8, 2, false}), (20 + 1) * 8 * 2);
  EXPECT_EQ(bytes(RmsNormShape{0, 8, 2, true}), 0);
  EXPECT_EQ(bytes(RopeShape{10, 4, 8, 2}), 10 * 9 * 8 * 2);
  EXPECT_EQ(flops(RopeShape{10, 4, 8, 2}), 960);
  EXPECT_EQ(bytes(SiluMulShape{10, 8, 2, true}), 3 * 80 * 2);
  EXPECT_EQ(bytes(SiluMulShape{10, 8, 2, false}), 2 * 80 * 2);
  EXPECT_EQ(bytes(EmbeddingShape{10, 8, 2}), 10 * (32 + 4));
  EXPECT_EQ(bytes(AppendKvShape{10, 2, 8, 2, 1}), 10 * (2 * 16 * 3 + 8));
  EXPECT_EQ(bytes(SamplingShape{3, 100, 2}), 3 * (200 + 4));
}

TEST(KernelFormulas, ExpectedExpertsUnderUniformRouting) {
  MoeExpertsShape s{1, 4, 6, 8, 2, 1, 2, 16, true};
  EXPECT_DOUBLE_EQ(expected_experts(s), 2.0);  // one token picks exactly its two
  s.tokens = 2;
  EXPECT_DOUBLE_EQ(expected_experts(s), 8 * (1 - 0.75 * 0.75));
  s.tokens = 0;
  EXPECT_DOUBLE_EQ(expected_experts(s), 0.0);
  s.tokens = 10'000;
  EXPECT_NEAR(expected_experts(s), 8.0, 1e-9);
  s.tokens = 1;
  EXPECT_EQ(weights_per_expert(s), 3 * 24);
  EXPECT_EQ(bytes(s), 2 * 72 * 2 + 2 * 2 * 10 * 2);
  EXPECT_EQ(flops(s), 2 * 2 * 72);
  s.ranks = 2;  // one of two pairs, half the experts
  EXPECT_EQ(flops(s), 2 * 72);
  EXPECT_EQ(bytes(s), 72 * 2 + 2 * 10 * 2);
}

TEST(KernelFormulas, CompactReadsAndWritesEveryMovedToken) {
  // 5 tokens, 2 layers, 3 KV heads, 4 channels of 2 bytes: K and V, in and out, and a position.
  EXPECT_EQ(bytes(CompactShape{5, 2, 3, 4, 2}), 5 * 2 * 3 * (4 * 4 * 2 + 4));
  EXPECT_EQ(bytes(CompactShape{0, 2, 3, 4, 2}), 0);
  EXPECT_EQ(flops(CompactShape{5, 2, 3, 4, 2}), 0);
}

}  // namespace
}  // namespace kvlab
