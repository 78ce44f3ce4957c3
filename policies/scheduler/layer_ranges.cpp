#include "policies/scheduler/layer_ranges.h"

#include <array>

namespace kvlab {

namespace {

// Keys in files have no spaces.
constexpr const char* kLayersTold = "layers of the model";
constexpr const char* kSeedTold = "seed of the run";
constexpr const char* kLargeGpuTold = "large gpu";
constexpr const char* kOverlapsTold = "engine overlaps";
constexpr const char* kGpuBytesTold = "bytes of gpu memory";
constexpr const char* kTpTold = "tensor parallel ranks";

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

void tell_setting(const EngineSetting& setting, Params& p) {
  p.prefer(kLayersTold, setting.model_layers);
  p.prefer(kSeedTold, static_cast<long long>(setting.seed));
  p.prefer(kLargeGpuTold, setting.has_large_gpu ? 1 : 0);
  p.prefer(kOverlapsTold, setting.overlaps ? 1 : 0);
  p.prefer(kGpuBytesTold, setting.gpu_bytes);
  p.prefer(kTpTold, setting.tp);
}

EngineSetting told_setting(const Params& p) {
  const EngineSetting usual;
  return {p.told(kLargeGpuTold, 1) != 0,
          p.told(kOverlapsTold, 1) != 0,
          p.told(kLayersTold, 0),
          static_cast<std::uint64_t>(p.told(kSeedTold, 1)),
          p.told(kGpuBytesTold, usual.gpu_bytes),
          static_cast<int>(p.told(kTpTold, usual.tp))};
}

void prefer_engine_defaults(const std::string& scheduler, const EngineSetting& setting, Params& p) {
  tell_setting(setting, p);
  if (scheduler == "vllm_v1") prefer_vllm_defaults(setting, p);
  if (scheduler == "sglang") prefer_sglang_defaults(setting, p);
}

std::int32_t model_layers(const Params& p) {
  if (p.is_describing()) return kMostLayers;
  const std::int64_t layers = told_setting(p).model_layers;
  if (layers <= 0) p.fail("this scheduler cuts the layers of a model: it runs in an experiment that names a 'model'");
  if (layers > kMostLayers)
    p.fail("the model has " + std::to_string(layers) + " layers, and schedulers over layer ranges take at most " +
           std::to_string(kMostLayers));
  return static_cast<std::int32_t>(layers);
}

LayerSkipper::LayerSkipper(Params& p) : layers_(model_layers(p)) {
  auto [name, own] = p.named("batching", "vllm_v1", "scheduler that chooses the requests and tokens of a step; `kvlab list schedulers`");
  if (p.is_describing()) return;
  const EngineSetting setting = told_setting(p);
  prefer_engine_defaults(name, setting, own);
  inner_ = SchedulerRegistry::make(name, own, "scheduler");
  if (inner_->plans_layers())
    p.fail_at("batching", "scheduler '" + name + "' cuts the layers itself: 'batching' takes one that plans whole steps, as vllm_v1");
}

void LayerSkipper::plan(ReplicaView& view, StepPlan& plan) {
  inner_->plan(view, plan);
  skip(view, plan);
}

void LayerSkipper::on_finish(RequestId r) {
  inner_->on_finish(r);
  forget(r);
}

std::int32_t LayerSkipper::add_set(StepPlan& plan, const LayerSet& set) {
  plan.layer_sets.push_back(set);
  return static_cast<std::int32_t>(plan.layer_sets.size());
}

void check_layers(const Params& p, const std::string& key, std::int32_t value, std::int32_t layers) {
  if (value <= layers || p.is_describing()) return;
  p.fail_at(key, "'" + key + "' = " + std::to_string(value) + " is above the " + std::to_string(layers) +
                     " layers of the model: give at most " + std::to_string(layers));
}

}  // namespace kvlab
