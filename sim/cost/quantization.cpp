#include "sim/cost/quantization.h"

#include <algorithm>

#include "base/error.h"
#include "sim/cost/quantization_schemes.h"
#include "sim/cost/quantized_modules.h"

namespace kvlab {

namespace {

using Scheme = QuantizedScheme;

struct PartSum {
  double parameters = 0, bits = 0;
  std::array<double, kNumDtypes> by_type{};

  void add(std::int64_t count, const Scheme& scheme) {
    const auto n = static_cast<double>(count);
    parameters += n;
    bits += n * scheme.bits;
    by_type[static_cast<std::size_t>(scheme.compute)] += n;
  }
  void to(WeightFormat& format) const {
    if (parameters == 0) return;
    format.bits = bits / parameters;
    for (std::size_t t = 0; t < kNumDtypes; ++t) format.share[t] = by_type[t] / parameters;
  }
};

void apply(const QuantizationPlan& plan, ModelSpec& m) {
  const Scheme plain{static_cast<double>(bits(m.dtype)), m.dtype};
  const ModulePatterns ignored(plan.ignored);
  std::vector<std::optional<ModulePatterns>> targets;
  for (const QuantizationPlan::Rule& rule : plan.rules)
    targets.push_back(rule.targets ? std::optional<ModulePatterns>(*rule.targets) : std::nullopt);
  const auto any = [](const ModulePatterns& patterns, const ModuleOfLayer& module) {
    return std::any_of(module.names.begin(), module.names.end(), [&](const std::string& name) { return patterns.matches(name); });
  };
  const auto scheme_of = [&](const ModuleOfLayer& module) {
    if ((plan.experts_only && module.part != ModuleOfLayer::Part::kExperts) || any(ignored, module)) return plain;
    for (std::size_t r = 0; r < plan.rules.size(); ++r)
      if (!targets[r] || any(*targets[r], module)) return plan.rules[r].scheme;
    return plain;
  };
  std::array<PartSum, 3> sums;
  for (std::int64_t layer = 0; layer < m.layers; ++layer)
    for (const ModuleOfLayer& module : modules_of_layer(m, layer))
      sums[static_cast<std::size_t>(module.part)].add(module.parameters, scheme_of(module));
  sums[0].to(m.attention_weights);
  sums[1].to(m.mlp_weights);
  sums[2].to(m.expert_weights);
  if (!plan.head || m.tied_embeddings) return;
  m.head_weights.bits = plan.head->bits;
  m.head_weights.share = {};
  m.head_weights.share[static_cast<std::size_t>(plan.head->compute)] = 1;
}

}  // namespace

void read_quantization(Params& q, bool kv_is_given, ModelSpec& m) {
  const Dtype kv = m.kv_dtype;
  const QuantizationPlan plan = read_quantization_plan(q, m);
  if (kv_is_given) m.kv_dtype = kv;
  try {
    apply(plan, m);
  } catch (const InputError& e) {
    q.fail(std::string("quantization_config: ") + e.what());
  }
}

}  // namespace kvlab
