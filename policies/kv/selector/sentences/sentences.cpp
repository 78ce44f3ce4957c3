#include "policies/kv/selector/sentences/sentences.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

namespace kvlab {

OpCall call(const SplitSentences& a) {
  OpCall c{.op = "split_sentences", .rows = a.num_sequences};
  for (std::int32_t s = 0; s < a.num_sequences; ++s) c.outputs += a.end[s] - a.begin[s];
  c.bytes = 8 * c.outputs;
  return c;
}
KVLAB_WITHOUT_CUDA(SplitSentences)

void run_cpu(const SplitSentences& a) {
  for (std::int32_t s = 0; s < a.num_sequences; ++s) {
    std::int32_t* out = a.sentence_of[s];
    const auto closes = [&](std::int32_t i) { return std::binary_search(a.closing, a.closing + a.num_closing, a.ids[s][i]); };
    for (std::int32_t i = a.begin[s]; i < a.end[s]; ++i) {
      if (a.num_closing == 0) {
        out[i] = i / a.span_tokens;
      } else {
        out[i] = i == 0 ? 0 : out[i - 1] + (closes(i - 1) && !closes(i) ? 1 : 0);
      }
    }
  }
}

OpCall call(const SentenceMeans& a) {
  OpCall c{.op = "sentence_means", .rows = a.kv.num_rows};
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) c.tokens += a.fresh[r];
  c.outputs = c.tokens;
  c.bytes = 3 * c.tokens * a.kv.head_dim * a.kv.kv_bytes;
  c.flops = 2 * c.tokens * a.kv.head_dim;
  return c;
}
KVLAB_WITHOUT_CUDA(SentenceMeans)

namespace {

void mean_keys(const SentenceMeans& a, std::int32_t row) {
  const std::int64_t d = a.kv.head_dim, n = a.candidates(row), listed = a.listed.size(row);
  const std::int32_t* of_position = a.sentence_of[a.kv.sequence(row)];
  std::int32_t count = 0, current = -1, members = 0;
  float* mean = nullptr;
  const auto close = [&] {
    for (std::int64_t c = 0; c < d && members > 0; ++c) mean[c] /= static_cast<float>(members);
  };
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t token = i < listed ? a.listed.row(row)[i] : a.dense_begin[row] + static_cast<std::int32_t>(i - listed);
    const std::int32_t sentence = of_position[a.kv.position[a.kv.slot(row, token)]];
    if (sentence != current) {
      close();
      current = sentence, members = 0;
      mean = a.means[row] + count++ * d;
      std::fill_n(mean, d, 0.0F);
    }
    const float* key = a.kv.key(row, token);
    for (std::int64_t c = 0; c < d; ++c) mean[c] += key[c];
    ++members;
    a.token[row][i] = token;
    a.sentence[row][i] = count - 1;
  }
  close();
  a.count[row] = count;
}

}  // namespace

void run_cpu(const SentenceMeans& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) mean_keys(a, r);
}

OpCall call(const TakeSentences& a) {
  OpCall c{.op = "take_sentences", .rows = a.num_rows};
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t n = a.score_first[r + 1] - a.score_first[r];
    c.tokens += a.candidates[r];
    c.outputs += a.index_first[r + 1] - a.index_first[r];
    c.bytes += 4 * (n + a.candidates[r]) + 4 * (a.index_first[r + 1] - a.index_first[r]);
    c.flops += n * static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(n)));
  }
  return c;
}
KVLAB_WITHOUT_CUDA(TakeSentences)

void run_cpu(const TakeSentences& a) {
  std::vector<std::int32_t> order, rank;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const float* scores = a.scores + a.score_first[r];
    order.resize(static_cast<std::size_t>(a.score_first[r + 1] - a.score_first[r]));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t x, std::int32_t y) { return scores[x] > scores[y]; });
    rank.resize(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) rank[static_cast<std::size_t>(order[i])] = static_cast<std::int32_t>(i);
    std::vector<std::int32_t> by_rank(static_cast<std::size_t>(a.candidates[r]));
    std::iota(by_rank.begin(), by_rank.end(), 0);
    const auto rank_of = [&](std::int32_t i) { return rank[static_cast<std::size_t>(a.sentence[r][i])]; };
    std::stable_sort(by_rank.begin(), by_rank.end(), [&](std::int32_t x, std::int32_t y) { return rank_of(x) < rank_of(y); });
    std::int32_t* out = a.index + a.index_first[r];
    const std::int64_t keep = a.index_first[r + 1] - a.index_first[r];
    for (std::int64_t i = 0; i < keep; ++i) out[i] = a.token[r][by_rank[static_cast<std::size_t>(i)]];
    std::sort(out, out + keep);
  }
}

}  // namespace kvlab
