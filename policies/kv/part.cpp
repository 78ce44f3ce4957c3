#include "policies/kv/part.h"

#include <algorithm>
#include <cmath>

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
  cpu_only |= other.cpu_only;
  weights |= other.weights;
  if (pass.empty()) pass = other.pass;
  if (!other.pass.empty() && other.pass != pass) throw InternalError("two parts ask for different extra passes");
}

std::int32_t Needs::assumed_question(std::int32_t prompt_tokens) const {
  constexpr std::int32_t kLeastTokens = 32;
  if (!question) return -1;
  return std::max(0, prompt_tokens - std::max(window_queries, kLeastTokens));
}

bool Allocator::over_shares(const ModelShape& model, std::int32_t layer, std::span<const std::int32_t> len, std::int32_t target,
                            std::int32_t n) const {
  for (std::size_t h = 0; h < len.size(); ++h)
    if (len[h] > expected(model, layer, static_cast<std::int32_t>(h), target, n)) return true;
  return false;
}

Held::Held(const Allocator& allocator, const ModelShape& model, std::int32_t layer, std::span<const std::int32_t> len, std::int32_t n)
    : longest_(*std::max_element(len.begin(), len.end())), layer_(layer), n_(n), len_(len), allocator_(&allocator), model_(&model) {}

bool Held::exceeds(std::int32_t target) const {
  if (allocator_ == nullptr || !allocator_->has_shares()) return longest_ > target;
  return n_ > target && allocator_->over_shares(*model_, layer_, len_, target, n_);
}

std::int32_t Budget::of(std::int32_t prompt_tokens) const {
  if (tokens > 0) return tokens;
  if (frac <= 0) return 0;
  const double share = frac * prompt_tokens;
  return std::max(1, static_cast<std::int32_t>(truncates ? std::floor(share) : std::nearbyint(share)));
}

}  // namespace kvlab
