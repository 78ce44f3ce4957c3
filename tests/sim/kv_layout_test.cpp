// Groups of layers, the pages of a sequence, and what engines log of them.
#include "sim/cost/kv_layout.h"

#include <gtest/gtest.h>

#include "policies/kv/grouped_layers.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

constexpr std::int64_t kBlock = 16;
constexpr double kGiB = 1024.0 * 1024 * 1024;

KvLayout layout_of(const std::string& model, const Parallel& p = {}) {
  return kv_layout(load_model_spec(model, KVLAB_SOURCE_DIR "/profiles/models"), p, kBlock);
}

TEST(KvLayout, GroupsAreThoseOfVllm) {
  const KvLayout gemma = layout_of("gemma-3-27b");  // 10 layers see all, 52 a window
  EXPECT_EQ(gemma.group_layers, 10);
  EXPECT_EQ(gemma.full_groups, 1);
  EXPECT_EQ(gemma.window_groups, 6);
  EXPECT_EQ(gemma.page_bytes, 10LL * kBlock * 2 * 16 * 128 * 2);
  const KvLayout gpt_oss = layout_of("gpt-oss-20b");
  EXPECT_EQ(gpt_oss.group_layers, 12);
  EXPECT_EQ(gpt_oss.groups(), 2);
  const KvLayout llama = layout_of("llama-3.1-8b");
  EXPECT_TRUE(llama.is_one_group());
  EXPECT_EQ(llama.page_bytes, kBlock * 131'072);
  EXPECT_EQ(layout_of("deepseek-v3", {8, 1, 1}).page_bytes, kBlock * 70'272) << "every rank has the whole cache";
  EXPECT_EQ(layout_of("llama-3.1-8b", {2, 1, 1}).page_bytes, kBlock * 65'536);
  EXPECT_EQ(layout_of("llama-3.1-8b", {1, 2, 1}).group_layers, 16);
}

// vLLM makes blocks of 544 tokens for this model on one GPU and of 272 on four, so that one holds a state.
TEST(KvLayout, AStateTakesAsManyTokensAsVllmPadsItsBlocksTo) {
  for (const int tp : {1, 4}) {
    const KvLayout next = layout_of("qwen3-next-80b-a3b", {tp, 1, 1});
    EXPECT_EQ(next.group_layers, 12);
    EXPECT_EQ(next.state_groups, 3);
    EXPECT_EQ(next.state_pages / next.state_groups * kBlock, tp == 1 ? 544 : 272);
  }
}

// "X GiB KV cache is needed" for one sequence of the longest text.
TEST(KvLayout, SequencesTakeWhatVllmSaysTheyNeed) {
  // vllm#27508: gpt-oss-120b, 131,072 tokens of which 1,024 are computed at once.
  const double gpt_oss = static_cast<double>(sequence_bytes(layout_of("gpt-oss-120b"), kBlock, 131'072 - 1024, 1024));
  EXPECT_NEAR(gpt_oss / kGiB, 4.54, 0.005);
  // vllm#15871: DeepSeek-V2-Lite, 32,768 tokens.
  EXPECT_NEAR(static_cast<double>(sequence_bytes(layout_of("deepseek-v2-lite"), kBlock, 0, 32'768)) / kGiB, 0.95, 0.005);
}

// "GPU KV cache size: N tokens" from "Available KV cache memory", which vLLM rounds.
TEST(KvLayout, CacheSizesAreThoseThatVllmLogs) {
  const auto tokens = [](const KvLayout& layout, double gib) {
    return static_cast<double>(cache_tokens(layout, static_cast<std::int64_t>(gib * kGiB) / layout.page_bytes, kBlock));
  };
  EXPECT_NEAR(tokens(layout_of("qwen3-235b-a22b", {4, 1, 1}), 8.11), 178'880, 0.03 * 178'880);  // vllm#21348, four H100
}

TEST(GroupedLayers, PagesLeaveWithTheWindow) {
  GroupedLayers layers({16, 100, 6, 2, 0});
  const auto step = [&](std::int32_t seen, std::int32_t tokens) {
    SeqState seq;
    seq.seen_tokens = seen;
    return layers.step(seq.taking(tokens));
  };
  EXPECT_EQ(step(0, 40).peak_pages, 6 * 3 + 2);
  EXPECT_EQ(step(0, 1000).peak_pages, 6 * 63 + 2);  // a prompt's own tokens all exist while it is computed
  EXPECT_EQ(step(0, 1000).kept_pages, 6 * (63 - 56) + 2);
  EXPECT_EQ(step(1000, 1).peak_pages, 6 * (63 - 56) + 2);
  EXPECT_EQ(step(1011, 1).peak_pages, 6 * (64 - 57) + 2);  // token 912 is the first that the window shows: block 57
  EXPECT_EQ(layers.pages_at_end(1000, 1100), 6 * 63 + 2);
  GroupedLayers in_parts({16, 100, 6, 2, 200});  // the last 200 tokens, on top of 800 of which the window shows 99
  EXPECT_EQ(in_parts.pages_at_end(1000, 1100), 6 * (63 - 43) + 2);
  EXPECT_FALSE(step(1000, 1).leaves_hashed);
  EXPECT_FALSE(layers.is_steady_in_decode());
  EXPECT_TRUE(GroupedLayers({16, 0, 0, 2, 0}).is_steady_in_decode());
}

}  // namespace
}  // namespace kvlab
