#include "kernels/score/token_scores/token_scores.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/random.h"

namespace kvlab {

namespace {

// Channel c of a token, its position and the queries that saw it.
struct Token {
  const std::uint32_t* words;
  std::int64_t stride;
  std::int32_t position, age;
  [[nodiscard]] std::uint32_t u(std::int64_t c) const { return words[c * stride]; }
  [[nodiscard]] float f(std::int64_t c) const { return std::bit_cast<float>(u(c)); }
  [[nodiscard]] float queries() const { return static_cast<float>(std::max(age, 1)); }
};

float logistic(float x) { return 1.0F / (1.0F + std::exp(-x)); }

float spread(const Token& t) {
  const float mean = t.f(0) / t.queries();
  return std::sqrt(std::max(0.0F, t.f(1) / t.queries() - mean * mean));
}

float recurrence(const Token& t) {
  const std::int32_t last = t.u(0) != 0 ? static_cast<std::int32_t>(t.u(0)) - 1 : t.position;
  const auto idle = static_cast<float>(t.position + t.age - 1 - last), gap = static_cast<float>(t.u(1));
  return 2.0F * logistic(-idle / std::max(gap, 1.0F)) + (gap > 0.0F ? 2.0F * logistic(-gap - 1.0F) : 0.0F);
}

std::int32_t ring_ones(const TokenScores& a, const Token& t) {
  int ones = 0;
  for (std::int32_t c = 0; c < a.num_words(); ++c) ones += std::popcount(t.u(c));
  return ones;
}

float score(const TokenScores& a, std::int32_t row, const Token& t) {
  switch (a.kind) {
    case TokenScores::Kind::kPosition:
      return static_cast<float>(t.position);
    case TokenScores::Kind::kRandom:
      return static_cast<float>(Draw{static_cast<std::uint64_t>(a.seeds[a.kv.sequence(row)]), Purpose::kPolicy,
                                     static_cast<std::uint64_t>(t.position), static_cast<std::uint64_t>(row % a.kv.kv_heads)}
                                    .uniform());
    case TokenScores::Kind::kSum:
      return t.f(0);
    case TokenScores::Kind::kMean:
      return t.f(0) / t.queries();
    case TokenScores::Kind::kSpread:
      return spread(t);
    case TokenScores::Kind::kRingSet:
      return static_cast<float>(ring_ones(a, t));
    case TokenScores::Kind::kRingClear:
      return static_cast<float>(ring_ones(a, t) - std::min(a.ring_tokens, t.age));
    case TokenScores::Kind::kRecurrence:
      return recurrence(t);
    case TokenScores::Kind::kLastHit:
      return static_cast<float>(t.u(0) != 0 ? t.u(0) : static_cast<std::uint32_t>(t.position) + 1);
    case TokenScores::Kind::kHits:
      return static_cast<float>(t.u(1) + 1);
  }
  return 0.0F;
}

}  // namespace

std::int32_t TokenScores::num_words() const {
  switch (kind) {
    case Kind::kPosition:
    case Kind::kRandom:
      return 0;
    case Kind::kSum:
    case Kind::kMean:
      return 1;
    case Kind::kRingSet:
    case Kind::kRingClear:
      return (ring_tokens + 31) / 32;
    default:
      return 2;
  }
}

OpCall call(const TokenScores& a) {
  const std::int64_t n = a.kv.total(), words = a.num_words();
  return {
      .op = "token_scores", .rows = a.kv.num_rows, .tokens = n, .outputs = n, .bytes = n * (8 + 4 * words), .flops = n * 4 * (1 + words)};
}
KVLAB_WITHOUT_CUDA(TokenScores)

void run_cpu(const TokenScores& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const std::int32_t end = a.end_position[a.kv.sequence(r)];
    for_each_run(a.kv, r, [&](const KvRun& run) {
      const std::uint32_t* words = a.kv.words == nullptr ? nullptr : a.kv.words + a.first_word * a.kv.pool_tokens + run.slot;
      for (std::int32_t i = 0; i < run.count; ++i) {
        const std::int32_t position = a.kv.position[run.slot + i];
        const Token t{words == nullptr ? nullptr : words + i, a.kv.pool_tokens, position, end - position};
        a.scores[a.kv.first[r] + run.begin + i] = score(a, r, t);
      }
    });
  }
}

}  // namespace kvlab
