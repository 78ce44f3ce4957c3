// Groups of layers, the pages of a sequence, and what engines log of them.
#include <algorithm>
#include <utility>

#include "policies/kv/grouped_layers.h"
#include "sim/cost/make_cost_model.h"
#include "sim/cost/model_spec.h"
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

// Layers of several kinds: FLOPs and bytes by hand, on a card that moves a byte per picosecond and launches for nothing.

// 4 heads of 4 + 2 channels for scores and 4 for values over a latent space of 8 + 2; every layer is dense.
const std::string kTinyLatent =
    "model_type: deepseek_v2\nhidden_size: 16\nnum_hidden_layers: 2\nnum_attention_heads: 4\nnum_key_value_heads: 4\nq_lora_rank: null\n"
    "kv_lora_rank: 8\nqk_nope_head_dim: 4\nqk_rope_head_dim: 2\nv_head_dim: 4\nfirst_k_dense_replace: 2\nintermediate_size: 32\n"
    "vocab_size: 64\ntorch_dtype: float16\n";
// A layer of Gated DeltaNet with 2 key and 4 value heads of 4 channels, and one of full attention with a gate.
const std::string kTinyLinear =
    "model_type: qwen3_next\nhidden_size: 16\nnum_hidden_layers: 2\nnum_attention_heads: 4\nnum_key_value_heads: 2\nhead_dim: 4\n"
    "layer_types: [linear_attention, full_attention]\nlinear_num_key_heads: 2\nlinear_num_value_heads: 4\nlinear_key_head_dim: 4\n"
    "linear_value_head_dim: 4\nlinear_conv_kernel_dim: 4\nnum_experts: 0\nintermediate_size: 32\nvocab_size: 64\ntorch_dtype: float16\n";
const std::string kTinyWindow = std::string(kTinyModel) + "layer_types: [sliding_attention, full_attention]\nsliding_window: 4\n";

StepShape decode_rows(const CostModel& cost, const std::vector<std::int32_t>& kv) { return rows_shape(kv, cost.windows()); }
StepCost prompt(CostModel& cost, const PrefillPiece& piece) { return prompt_cost(cost, piece, 1); }

constexpr std::int64_t kNorms = 2 * (4 + 1) * 16 * 2, kMlp = (64 * 16 * 2 + 80 * 2) + 3 * 32 * 2 + (32 * 16 * 2 + 48 * 2);
constexpr std::int64_t kOnce = (2 * 16 * 2 + 4) + 5 * 16 * 2;

TEST(LatentAttention, ADecodeStepByHand) {
  const auto cost = make_cost_model(roofline_setup("", kTinyLatent));
  const StepCost step = cost->step(decode_rows(*cost, {9}));
  const std::int64_t down = (10 * 16 + 16 + 10) * 2, norm = 3 * 8 * 2, queries = (24 * 16 + 16 + 24) * 2, rope = 11 * 2 * 2;
  const std::int64_t append = 10 * (2 + 2) + 8, out = (16 * 16 + 32) * 2;
  EXPECT_EQ(step.of(CostPart::kLinear).count(), 2 * (kNorms + down + norm + queries + rope + append + out + kMlp) + kOnce);
  // Ten tokens of 8 + 2 values once for all heads, queries of 10 and outputs of 8 per head; queries and outputs through 4 x 8 per head.
  const std::int64_t attention = 10 * 10 * 2 + 4 * (10 + 8) * 2, absorbed = 4 * (4 * 8 + 4 + 8) * 2;
  EXPECT_EQ(step.of(CostPart::kAttention).count(), 2 * (attention + 2 * absorbed));
  EXPECT_EQ(step.total.count(), step.bytes);
  const StepCost longer = cost->step(decode_rows(*cost, {19}));
  EXPECT_EQ(std::tuple(longer.flops - step.flops, longer.bytes - step.bytes), std::tuple(2 * 10 * 4 * (2 * 10 + 2 * 8), 2 * 10 * 10 * 2));
}

// An index of 2 heads of 8 channels, whose cached keys have 8 + 4 bytes, chooses 4 tokens.
const std::string kTinySparse = [] {
  std::string text = kTinyLatent;
  text.replace(text.find("deepseek_v2"), 11, "deepseek_v32");
  text.replace(text.find("q_lora_rank: null"), 17, "q_lora_rank: 8");
  return text + "index_n_heads: 2\nindex_head_dim: 8\nindex_topk: 4\n";
}();

