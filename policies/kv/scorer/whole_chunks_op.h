#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// Counts that keep whole chunks. Tokens [begin, begin + len) of a row form chunks of `chunk_tokens` with equal scores; the last one may be
// shorter. Chunks are taken by score (ties: the earlier one) until the next one does not fit into keep[r] with the row's other tokens,
// which all stay, or num_chunks[r] of them. keep[r] becomes the number of tokens kept; without chunks it stays.
struct WholeChunks {
  std::int32_t num_rows = 0;
  const std::int64_t* first = nullptr;                  // [num_rows + 1]
  const std::int32_t *begin = nullptr, *len = nullptr;  // [num_rows]
  std::int32_t chunk_tokens = 1;
  const float* scores = nullptr;             // [first[num_rows]]
  const std::int32_t* num_chunks = nullptr;  // [num_rows]; null: all that fit
  std::int32_t* keep = nullptr;              // [num_rows] in CPU memory; in, out
  // On the CPU only: ties fall as in torch.topk, and tokens of the chunks that go get -infinity here. Needs num_chunks.
  float* lowered = nullptr;  // [first[num_rows]], may be `scores`
  bool peer_ties = false;

  // One score per chunk is read, one count per row written.
  [[nodiscard]] OpCall cost() const {
    std::int64_t all = 0;
    for (std::int32_t r = 0; r < num_rows; ++r) all += chunks(r);
    return {.op = "whole_chunks", .rows = num_rows, .tokens = all, .outputs = num_rows, .bytes = 4 * all + 4 * num_rows, .flops = 2 * all};
  }
  [[nodiscard]] std::int64_t rows() const { return num_rows; }
  void shapes(auto&& visit) {
    if (peer_ties) refuse_on_gpu("whole_chunks with peer_ties");
    visit(first, num_rows + 1), visit(begin, num_rows), visit(len, num_rows), visit(num_chunks, num_rows);
  }
  void results(auto&& visit) { visit(keep, num_rows); }
  [[nodiscard]] std::int64_t room(std::int64_t row) const { return chunks(row); }  // their order, or a mark of those that stay

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t row) const {
    const std::int32_t n = chunks(row), others = static_cast<std::int32_t>(first[row + 1] - first[row]) - len[row];
    if (n == 0) return;
    auto* const list = reinterpret_cast<std::int32_t*>(team.room());
    if (peer_ties) return take_as_peer(team, row, others, list);
    const auto score = [&](std::int32_t chunk) { return score_of(row, chunk); };
    team.sort(n, list, [&](std::int32_t x, std::int32_t y) { return score(x) > score(y); });
    team.once([&] {
      std::int32_t kept = others;
      for (std::int32_t i = 0; i < n && (num_chunks == nullptr || i < num_chunks[row]); ++i) {
        if (num_chunks == nullptr && kept + tokens(row, list[i]) > keep[row]) break;
        kept += tokens(row, list[i]);
      }
      keep[row] = num_chunks == nullptr && keep[row] < kept ? keep[row] : kept;
    });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int32_t chunks(std::int64_t row) const {
    return len[row] / chunk_tokens + (len[row] % chunk_tokens > 0 ? 1 : 0);
  }
  [[nodiscard]] KVLAB_BODY std::int32_t tokens(std::int64_t row, std::int32_t chunk) const {
    const std::int32_t rest = len[row] - chunk * chunk_tokens;
    return rest < chunk_tokens ? rest : chunk_tokens;
  }
  // NaN is -infinity.
  [[nodiscard]] KVLAB_BODY float score_of(std::int64_t row, std::int32_t chunk) const {
    const float x = scores[first[row] + begin[row] + std::int64_t{chunk} * chunk_tokens];
    return std::isnan(x) ? -INFINITY : x;
  }
  template <class Team>
  KVLAB_BODY void take_as_peer(const Team& team, std::int64_t row, std::int32_t others, std::int32_t* stays) const {
    const std::int32_t n = chunks(row), count = num_chunks[row] < n ? num_chunks[row] : n;
    team.each(n, [&](std::int64_t chunk) { stays[chunk] = 0; });
    peer_best(
        team, n, count, 0, [&](std::int32_t chunk) { return score_of(row, chunk); }, [&](std::int32_t chunk) { stays[chunk] = 1; });
    team.each(len[row], [&](std::int64_t i) {
      if (stays[i / chunk_tokens] == 0) lowered[first[row] + begin[row] + i] = -INFINITY;
    });
    team.once([&] {
      keep[row] = others;
      for (std::int32_t chunk = 0; chunk < n; ++chunk) keep[row] += stays[chunk] != 0 ? tokens(row, chunk) : 0;
    });
  }
};
KVLAB_ROW_OP(WholeChunks)

// One set of tokens for all KV heads of a sequence, by scores summed over the heads. Chunks are taken by their mean score until `budget`
// tokens are kept: whole, except that a chunk with at least the median mean and less than the median entropy keeps its best
// `peaked_tokens`. The entropy is that of the scores as shares, over the logarithm of their number. The rest of the budget goes to the best
// other tokens. Scores of dropped tokens become -infinity. Rows of a sequence have one length. Equal scores fall as torch.topk leaves them
// on a CPU; on a device the lower index comes first.
struct GatedChunks {
  KvRows kv;
  std::int32_t chunk_tokens = 10, peaked_tokens = 4;
  const std::int32_t* budget = nullptr;  // [kv.num_rows] alike for the rows of a sequence
  float* scores = nullptr;               // [kv.total()]

