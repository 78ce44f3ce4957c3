#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

enum class OpId : std::uint8_t {
  kEmbedding,
  kLayernorm,
  kQkvProj,
  kQkNorm,
  kRotaryEmb,
  kAppendKv,
  kOProj,
  kAttentionGate,
  kQkvAProj,
  kQBProj,
  kLinearInProj,
  kConv1d,
  kGatedNorm,
  kLinearOutProj,
  kGateUpProj,
  kActFn,
  kDownProj,
  kFinalLayernorm,
  kLmHead,
  kSampler,
  kRouter,
  kMoe,
  kAllReduce,
  kAttentionPrefill,
  kAttentionDecode,
  kQAbsorb,
  kVAbsorb,
  kKvBProj,
  kTopK,
  kAttentionStats,
  kPool1d,
  kTokenNorms,
  kAnchorCosine,
  kPageBounds,
  kPageScores,
  kCompact,
  kEvict,
  kQuantize,
  kDequantize,
  kTokenCopy,
  kCast,
  kUnsparsify,
  kLowRankRebuild,
  kRestoreOutliers,
  kHostToDevice,
  kDeviceToHost,
};

enum class OpFamily : std::uint8_t { kTokens, kSequences, kAttention, kMoe, kCollective, kPolicy, kCopy };
// Besides time and spread.
const std::vector<std::string>& columns_of(OpFamily family);
// Without ".csv"; "": the operation's name.
std::string_view table_of(OpFamily family);

struct Operation {
  OpId op;
  std::string_view name;  // policies: as in OpCall
  OpFamily family;
  int per_layer = 1;              // 0: once per step
  std::string_view cpu{}, gpu{};  // KernelFamily::op, or ""
  std::string_view why_untimed{};
  std::string_view gpu_table{};       // if its launch differs; "": `name`
  std::string_view gpu_format{};      // GPU operands; "": the model's type
  bool streams = false;               // reads weights, reads or writes KV
  std::optional<OpFamily> part_of{};  // table with its time; append_kv: only if the profile says so
};

namespace operations {

constexpr Operation tokens(OpId op, std::string_view name, int per_layer, std::string_view cpu, std::string_view gpu) {
  return {.op = op, .name = name, .family = OpFamily::kTokens, .per_layer = per_layer, .cpu = cpu, .gpu = gpu};
}
constexpr Operation linear(OpId op, std::string_view name, std::string_view cpu) {
  Operation o = tokens(op, name, 1, cpu, "linear");
  o.streams = true;
  return o;
}
constexpr Operation policy(OpId op, std::string_view name, std::string_view gpu_format = "") {
  return {.op = op, .name = name, .family = OpFamily::kPolicy, .cpu = name, .gpu = name, .gpu_format = gpu_format};
}
constexpr Operation copy(OpId op, std::string_view name) {
  return {.op = op, .name = name, .family = OpFamily::kCopy, .gpu = name, .why_untimed = "a CPU has no host link", .gpu_format = "pinned"};
}
constexpr Operation attention(OpId op, std::string_view name, std::string_view cpu, std::string_view gpu, bool streams = false) {
  return {op, name, OpFamily::kAttention, 1, cpu, gpu, "", "", "", streams};
}
constexpr std::string_view kDense = "calibrate times dense models on one device";
// Attention gates, latent or linear attention.
constexpr Operation of_other_layers(OpId op, std::string_view name, bool streams = false) {
  return {op, name, OpFamily::kTokens, 1, "", "", "calibrate times models whose layers all have plain attention", "", "", streams};
}
// Product around latent attention, in attention's tables.
constexpr Operation of_latent_attention(OpId op, std::string_view name) {
  Operation o = of_other_layers(op, name, true);
  o.family = OpFamily::kAttention;
  o.part_of = OpFamily::kAttention;
  return o;
}

}  // namespace operations