TEST(SparseAttention, OnlyTheIndexSeesLongerTexts) {
  const CostSetup setup = roofline_setup("", kTinySparse);
  const auto cost = make_cost_model(setup);
  const StepCost step = cost->step(decode_rows(*cost, {9})), longer = cost->step(decode_rows(*cost, {19}));
  EXPECT_EQ(std::tuple(longer.flops - step.flops, longer.bytes - step.bytes), std::tuple(2 * 10 * 2 * 2 * 8, 2 * 10 * 12));
  const StepCost two = cost->step(decode_rows(*cost, {1})), three = cost->step(decode_rows(*cost, {2}));
  EXPECT_EQ(three.bytes - two.bytes, 2 * (12 + 10 * 2));  // below four tokens latent attention sees one more
  EXPECT_EQ(kv_bytes_per_token(setup.model), 2 * (10 * 2 + 12));
}

// Six tokens: 1 + 2 + 3 + 4 + 4 + 4 pairs in the latent space, and 21 of the index.
TEST(SparseAttention, APromptByHand) {
  const auto cost = make_cost_model(roofline_setup("", kTinySparse));
  const StepCost six = prompt(*cost, {6, 0}), five = prompt(*cost, {5, 0});
  const std::int64_t attention = 2 * 4 * 4 * (2 * 8 + 2) + 2 * 6 * 2 * 8, up = 2 * 4 * (4 + 4) * 8;
  const std::int64_t down = 2 * 16 * (8 + 10), queries = 2 * 8 * 24, out = 2 * 16 * 16, index = 2 * 16 * (8 + 2) + 2 * 8 * 16;
  const std::int64_t mlp = 2 * 3 * 16 * 32;
  const std::int64_t products = 2 * (attention + up + down + queries + out + index + mlp);
  EXPECT_NEAR(static_cast<double>(six.flops - five.flops), static_cast<double>(products), 0.1 * static_cast<double>(products));
}

// A layer of Mamba-2 with 4 heads of 8 channels and a state of 4, one of attention, one MLP; none of them has another part.
TEST(StateSpaceLayers, LayersHaveOnePart) {
  const CostSetup setup =
      roofline_setup("",
                     "model_type: nemotron_h\nhidden_size: 16\nnum_hidden_layers: 3\nnum_attention_heads: 4\nnum_key_value_heads: 2\n"
                     "head_dim: 4\nhybrid_override_pattern: M*-\nmamba_num_heads: 4\nmamba_head_dim: 8\nssm_state_size: 4\nn_groups: 2\n"
                     "conv_kernel: 4\nintermediate_size: 32\nvocab_size: 64\ntorch_dtype: float16\n");
  const ModelSpec& m = setup.model;
  const std::int64_t inner = 4 * 8, convolved = inner + 2 * 2 * 4;
  const std::int64_t mamba = 16 * (inner + convolved + 4) + convolved * (4 + 1) + 3 * 4 + inner + inner * 16;
  const std::int64_t attention = 16 * (4 + 2 * 2) * 4 + 16 * 16, mlp = 2 * 16 * 32, norms = 4 * 16;
  EXPECT_EQ(total_parameters(m), mamba + attention + mlp + norms + 2 * 64 * 16);
  EXPECT_EQ(kv_bytes_per_token(m), 2 * 2 * 4 * 2);
  EXPECT_EQ(m.linear.state_bytes(1, 2), 4 * 8 * 4 * 4 + 3 * convolved * 2);
  const auto cost = make_cost_model(setup);
  const StepCost step = cost->step(decode_rows(*cost, {9})), longer = cost->step(decode_rows(*cost, {19}));
  EXPECT_EQ(longer.bytes - step.bytes, 10 * 16 * 2);  // the state does not grow
}

TEST(LatentAttention, APromptIsExpanded) {
  const auto cost = make_cost_model(roofline_setup("", kTinyLatent));
  const StepCost first = prompt(*cost, {3, 0}), later = prompt(*cost, {3, 5});
  // K and V of 8 tokens come from their latent vectors: 32 channels of 4 heads by 8.
  const std::int64_t up = (8 * (8 + 32) + 32 * 8) * 2, attention = (8 + 3) * 4 * (6 + 4) * 2;
  EXPECT_EQ(later.of(CostPart::kAttention).count(), 2 * (up + attention));
  EXPECT_EQ(later.flops - first.flops, 2 * (2 * 5 * 32 * 8 + 2 * 3 * 5 * 4 * (6 + 4)));
}

