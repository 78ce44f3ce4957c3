#pragma once

#include <algorithm>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/search.h"
#include "kernels/rows/team_tools.h"

// Sentences as units of retrieval: SentenceKV, Zhu et al. 2025, arXiv:2504.00970.
namespace kvlab {

// Numbers sentences by position: a new one begins after a run of closing token ids, or, if no ids close sentences, every `span_tokens`
// positions. Adds positions [begin[s], end[s]).
struct SplitSentences {
  std::int32_t num_sequences = 0, span_tokens = 1, num_closing = 0;
  const std::int32_t* closing = nullptr;                // [num_closing] token ids, ascending; CPU memory
  const std::int32_t* const* ids = nullptr;             // [num_sequences] -> by position, CPU memory; used where num_closing > 0
  const std::int32_t *begin = nullptr, *end = nullptr;  // [num_sequences]
  std::int32_t* const* sentence_of = nullptr;           // [num_sequences] -> by position
  // Set by shapes() for a device: 1 for each added position where a sentence begins, the sequences one after another.
  const std::uint8_t* steps = nullptr;

  // Ids are read, numbers written.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "split_sentences", .rows = num_sequences};
    for (std::int32_t s = 0; s < num_sequences; ++s) c.outputs += end[s] - begin[s];
    c.bytes = 8 * c.outputs;
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_sequences; }
  // Positions where a sentence begins.
  [[nodiscard]] std::int64_t room(std::int64_t s) const { return num_closing > 0 && begin[s] < end[s] ? end[s] - begin[s] : 0; }
  void shapes(auto&& visit) {
    std::vector<std::uint8_t> flags;
    for (std::int32_t s = 0; s < num_sequences && num_closing > 0; ++s)
      for (std::int32_t i = begin[s]; i < end[s]; ++i) flags.push_back(begins(s, i) ? 1 : 0);
    steps = flags.data(), ids = nullptr, closing = nullptr;
    visit(steps, static_cast<std::int64_t>(flags.size()));
    visit(begin, num_sequences), visit(end, num_sequences), visit(sentence_of, num_sequences);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int64_t from = begin[s], n = end[s] - from;
    if (n <= 0) return;
    std::int32_t* const of = sentence_of[s];
    if (num_closing == 0) {
      team.each(n, [&](std::int64_t i) { of[from + i] = static_cast<std::int32_t>((from + i) / span_tokens); });
      return;
    }
    const std::int32_t before = from == 0 ? 0 : of[from - 1];
    auto* const start = reinterpret_cast<std::int32_t*>(team.room());
    std::int64_t step = 0;
    for (std::int64_t other = 0; other < s; ++other) step += end[other] > begin[other] ? end[other] - begin[other] : 0;
    const auto count = static_cast<std::int32_t>(team.pack(
        n,
        [&](std::int64_t i) {
          if constexpr (Team::kOnDevice)
            return steps[step + i] != 0;
          else
            return begins(s, from + i);
        },
        [&](std::int64_t k, std::int64_t i) { start[k] = static_cast<std::int32_t>(i); }));
    team.each(n, [&](std::int64_t i) { of[from + i] = before + count_first(count, [&](std::int32_t k) { return start[k] <= i; }); });
  }

 private:
  [[nodiscard]] bool begins(std::int64_t s, std::int64_t i) const {
    const auto closes = [&](std::int64_t at) { return std::binary_search(closing, closing + num_closing, ids[s][at]); };
    return i > 0 && closes(i - 1) && !closes(i);
  }
};
KVLAB_ROW_OP(SplitSentences)

// Mean key of each sentence over its candidates: the listed tokens of a row and, after them, all of [dense_begin[r], dense_end[r]).
// Sentences with candidates are counted 0, 1, ... along the row. Only `fresh[r]` of the candidates count as new in this call.
struct SentenceMeans {
  KvRows kv;
  const std::int32_t* const* sentence_of = nullptr;                  // [num_sequences] -> by position
  UnitLists listed;                                                  // tokens, ascending, before dense_begin
  const std::int32_t *dense_begin = nullptr, *dense_end = nullptr;   // [num_rows]
  const std::int32_t* fresh = nullptr;                               // [num_rows]
  float* const* means = nullptr;                                     // [num_rows] -> [candidates, head_dim] out, one line per sentence
  std::int32_t *const *token = nullptr, *const *sentence = nullptr;  // [num_rows] -> [candidates] out: the candidate, its sentence
  std::int32_t* count = nullptr;                                     // [num_rows] out: sentences; CPU memory

  // New keys are read and added to a mean, which is read and written, at the keys' precision.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "sentence_means", .rows = kv.num_rows};
    for (std::int32_t r = 0; r < kv.num_rows; ++r) c.tokens += fresh[r];
    c.outputs = c.tokens;
    c.bytes = 3 * c.tokens * kv.head_dim * kv.kv_bytes;
    c.flops = 2 * c.tokens * kv.head_dim;
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_rows; }
  // The first candidate of each sentence.
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return candidates(row); }
  void shapes(auto&& visit) {
    const std::int32_t n = kv.num_rows;
    visit(sentence_of, kv.num_sequences()), visit(listed.first, n + 1), visit(listed.rows, n), visit(listed.count, n);
    visit(dense_begin, n), visit(dense_end, n), visit(fresh, n), visit(means, n), visit(token, n), visit(sentence, n), visit(kv);
  }
  void results(auto&& visit) { visit(count, kv.num_rows); }

  [[nodiscard]] KVLAB_BOTH std::int64_t candidates(std::int64_t r) const { return listed.size(r) + dense_end[r] - dense_begin[r]; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t n = candidates(row), d = kv.head_dim;
    auto* const start = reinterpret_cast<std::int32_t*>(team.room());
    const auto sentences = static_cast<std::int32_t>(team.pack(
        n, [&](std::int64_t i) { return i == 0 || sentence_at(row, i) != sentence_at(row, i - 1); },
        [&](std::int64_t k, std::int64_t i) { start[k] = static_cast<std::int32_t>(i); }));
    team.each(n, [&](std::int64_t i) {
      token[row][i] = candidate(row, i);
      sentence[row][i] = count_first(sentences, [&](std::int32_t k) { return start[k] <= i; }) - 1;
    });
    team.each(sentences * d, [&](std::int64_t at) {
      const std::int64_t k = at / d, end = k + 1 < sentences ? start[k + 1] : n;
      float sum = 0.0F;
      for (std::int64_t i = start[k]; i < end; ++i) sum += key_of(team, kv, row, candidate(row, i))[at % d];
      means[row][at] = sum / static_cast<float>(end - start[k]);
    });
    team.once([&] { count[row] = sentences; });
  }

 private:
  [[nodiscard]] KVLAB_BODY std::int32_t candidate(std::int64_t row, std::int64_t i) const {
    const std::int64_t n = listed.size(row);
    return i < n ? listed.row(row)[i] : dense_begin[row] + static_cast<std::int32_t>(i - n);
  }
  [[nodiscard]] KVLAB_BODY std::int32_t sentence_at(std::int64_t row, std::int64_t i) const {
    return sentence_of[row / kv.kv_heads][kv.position[kv.slot(static_cast<std::int32_t>(row), candidate(row, i))]];
  }
};
KVLAB_ROW_OP(SentenceMeans)

}  // namespace kvlab
