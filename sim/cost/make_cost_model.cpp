#include "sim/cost/make_cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/cost/roofline_prices.h"
#include "sim/cost/spec_file.h"
#include "sim/cost/step_cost_model.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMiB = 1 << 20;
// CUDA context, cuBLAS and attention workspaces, captured graphs: an estimate of ours for one process on one GPU.
constexpr std::int64_t kContextBytes = 1024 * kMiB;
// Tensors of hidden width alive at once inside a layer: residual, normalised input, attention output, its projection.
constexpr std::int64_t kLiveHidden = 4;

Parallel read_parallel(Params& experiment, const ModelSpec& m) {
  Params p = experiment.optional_child("parallel", "parallel");
  Parallel parallel;
  parallel.tp = p.optional<int>("tp", 1, 1, 1024, "GPUs that share each layer");
  parallel.pp = p.optional<int>("pp", 1, 1, 1024, "stages the layers are cut into");
  parallel.ep = p.optional<int>("ep", 1, 1, 1024, "GPUs the experts are spread over; a multiple of tp, or 1: experts are cut over tp");
  p.reject_unread();
  if (m.q_heads % parallel.tp != 0)
    p.fail_at("tp", fmt::format("'tp' = {} does not divide the {} query heads of {}", parallel.tp, m.q_heads, m.name));
  if (parallel.pp > m.layers) p.fail_at("pp", fmt::format("'pp' = {} is more than the {} layers of {}", parallel.pp, m.layers, m.name));
  if (parallel.ep == 1) return parallel;
  if (!m.is_moe()) p.fail_at("ep", fmt::format("'ep' = {} but {} has no experts", parallel.ep, m.name));
  if (parallel.ep % parallel.tp != 0) p.fail_at("ep", fmt::format("'ep' = {} is not a multiple of tp = {}", parallel.ep, parallel.tp));
  if (m.experts % parallel.ep != 0)
    p.fail_at("ep", fmt::format("'ep' = {} does not divide the {} experts of {}", parallel.ep, m.experts, m.name));
  return parallel;
}

// Errors of a file named in the experiment say where the experiment names it.
template <class Load>
auto load_at(Params& experiment, const std::string& key, Load load) {
  try {
    return load();
  } catch (const InputError& e) {
    experiment.fail_at(key, e.what());
  }
}

}  // namespace

CostSetup read_cost_setup(Params& experiment) {
  CostSetup setup;
  const std::string folder = profiles_folder();
  const auto [profile, profile_params] = experiment.named("profile", "roofline", "where step times come from: roofline");
  const std::string model = experiment.text("model", "model: a name in profiles/models, a config.json or a folder that holds one");
  const std::string hardware = experiment.text("hardware", "GPU: a name in profiles/hardware, or a YAML file");
  if (experiment.is_describing()) {
    experiment.optional_child("parallel", "parallel");
    return setup;
  }
  if (profile != "roofline") experiment.fail_at("profile", "unknown profile '" + profile + "'; known: roofline");
  profile_params.reject_unread();
  setup.model = load_at(experiment, "model", [&] { return load_model_spec(experiment.resolve_file(model), folder + "/models"); });
  setup.hardware =
      load_at(experiment, "hardware", [&] { return load_hardware_spec(experiment.resolve_file(hardware), folder + "/hardware"); });
  setup.parallel = read_parallel(experiment, setup.model);
  setup.prices = std::make_shared<RooflinePrices>(setup.model, setup.hardware, setup.parallel);
  return setup;
}

std::unique_ptr<CostModel> make_cost_model(const CostSetup& setup) {
  return std::make_unique<StepCostModel>(setup.prices, setup.model, setup.hardware, setup.parallel);
}

std::int64_t default_reserve_bytes(const CostSetup& setup, std::int64_t max_batched_tokens, std::int64_t max_rows) {
  const ModelSpec& m = setup.model;
  const std::int64_t mlp = m.is_moe() ? m.experts_per_token * m.moe_intermediate + m.shared_intermediate : m.intermediate;
  const std::int64_t widths = kLiveHidden * m.hidden + (m.gated_mlp ? 3 : 2) * mlp / setup.parallel.tp;
  const std::int64_t tokens = (max_batched_tokens + setup.parallel.data_ranks() - 1) / setup.parallel.data_ranks();
  constexpr std::int64_t kFp32 = 4;
  return tokens * widths * m.activation_bytes() + max_rows * m.vocabulary * (m.activation_bytes() + kFp32) + kContextBytes;
}

std::int64_t derive_num_blocks(const CostSetup& setup, double memory_frac, std::int64_t reserve_bytes, std::int64_t block_tokens) {
  const ModelSpec& m = setup.model;
  const Parallel& p = setup.parallel;
  const std::int64_t kv_heads = std::max<std::int64_t>(1, m.kv_heads / p.tp);
  const std::int64_t layers = (m.layers + p.pp - 1) / p.pp;
  const std::int64_t block_bytes = block_tokens * 2 * layers * kv_heads * m.head_dim * bits(m.kv_dtype) / 8;
  const std::int64_t weights = weight_bytes(m, p.tp, p.pp, p.ep);
  const auto usable = static_cast<std::int64_t>(std::floor(memory_frac * static_cast<double>(setup.hardware.memory_bytes)));
  const std::int64_t left = usable - weights - reserve_bytes;
  if (left < block_bytes) {
    constexpr double kGiB = 1024.0 * 1024 * 1024;
    throw InputError(fmt::format(
        "{} does not fit on {} x {}: of {:.1f} GiB usable per GPU, weights take {:.1f} and the reserve {:.1f}, which leaves no KV block; "
        "raise parallel.tp or the memory fraction, or choose a larger GPU",
        m.name, p.gpus(), setup.hardware.name, static_cast<double>(usable) / kGiB, static_cast<double>(weights) / kGiB,
        static_cast<double>(reserve_bytes) / kGiB));
  }
  return left / block_bytes * p.data_ranks();
}

}  // namespace kvlab