TEST(LatentAttention, EveryRankReadsTheWholeCache) {
  const auto attention = [&](const std::string& parallel) {
    const auto cost = make_cost_model(roofline_setup(parallel, kTinyLatent));
    return cost->step(decode_rows(*cost, {9})).of(CostPart::kAttention).count();
  };
  const std::int64_t cached = 10 * 10 * 2, of_heads = 4 * (10 + 8) * 2 + 2 * 4 * (4 * 8 + 4 + 8) * 2;
  EXPECT_EQ(attention(""), 2 * (cached + of_heads));
  EXPECT_EQ(attention("parallel: {tp: 2}\n"), 2 * (cached + of_heads / 2));
}

// The projections to the latent space are whole on each of two ranks; heads are cut.
TEST(LatentAttention, WeightsOfARank) {
  const ModelSpec m = roofline_setup("", kTinyLatent).model;
  const std::int64_t down = 16 * 10, queries = 16 * 24, up = 8 * 32, out = 16 * 16, mlp = 3 * 16 * 32, norms = 2 * 16 + 8;
  EXPECT_EQ(total_parameters(m), 2 * (down + queries + up + out + mlp + norms) + 16 + 2 * 64 * 16);
  EXPECT_EQ(weight_bytes(m, 2), 2 * 2 * (down + norms + (queries + up + out + mlp) / 2) + (16 + 64 * 16) * 2);
  EXPECT_EQ(kv_bytes_per_token(m), 2 * 10 * 2);
  EXPECT_EQ(kv_bytes_per_token(roofline_setup("", kTinyLatent + "kv_cache_dtype: fp8\n").model), 2 * 10);
}

TEST(WindowLayers, ADecodeStepByHand) {
  const auto cost = make_cost_model(roofline_setup("", kTinyWindow));
  const StepCost step = cost->step(decode_rows(*cost, {9})), longer = cost->step(decode_rows(*cost, {19}));
  EXPECT_EQ(step.of(CostPart::kAttention).count(),
            (2 * (10 + 4) * 2 * 4 * 2) + 2 * (2 * 16 * 2));  // ten tokens in one layer, four in the other
  EXPECT_EQ(std::tuple(longer.flops - step.flops, longer.bytes - step.bytes), std::tuple(4 * 10 * 16, 2 * 10 * 2 * 4 * 2));
  // Six tokens: 21 pairs, and 1 + 2 + 3 + 4 + 4 + 4 in the window.
  const auto full = make_cost_model(roofline_setup("", kTinyModel));
  EXPECT_EQ(prompt(*full, {6, 0}).flops - prompt(*cost, {6, 0}).flops, 4 * (21 - 18) * 16);
}

TEST(WindowLayers, ASpanEndsWhereARowFillsTheWindow) {
  const auto cost = make_cost_model(roofline_setup("", kTinyWindow));
  const DecodeSpan span = cost->decode_span(decode_rows(*cost, {1, 50}));
  EXPECT_EQ(span.valid_steps, 2);  // at three cached tokens and its own the first row fills it
  EXPECT_EQ(span.base.total + span.slope.total, cost->step(decode_rows(*cost, {2, 51})).total);
  EXPECT_EQ(span.slope.bytes, (2 + 1) * 2 * 2 * 4 * 2);
  const DecodeSpan filled = cost->decode_span(decode_rows(*cost, {3, 50}));
  EXPECT_GT(filled.valid_steps, 1'000'000);
  EXPECT_EQ(filled.slope.bytes, 2 * 2 * 2 * 4 * 2);
  EXPECT_EQ(filled.base.total + 100 * filled.slope.total, cost->step(decode_rows(*cost, {103, 150})).total);
}