// In the order of calibrate and bundle profiles. Fields as in Operation.
inline constexpr std::array kOperations{
    operations::tokens(OpId::kEmbedding, "embedding", 0, "embedding", "embedding"),
    operations::tokens(OpId::kLayernorm, "layernorm", 2, "rmsnorm", "rmsnorm"),
    operations::linear(OpId::kQkvProj, "qkv_proj", "linear_set"),  // the CPU's transformer does not fuse weights
    operations::tokens(OpId::kQkNorm, "qk_norm", 1, "rmsnorm", "rmsnorm_qk"),
    Operation{OpId::kRotaryEmb, "rotary_emb", OpFamily::kTokens, 1, "rope", "rope_qk", "", "rope_qk"},
    Operation{OpId::kAppendKv, "append_kv", OpFamily::kTokens, 1, "append_kv", "append_step", "", "", "", true, OpFamily::kAttention},
    operations::linear(OpId::kOProj, "o_proj", "linear"),
    operations::of_other_layers(OpId::kAttentionGate, "attention_gate"),
    operations::of_other_layers(OpId::kQkvAProj, "qkv_a_proj", true),
    operations::of_other_layers(OpId::kQBProj, "q_b_proj", true),
    operations::of_other_layers(OpId::kLinearInProj, "linear_in_proj", true),
    operations::of_other_layers(OpId::kConv1d, "conv1d"),
    operations::of_other_layers(OpId::kGatedNorm, "gated_norm"),
    operations::of_other_layers(OpId::kLinearOutProj, "linear_out_proj", true),
    operations::linear(OpId::kGateUpProj, "gate_up_proj", "linear_set"),
    operations::tokens(OpId::kActFn, "act_fn", 1, "silu_mul", "silu_mul"),
    operations::linear(OpId::kDownProj, "down_proj", "linear"),
    operations::tokens(OpId::kFinalLayernorm, "final_layernorm", 0, "rmsnorm", "rmsnorm"),
    Operation{OpId::kLmHead, "lm_head", OpFamily::kSequences, 0, "linear", "linear_head", "", "linear_head", "", true},
    Operation{OpId::kSampler, "sampler", OpFamily::kSequences, 0, "sampling", "sampling", "", "", "f32"},
    Operation{OpId::kRouter, "router", OpFamily::kTokens, 1, "", "", operations::kDense, "", "", false, OpFamily::kMoe},
    Operation{.op = OpId::kMoe, .name = "moe", .family = OpFamily::kMoe, .why_untimed = operations::kDense},
    Operation{.op = OpId::kAllReduce, .name = "all_reduce", .family = OpFamily::kCollective, .why_untimed = operations::kDense},
    operations::attention(OpId::kAttentionPrefill, "attention_prefill", "attention_prefill", "attention_prefill_step"),
    operations::attention(OpId::kAttentionDecode, "attention_decode", "decode_attention", "decode_attention", true),
    operations::of_latent_attention(OpId::kQAbsorb, "q_absorb"),
    operations::of_latent_attention(OpId::kVAbsorb, "v_absorb"),
    operations::of_latent_attention(OpId::kKvBProj, "kv_b_proj"),
    operations::policy(OpId::kTopK, "top_k", "f32"),
    operations::policy(OpId::kAttentionStats, "attention_stats"),
    operations::policy(OpId::kPool1d, "pool1d", "f32"),
    operations::policy(OpId::kTokenNorms, "token_norms"),
    operations::policy(OpId::kAnchorCosine, "anchor_cosine"),
    operations::policy(OpId::kPageBounds, "page_bounds"),
    operations::policy(OpId::kPageScores, "page_scores", "f32"),
    operations::policy(OpId::kCompact, "compact"),
    operations::policy(OpId::kEvict, "evict"),
    operations::policy(OpId::kQuantize, "quantize"),
    operations::policy(OpId::kDequantize, "dequantize"),
    operations::policy(OpId::kTokenCopy, "token_copy"),
    operations::policy(OpId::kCast, "cast"),
    operations::policy(OpId::kUnsparsify, "unsparsify"),
    operations::policy(OpId::kLowRankRebuild, "low_rank_rebuild"),
    operations::policy(OpId::kRestoreOutliers, "restore_outliers"),
    operations::copy(OpId::kHostToDevice, "host_to_device"),
    operations::copy(OpId::kDeviceToHost, "device_to_host"),
};

constexpr const Operation& operation(OpId op) { return kOperations[static_cast<std::size_t>(op)]; }
constexpr std::string_view name_of(OpId op) { return operation(op).name; }
constexpr bool is_feed_forward(std::string_view name) {
  for (const OpId op : {OpId::kGateUpProj, OpId::kActFn, OpId::kDownProj, OpId::kRouter, OpId::kMoe})
    if (name == name_of(op)) return true;
  return false;
}

static_assert([] {
  for (std::size_t i = 0; i < kOperations.size(); ++i) {
    if (static_cast<std::size_t>(kOperations[i].op) != i) return false;
    for (std::size_t j = 0; j < i; ++j)
      if (kOperations[i].name == kOperations[j].name) return false;
  }
  return static_cast<std::size_t>(OpId::kDeviceToHost) + 1 == kOperations.size();
}());

}  // namespace kvlab
