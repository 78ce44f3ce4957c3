#include "kernels/score/word_scores/word_scores.h"

#include <bit>
#include <limits>

namespace kvlab {

OpCall call(const WordScores& a) {
  const std::int64_t n = a.kv.total(), read = a.kind == WordScores::Kind::kMark ? 2 : a.words;
  return {.op = "word_scores",
          .rows = a.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = 4 * n * (read + 1),
          .flops = a.kind == WordScores::Kind::kFloat ? 0 : n * read};
}
KVLAB_WITHOUT_CUDA(WordScores)

namespace {

float score(const WordScores& a, std::int32_t row, std::int32_t token, float before) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto word = [&](std::int32_t j) { return std::bit_cast<float>(a.kv.word(a.channel + j, row, token)); };
  if (a.kind == WordScores::Kind::kFloat) return word(0);
  if (a.kind == WordScores::Kind::kMark)
    return (a.kv.word(a.channel, row, token) & kTokenMark) != 0 && before != kInfinity ? -kInfinity : before;
  float sum = 0;
  for (std::int32_t j = 0; j < a.words; ++j) sum += word(j);
  return sum;
}

}  // namespace

void run_cpu(const WordScores& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    float* const scores = a.scores + a.kv.first[r];
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) scores[i] = score(a, r, i, scores[i]);
  }
}

}  // namespace kvlab