  // Scores are read once and written once.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = kv.total();
    return {.op = "gated_chunks", .rows = kv.num_rows, .tokens = n, .outputs = n, .bytes = 8 * n, .flops = 8 * n};
  }
  [[nodiscard]] std::int64_t rows() const { return kv.num_sequences(); }
  void shapes(auto&& visit) { visit(kv), visit(budget, kv.num_rows); }
  // Of each token the sum, a mark of those kept and a list; of each chunk the mean, the entropy and the tokens to keep.
  [[nodiscard]] std::int64_t room(std::int64_t s) const { return 3 * (std::int64_t{kv.len[s * kv.kv_heads]} + chunks(s)); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int64_t row0 = s * kv.kv_heads, n = kv.len[row0], all = chunks(s);
    if (n == 0) return;
    float *const sum = team.room(), *const mean = sum + n, *const entropy = mean + all;
    auto *const stays = reinterpret_cast<std::int32_t*>(entropy + all), *const count = stays + n, *const list = count + all;
    team.each(n, [&](std::int64_t i) {
      sum[i] = scores[kv.first[row0] + i], stays[i] = 0;
      for (std::int64_t h = 1; h < kv.kv_heads; ++h) sum[i] += scores[kv.first[row0 + h] + i];
    });
    team.each(all, [&](std::int64_t c) {
      const std::int32_t tokens = tokens_of(n, c);
      mean[c] = total(sum + c * chunk_tokens, tokens, 0.0F) / static_cast<float>(tokens);
      entropy[c] = entropy_of(sum + c * chunk_tokens, tokens);
    });
    const float middle = median(team, mean, all, list), middle_entropy = median(team, entropy, all, list);
    team.sort(static_cast<std::int32_t>(all), list, [&](std::int32_t x, std::int32_t y) { return mean[x] > mean[y]; });
    team.once([&] {
      std::int32_t rest = budget[row0];
      for (std::int64_t k = 0; k < all; ++k) {
        const std::int32_t c = list[k], tokens = tokens_of(n, c);
        count[c] = tokens < rest ? tokens : rest;
        if (mean[c] >= middle && entropy[c] < middle_entropy && peaked_tokens < count[c]) count[c] = peaked_tokens;
        rest -= count[c];
      }
    });
    keep_tokens(team, n, budget[row0], sum, count, stays, list);
    team.each(n * kv.kv_heads, [&](std::int64_t at) {
      if (stays[at % n] == 0) scores[kv.first[row0 + at / n] + at % n] = -INFINITY;
    });
  }

 private:
  [[nodiscard]] KVLAB_BOTH std::int64_t chunks(std::int64_t s) const {
    return (std::int64_t{kv.len[s * kv.kv_heads]} + chunk_tokens - 1) / chunk_tokens;
  }
  [[nodiscard]] KVLAB_BODY std::int32_t tokens_of(std::int64_t n, std::int64_t chunk) const {
    const std::int64_t rest = n - chunk * chunk_tokens;
    return rest < chunk_tokens ? static_cast<std::int32_t>(rest) : chunk_tokens;
  }
  [[nodiscard]] static KVLAB_BODY float total(const float* x, std::int32_t n, float shift) {
    float sum = 0;
    for (std::int32_t i = 0; i < n; ++i) sum += x[i] - shift;
    return sum;
  }
  // In [0, 1]; the scores are shifted up if one is negative.
  [[nodiscard]] static KVLAB_BODY float entropy_of(const float* x, std::int32_t n) {
    constexpr float kEpsilon = 1e-8F;  // added to shares, as in kvpress
    if (n == 1) return 0;
    float shift = x[0];
    for (std::int32_t i = 1; i < n; ++i) shift = x[i] < shift ? x[i] : shift;
    shift = shift < 0.0F ? shift : 0.0F;
    const float sum = total(x, n, shift);
    float h = 0;
    for (std::int32_t i = 0; i < n; ++i) {
      const float p = (x[i] - shift) / (sum + kEpsilon);
      h -= p * std::log(p + kEpsilon);
    }
    h /= std::log(static_cast<float>(n));
    return h < 0.0F ? 0.0F : h > 1.0F ? 1.0F : h;
  }
  // The lower one of two in the middle.
  template <class Team>
  [[nodiscard]] KVLAB_BODY static float median(const Team& team, const float* x, std::int64_t n, std::int32_t* order) {
    team.sort(static_cast<std::int32_t>(n), order, [&](std::int32_t i, std::int32_t j) { return x[i] < x[j]; });
    const float middle = x[order[(n - 1) / 2]];
    team.once([] {});  // all have read it
    return middle;
  }
  // The best count[c] tokens of each chunk, then the best of the others.
  template <class Team>
  KVLAB_BODY void keep_tokens(const Team& team, std::int64_t n, std::int32_t tokens, const float* sum, const std::int32_t* count,
                              std::int32_t* stays, std::int32_t* list) const {
    for (std::int64_t begin = 0, c = 0; begin < n; begin += chunk_tokens, ++c) {
      peer_best(
          team, tokens_of(n, c), count[c], 0, [&](std::int32_t i) { return sum[begin + i]; },
          [&](std::int32_t i) { stays[begin + i] = 1; });
      tokens -= count[c];
    }
    const auto others = static_cast<std::int32_t>(team.pack(
        n, [&](std::int64_t i) { return stays[i] == 0; }, [&](std::int64_t k, std::int64_t i) { list[k] = static_cast<std::int32_t>(i); }));
    peer_best(
        team, others, tokens < others ? tokens : others, 0, [&](std::int32_t k) { return sum[list[k]]; },
        [&](std::int32_t k) { stays[list[k]] = 1; });
  }
};
KVLAB_ROW_OP(GatedChunks)

}  // namespace kvlab
