#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

constexpr std::uint32_t kTokenMark = 1;  // in a word

// A score per cached token from its position and its words from `first_word` on (TokenStats); higher stays. age = end_position[s] -
// position: queries that saw the token, with its own.
//   kPosition    position
//   kRandom      uniform in [0, 1), a function of seeds[s], KV head and position
//   kSum         f0
//   kMean        f0 / age
//   kSpread      sqrt(max(0, f1 / age - (f0 / age)^2)): RoCo, Ren and Zhu 2024
//   kRingSet     ones in the ring
//   kRingClear   -(zeros among the min(ring_tokens, age) ring bits in use): Scissorhands, Liu et al. 2023
//   kRecurrence  2 s(-idle / max(gap, 1)) + (gap > 0 ? 2 s(-gap - 1) : 0), s: logistic function, gap = u1, idle: steps since the last hit:
//     LazyEviction, Zhang et al. 2025
//   kLastHit     u0, at first position + 1
//   kHits        u1 + 1
//   kProbeMean   f0 / age, 0 for age 0; age: number of probes at or after the position: ZipCache, He et al. 2024, arXiv:2405.14256, eq. 8.
//     Probes of sequence s: positions [probes.begin[j], probes.end[j]), probes.first[s] <= j < probes.first[s + 1]
// Without end_position:
//   kWord        f0                     kWordSum  f0 + f1 + ... of `words`
//   kMark        -infinity where u0 has the mark; other scores, and +infinity, stay
//   kDrawn       the next of `draws`, which begin with each sequence's first row
struct TokenScores {
  enum class Kind : std::uint8_t {
    kPosition,
    kRandom,
    kSum,
    kMean,
    kSpread,
    kRingSet,
    kRingClear,
    kRecurrence,
    kLastHit,
    kHits,
    kProbeMean,
    kWord,
    kWordSum,
    kMark,
    kDrawn
  };
  KvRows kv;
  Kind kind = Kind::kPosition;
  std::int32_t first_word = 0;
  std::int32_t ring_tokens = 0;
  const std::int32_t* end_position = nullptr;  // [kv.num_sequences()]
  const std::int64_t* seeds = nullptr;         // [kv.num_sequences()]
  float* scores = nullptr;                     // [kv.total()] out
  std::int32_t words = 1;                      // of kWordSum
  struct Probes {
    const std::int64_t* first = nullptr;                  // [kv.num_sequences() + 1]
    const std::int32_t *begin = nullptr, *end = nullptr;  // [first[kv.num_sequences()]]
  };
  Probes probes = {};
  const float* draws = nullptr;  // [most_draws()] in CPU memory

  // kDrawn counts a draw of MT19937.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total(), read = num_words();
    if (kind == Kind::kDrawn)
      return {.op = "torch_uniform", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = 4 * n, .flops = 8 * n};
    OpCall c{
        .op = "token_scores", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = n * (8 + 4 * read), .flops = n * 4 * (1 + read)};
    if (kind == Kind::kProbeMean) c.op = "probe_mean", c.flops = n;
    if (!is_of_words()) return c;
    const std::int64_t numbers = kind == Kind::kMark ? 2 : read;
    c.op = "word_scores", c.bytes = 4 * n * (numbers + 1), c.flops = kind == Kind::kWord ? 0 : n * numbers;
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  void shapes(auto&& visit) {
    const std::int64_t sequences = kv.num_sequences(), pieces = kind == Kind::kProbeMean ? probes.first[sequences] : 0;
    visit(draws, most_draws()), visit(kv), visit(end_position, sequences), visit(seeds, sequences);
    visit(probes.first, sequences + 1), visit(probes.begin, pieces), visit(probes.end, pieces);
  }
  // For the longest sequence.
  [[nodiscard]] std::int64_t most_draws() const {
    std::int64_t most = 0;
    for (std::int32_t r = 0; r < kv.num_rows; r += kv.kv_heads) most = std::max(most, kv.first[r + kv.kv_heads] - kv.first[r]);
    return most;
  }
  [[nodiscard]] KVLAB_BOTH std::int32_t num_words() const {
    switch (kind) {
      case Kind::kPosition:
      case Kind::kRandom:
        return 0;
      case Kind::kSum:
      case Kind::kMean:
      case Kind::kProbeMean:
      case Kind::kWord:
      case Kind::kMark:
        return 1;
      case Kind::kWordSum:
        return words;
      case Kind::kRingSet:
      case Kind::kRingClear:
        return (ring_tokens + 31) / 32;
      default:
        return 2;
    }
  }

