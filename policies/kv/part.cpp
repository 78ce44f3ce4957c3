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
  if (pass.empty()) pass = other.pass;
  if (!other.pass.empty() && other.pass != pass) throw InternalError("two parts ask for different extra passes");
}

std::vector<Queries> last_of(std::span<const Queries> queries, std::int32_t count, const ModelShape& model) {
  std::vector<Queries> last;
  for (const Queries& q : queries) {
    const std::int32_t skipped = std::max(0, q.count - count);
    const std::int64_t width = static_cast<std::int64_t>(model.q_heads) * model.head_dim;
    last.push_back({q.data == nullptr ? nullptr : q.data + skipped * width, q.count - skipped, q.first_position + skipped});
  }
  return last;
}

std::int32_t Budget::of(std::int32_t prompt_tokens) const {
  if (tokens > 0) return tokens;
  const double share = frac * prompt_tokens;
  return static_cast<std::int32_t>(truncates ? std::floor(share) : std::nearbyint(share));
}

}  // namespace kvlab
