#include "policies/kv/needs.h"

#include <algorithm>

#include "base/error.h"

namespace kvlab {

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

}  // namespace kvlab
