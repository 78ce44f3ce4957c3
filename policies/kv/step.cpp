#include "policies/kv/step.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/tensor_memory.h"
#include "policies/kv/needs.h"

namespace kvlab {

const TensorMemory& LayerStep::memory() const {
  static const TensorMemory in_cpu_memory;
  return tensors == nullptr ? in_cpu_memory : *tensors;
}

void Needs::add(const Needs& other) {
  step_queries |= other.step_queries;
  prompt_queries |= other.prompt_queries;
  window_queries = std::max(window_queries, other.window_queries);
  pre_rope_queries |= other.pre_rope_queries;
  pre_rope_keys |= other.pre_rope_keys;
  turns |= other.turns;
  output_weights |= other.output_weights;
  hidden |= other.hidden;
  guessed_query |= other.guessed_query;
  token_ids |= other.token_ids;
  question |= other.question;
  future_queries |= other.future_queries;
  pass_hidden |= other.pass_hidden;
  run_only_on_cpu(other.cpu_only);
  weights |= other.weights;
  if (pass.empty()) pass = other.pass;
  if (!other.pass.empty() && other.pass != pass) throw InternalError("two parts ask for different extra passes");
}

std::int32_t Needs::assumed_question(std::int32_t prompt_tokens) const {
  constexpr std::int32_t kLeastTokens = 32;
  if (!question) return -1;
  return std::max(0, prompt_tokens - std::max(window_queries, kLeastTokens));
}

std::int32_t Budget::of(std::int32_t prompt_tokens) const {
  if (tokens > 0) return tokens;
  if (frac <= 0) return 0;
  const double share = frac * prompt_tokens;
  return std::max(1, static_cast<std::int32_t>(truncates ? std::floor(share) : std::nearbyint(share)));
}

}  // namespace kvlab
