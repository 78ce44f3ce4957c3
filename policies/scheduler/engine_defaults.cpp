#include <array>
#include <string>

#include "policies/scheduler/layer_ranges.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

namespace {

// GPUs below 70 GiB and A100s (vllm/engine/arg_utils.py, get_batch_defaults, v0.19).
void prefer_vllm_defaults(const EngineSetting& setting, Params& p) {
  p.prefer("async_scheduling", setting.overlaps ? 1 : 0);
  if (setting.has_large_gpu) return;
  p.prefer("budget_tokens", 2048);
  p.prefer("max_num_seqs", 256);
}

// python/sglang/srt/server_args.py, _handle_gpu_memory_settings, v0.5.9.
void prefer_sglang_defaults(const EngineSetting& setting, Params& p) {
  struct Tier {
    std::int64_t below_gib;
    int chunk_tokens, graph_rows, graph_rows_tp4;  // graph_rows_tp4: tp >= 4
  };
  static constexpr std::array<Tier, 6> kTiers{
      {{20, 2048, 8, 8}, {35, 2048, 24, 80}, {60, 4096, 32, 160}, {90, 8192, 256, 512}, {160, 8192, 256, 512}, {1 << 20, 16384, 512, 512}}};
  p.prefer("overlap", setting.overlaps ? 1 : 0);
  for (const Tier& tier : kTiers) {
    if (setting.gpu_bytes >= tier.below_gib << 30) continue;
    p.prefer("chunk_tokens", tier.chunk_tokens);
    p.prefer("largest_graph_tokens", setting.tp < 4 ? tier.graph_rows : tier.graph_rows_tp4);
    return;
  }
}

}  // namespace

void prefer_engine_defaults(const std::string& scheduler, const EngineSetting& setting, Params& p) {
  tell_setting(setting, p);
  if (scheduler == "vllm_v1") prefer_vllm_defaults(setting, p);
  if (scheduler == "sglang") prefer_sglang_defaults(setting, p);
}

}  // namespace kvlab
