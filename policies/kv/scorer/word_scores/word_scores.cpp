#include "policies/kv/scorer/word_scores/word_scores.h"

#include <bit>

namespace kvlab {

OpCall call(const WordScores& a) {
  return {.op = "word_scores", .rows = a.kv.num_rows, .tokens = a.kv.total(), .outputs = a.kv.total(), .bytes = 8 * a.kv.total()};
}
KVLAB_WITHOUT_CUDA(WordScores)

void run_cpu(const WordScores& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) a.out[a.kv.first[r] + i] = std::bit_cast<float>(a.kv.word(a.channel, r, i));
}

}  // namespace kvlab