TEST(LinearLayers, ADecodeStepByHand) {
  const auto cost = make_cost_model(roofline_setup("", kTinyLinear));
  const StepCost step = cost->step(decode_rows(*cost, {9})), longer = cost->step(decode_rows(*cost, {19}));
  // Four states of 4 x 4 and three tokens of 32 channels, read and written; 8 + 8 + 16 channels come in and 16 go out.
  const std::int64_t linear = 2 * (4 * 16 + 3 * 32) * 2 + (8 + 8 + 16 + 16) * 2, full = 2 * 10 * 2 * 4 * 2 + 2 * 16 * 2;
  EXPECT_EQ(step.of(CostPart::kAttention).count(), linear + full);
  EXPECT_EQ(longer.flops - step.flops, 4 * 10 * 16);  // of the other layer alone
  EXPECT_EQ(longer.bytes - step.bytes, 2 * 10 * 2 * 4 * 2);
  // Projections of 48 channels and two numbers per value head; a convolution over 4 tokens of 32 channels; the output.
  const std::int64_t in = (56 * 16 + 16 + 56) * 2, conv = (2 + 4) * 32 * 2, gate = 3 * 16 * 2, out = (16 * 16 + 32) * 2;
  const std::int64_t qkv = (48 * 16 + 16 + 48) * 2, norm = 3 * 6 * 4 * 2, rope = 13 * 4 * 2, append = 2 * 8 * 4 + 8;
  EXPECT_EQ(step.of(CostPart::kLinear).count(), 2 * (kNorms + kMlp + gate + out) + in + conv + qkv + norm + rope + append + kOnce);
}

TEST(LinearLayers, APromptIsComputedInChunks) {
  const auto cost = make_cost_model(roofline_setup("", kTinyLinear));
  const StepCost first = prompt(*cost, {3, 0}), later = prompt(*cost, {3, 5});
  EXPECT_EQ(later.flops - first.flops, 4 * 3 * 5 * 16) << "a state has no length";
  const std::int64_t states = 2 * (4 * 16) * 2 + 2 * (4 * 16 + 3 * 32) * 2, tokens = 3 * 48 * 2;
  EXPECT_EQ(first.of(CostPart::kAttention).count(), states + tokens + (2 * 3 * 2 * 4 * 2 + 2 * 3 * 16 * 2));
}

TEST(LinearLayers, ParametersByHand) {
  const ModelSpec m = roofline_setup("", kTinyLinear).model;
  const std::int64_t linear = 16 * 56 + 16 * 16 + 32 * 4 + 2 * 4 + 4, full = 16 * 48 + 16 * 16 + 2 * 4;
  EXPECT_EQ(total_parameters(m), linear + full + 2 * (3 * 16 * 32 + 32) + 16 + 2 * 64 * 16);
  EXPECT_EQ(kv_bytes_per_token(m), 2 * 2 * 4 * 2) << "one layer has a cache";
}

TEST(LayerKinds, EqualLayersAreOneClass) {
  const auto classes = [](const char* model) {
    return layer_classes(setup_of(std::string("model: ") + model + "\nhardware: h100\n").model);
  };
  EXPECT_EQ(classes("llama-3.1-405b").size(), 1U);
  EXPECT_EQ(classes("qwen3-235b-a22b").size(), 1U);
  const auto deepseek = classes("deepseek-v3"), gemma = classes("gemma-3-27b"), next = classes("qwen3-next-80b-a3b");
  ASSERT_EQ(deepseek.size(), 2U);
  EXPECT_EQ(std::tuple(deepseek[0].count, deepseek[0].has_experts, deepseek[1].count), std::tuple(3, false, 58));
  ASSERT_EQ(gemma.size(), 2U);
  EXPECT_EQ(std::tuple(gemma[0].attention, gemma[0].count), std::tuple(AttentionKind::kWindow, 52));
  ASSERT_EQ(next.size(), 2U);
  EXPECT_EQ(std::tuple(next[0].attention, next[0].count), std::tuple(AttentionKind::kLinear, 36));
}

// A model's layers cost what models of one kind each cost, in proportion.
TEST(LayerKinds, AMixIsTheSumOfItsParts) {
  const auto attention = [&](const std::string& types) {
    const auto cost = make_cost_model(roofline_setup("", std::string(kTinyModel) + "sliding_window: 4\nlayer_types: " + types + "\n"));
    return cost->step(decode_rows(*cost, {9, 2, 30})).of(CostPart::kAttention).count();
  };
  EXPECT_EQ(2 * attention("[sliding_attention, full_attention]"),
            attention("[full_attention, full_attention]") + attention("[sliding_attention, sliding_attention]"));
}

}  // namespace
}  // namespace kvlab