  [[nodiscard]] KVLAB_BOTH std::int64_t count(std::int64_t row) const { return kv.len[row]; }
  KVLAB_BODY void operator()(std::int64_t row, std::int64_t i) const {
    const auto r = static_cast<std::int32_t>(row);
    const std::int64_t slot = kv.slot(r, static_cast<std::int32_t>(i));
    float& to = scores[kv.first[row] + i];
    Token t{words_at(slot), kv.pool_tokens, 0, 0};
    if (kind == Kind::kDrawn) {
      to = draws[kv.first[row] - kv.first[r - r % kv.kv_heads] + i];
    } else if (is_of_words()) {
      to = of_words(t, to);
    } else {
      t.position = kv.position[slot];
      t.age = kind == Kind::kProbeMean ? probes_from(kv.sequence(r), t.position) : end_position[kv.sequence(r)] - t.position;
      to = score(r, t);
    }
  }

 private:
  [[nodiscard]] KVLAB_BOTH bool is_of_words() const { return kind == Kind::kWord || kind == Kind::kWordSum || kind == Kind::kMark; }

  struct Token {
    const std::uint32_t* words;
    std::int64_t stride;
    std::int32_t position, age;
    [[nodiscard]] KVLAB_BODY std::uint32_t u(std::int64_t c) const { return words[c * stride]; }
    [[nodiscard]] KVLAB_BODY float f(std::int64_t c) const { return std::bit_cast<float>(u(c)); }
    [[nodiscard]] KVLAB_BODY float queries() const { return static_cast<float>(age > 1 ? age : 1); }
  };
  [[nodiscard]] KVLAB_BODY const std::uint32_t* words_at(std::int64_t slot) const {
    return kv.words == nullptr ? nullptr : kv.words + first_word * kv.pool_tokens + slot;
  }

  [[nodiscard]] KVLAB_BODY float of_words(const Token& t, float old) const {
    if (kind == Kind::kMark) return (t.u(0) & kTokenMark) != 0 && old != INFINITY ? -INFINITY : old;
    if (kind == Kind::kWord) return t.f(0);
    float sum = 0.0F;
    for (std::int32_t c = 0; c < words; ++c) sum += t.f(c);
    return sum;
  }
  [[nodiscard]] KVLAB_BODY float score(std::int32_t row, const Token& t) const {
    switch (kind) {
      case Kind::kPosition:
        return static_cast<float>(t.position);
      case Kind::kRandom:
        return static_cast<float>(uniform_draw(static_cast<std::uint64_t>(seeds[kv.sequence(row)]), Purpose::kPolicy,
                                               static_cast<std::uint64_t>(t.position), static_cast<std::uint64_t>(row % kv.kv_heads)));
      case Kind::kSum:
        return t.f(0);
      case Kind::kMean:
        return t.f(0) / t.queries();
      case Kind::kProbeMean:
        return t.age > 0 ? t.f(0) / t.queries() : 0.0F;
      case Kind::kSpread:
        return spread(t);
      case Kind::kRingSet:
        return static_cast<float>(ring_ones(t));
      case Kind::kRingClear:
        return static_cast<float>(ring_ones(t) - (ring_tokens < t.age ? ring_tokens : t.age));
      case Kind::kRecurrence:
        return recurrence(t);
      case Kind::kLastHit:
        return static_cast<float>(t.u(0) != 0 ? t.u(0) : static_cast<std::uint32_t>(t.position) + 1);
      case Kind::kHits:
        return static_cast<float>(t.u(1) + 1);
      default:
        break;
    }
    return 0.0F;
  }
  [[nodiscard]] KVLAB_BODY std::int32_t probes_from(std::int32_t sequence, std::int32_t position) const {
    std::int32_t n = 0;
    for (std::int64_t j = probes.first[sequence]; j < probes.first[sequence + 1]; ++j) {
      const std::int32_t begin = probes.begin[j] < position ? position : probes.begin[j];
      n += begin < probes.end[j] ? probes.end[j] - begin : 0;
    }
    return n;
  }
  static KVLAB_BODY float logistic(float x) { return 1.0F / (1.0F + std::exp(-x)); }
  static KVLAB_BODY float spread(const Token& t) {
    const float mean = t.f(0) / t.queries(), variance = t.f(1) / t.queries() - mean * mean;
    return std::sqrt(variance > 0 ? variance : 0.0F);
  }
  static KVLAB_BODY float recurrence(const Token& t) {
    const std::int32_t last = t.u(0) != 0 ? static_cast<std::int32_t>(t.u(0)) - 1 : t.position;
    const auto idle = static_cast<float>(t.position + t.age - 1 - last), gap = static_cast<float>(t.u(1));
    return 2.0F * logistic(-idle / (gap > 1.0F ? gap : 1.0F)) + (gap > 0.0F ? 2.0F * logistic(-gap - 1.0F) : 0.0F);
  }
  [[nodiscard]] KVLAB_BODY std::int32_t ring_ones(const Token& t) const {
    std::int32_t ones = 0;
    for (std::int32_t c = 0; c < num_words(); ++c) ones += std::popcount(t.u(c));
    return ones;
  }
};
KVLAB_EACH_OP(TokenScores)

}  // namespace kvlab
