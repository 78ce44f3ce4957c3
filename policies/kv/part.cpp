#include "policies/kv/part.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace kvlab {

void Needs::add(const Needs& other) {
  step_queries |= other.step_queries;
  window_queries = std::max(window_queries, other.window_queries);
  pre_rope_queries |= other.pre_rope_queries;
  pre_rope_keys |= other.pre_rope_keys;
  output_weights |= other.output_weights;
  hidden |= other.hidden;
  token_ids |= other.token_ids;
  question |= other.question;
  future_queries |= other.future_queries;
  pass_hidden |= other.pass_hidden;
  cpu_only |= other.cpu_only;
  if (pass.empty()) pass = other.pass;
  if (!other.pass.empty() && other.pass != pass) throw InternalError("two parts ask for different extra passes");
}

std::int32_t Budget::of(std::int32_t prompt_tokens) const {
  if (tokens > 0) return tokens;
  if (frac <= 0) return 0;
  const double share = frac * prompt_tokens;
  return std::max(1, static_cast<std::int32_t>(truncates ? std::floor(share) : std::nearbyint(share)));
}

}  // namespace kvlab
