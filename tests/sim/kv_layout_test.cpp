// Groups of layers, the pages of a sequence, and what engines log of them.
#include "sim/cost/kv_layout.h"

#include <algorithm>
#include <utility>

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
  EXPECT_EQ(std::tuple(gemma.group_layers, gemma.full_groups, gemma.window_groups, gemma.page_bytes),
            std::tuple(10, 1, 6, 10LL * kBlock * 2 * 16 * 128 * 2));
  const KvLayout gpt_oss = layout_of("gpt-oss-20b");
  EXPECT_EQ(std::tuple(gpt_oss.group_layers, gpt_oss.groups()), std::tuple(12, 2));
  const KvLayout llama = layout_of("llama-3.1-8b");
  EXPECT_TRUE(llama.is_one_group());
  EXPECT_EQ(llama.page_bytes, kBlock * 131'072);
  EXPECT_EQ(layout_of("deepseek-v3", {8, 1, 1}).page_bytes, kBlock * 70'272) << "every rank has the whole cache";
  EXPECT_EQ(layout_of("llama-3.1-8b", {2, 1, 1}).page_bytes, kBlock * 65'536);
  EXPECT_EQ(layout_of("llama-3.1-8b", {1, 2, 1}).group_layers, 16);
}

// Tokens that vLLM makes a block of for this model on one, two and four GPUs, so that one holds a state.
TEST(KvLayout, AStateTakesAsManyTokensAsVllmPadsItsBlocksTo) {
  for (const auto& [tp, tokens] : {std::pair{1, 544}, {2, 544}, {4, 272}}) {
    const KvLayout next = layout_of("qwen3-next-80b-a3b", {tp, 1, 1});
    EXPECT_EQ(std::tuple(next.group_layers, next.state_groups), std::tuple(12, 3));
    EXPECT_EQ(next.state_pages / next.state_groups * kBlock, tokens) << "tp " << tp;
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

std::int64_t pages_in(const KvLayout& layout, double gib) { return static_cast<std::int64_t>(gib * kGiB) / layout.page_bytes; }

// A start of vLLM. A source that is no issue is a repository's file (docs/cost-model.md has the owners), or the line to search GitHub for.
struct LoggedCache {
  const char* source;
  const char* model;
  Parallel parallel;
  double gib;  // "Available KV cache memory" of one GPU, which vLLM rounds to two digits
  std::int64_t tokens;
  double tolerance_frac;
};

// The rounding alone allows 0.005 / gib: up to 0.13 % here. Logs of several GPUs print the memory of one, and the least of all decides.
constexpr double kRounded = 0.002, kOneOfSeveral = 0.03;

const LoggedCache kLoggedCaches[] = {
    {"vllm#10517 (V0: 1,952 blocks), RTX 3090", "llama-3.1-8b", {1, 1, 1}, 3.81, 31'232, kRounded},
    {"arm-learning-paths, dgx_spark_voicechatbot/4_vllm.md, GB10", "mistral-7b", {1, 1, 1}, 102.56, 840'160, kRounded},
    {"LMCache#1739", "qwen3-14b", {1, 1, 1}, 6.51, 42'656, kRounded},
    {"vllm#21348, four H100", "qwen3-235b-a22b", {4, 1, 1}, 8.11, 178'880, kOneOfSeveral},
    {"eugr/spark-vllm-docker#396, MiniMax-M2.7, two GB10", "minimax-m2", {2, 1, 1}, 28.74, 240'816, kOneOfSeveral},
    {"vllm#20665, four L4, stage of 14 layers", "deepseek-v2-lite", {2, 2, 1}, 12.13, 807'792, kRounded},
    {"tonghuikang/blog, _posts/2025-12-28-vllm-logs.md, H100", "gpt-oss-120b", {1, 1, 1}, 8.99, 130'960, kRounded},
    {"ih-medgemma-hosting, gcp-vertex-audit.md, MedGemma-27B, RTX PRO 6000", "gemma-3-27b", {1, 1, 1}, 35.31, 66'112, kRounded},
    {"'GPU KV cache size: 205,696 tokens', MI300X", "gemma-3-27b", {1, 1, 1}, 109.86, 205'696, kRounded},
    {"'GPU KV cache size: 973,760 tokens', two H200", "qwen3-next-80b-a3b", {2, 1, 1}, 44.59, 973'760, kRounded},
};

TEST(KvLayout, CacheSizesAreThoseThatVllmLogs) {
  for (const LoggedCache& log : kLoggedCaches) {
    const KvLayout layout = layout_of(log.model, log.parallel);
    const auto tokens = static_cast<double>(cache_tokens(layout, pages_in(layout, log.gib), kBlock));
    const auto logged = static_cast<double>(log.tokens);
    EXPECT_NEAR(tokens, logged, log.tolerance_frac * logged) << log.source;
  }
}

// "Maximum concurrency for N tokens per request": since v0.21 the cache size that vLLM logs is this times N.
TEST(KvLayout, ConcurrencyIsThatWhichVllmLogs) {
  const auto concurrency = [](const KvLayout& layout, double gib, std::int64_t tokens, std::int64_t step_tokens) {
    const std::int64_t new_tokens = std::min(tokens, step_tokens);
    const std::int64_t bytes = sequence_bytes(layout, kBlock, tokens - new_tokens, new_tokens);
    return static_cast<double>(pages_in(layout, gib) * layout.page_bytes) / static_cast<double>(bytes);
  };
  // The last two logs above, 8,192 tokens per step. vLLM counts one more block per group with a window, 6 of 1,798.
  EXPECT_NEAR(concurrency(layout_of("gemma-3-27b"), 109.86, 4096, 8192), 50.05, 0.005 * 50.05);
  EXPECT_NEAR(concurrency(layout_of("qwen3-next-80b-a3b", {2, 1, 1}), 44.59, 262'144, 8192), 14.77, 0.002 * 14.77);
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
