#pragma once

#include <cmath>

#include "base/ceil_div.h"
#include "kernels/rows/row_op.h"
#include "kernels/rows/team_tools.h"

namespace kvlab {

// One query for several of a sequence, all heads as a vector:
//   kMean      their mean; zeros without queries
//   kSentence  the mean since the current sentence began: `sums` gets the step's newest query, after a reset if `fresh` is 1 or the token
//              before it ended a sentence (SplitSentences)
//   kProbe     sum_i w_i q_i with w = softmax_i(|q_i - mean q| / deviation), deviation^2 = mean_i |q_i - mean q|^2: ActQKV, Xiao et al.
//              2025, arXiv:2502.13542, known from its abstract; the formula is our definition
struct MeanQuery {
  enum class Kind : std::uint8_t { kMean, kSentence, kProbe };
  std::int32_t num_sequences = 0, width = 0;  // q_heads * head_dim
  const Queries* queries = nullptr;           // [num_sequences]
  float* mean = nullptr;                      // [num_sequences, width] out
  Kind kind = Kind::kMean;
  // For kSentence.
  const std::int32_t* const* sentence_of = nullptr;  // [num_sequences] -> by position, of SplitSentences
  const std::int32_t* fresh = nullptr;               // [num_sequences] 0 or 1
  float* const* sums = nullptr;                      // [num_sequences] -> [width + 1]: sum, number of queries

  // Queries have 2 bytes per value.
  [[nodiscard]] OpCall cost() const {
    const bool sentence = kind == Kind::kSentence, probe = kind == Kind::kProbe;
    OpCall c{.op = sentence ? "sentence_query" : probe ? "probe_query" : "mean_query", .rows = num_sequences};
    for (std::int32_t s = 0; s < num_sequences; ++s) {
      const std::int64_t n = sentence ? 1 : queries[s].count;
      if (n == 0 && !probe) continue;
      c.tokens += probe ? n : 0;
      c.outputs += 1;
      c.bytes += (2 * n + (sentence ? 10 : probe ? 4 : 2)) * width;
      c.flops += (sentence ? 2 : probe ? 6 : 1) * n * width;
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return num_sequences * parts(); }
  void shapes(auto&& visit) {
    visit(queries, num_sequences), visit(sentence_of, num_sequences), visit(fresh, num_sequences), visit(sums, num_sequences);
  }
  [[nodiscard]] std::int64_t room(std::int64_t part) const {
    return kind == Kind::kMean ? kPart * kChunks : kind == Kind::kSentence ? width : 4LL * (width + queries[part].count);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t part) const {
    const std::int64_t s = part / parts(), begin = part % parts() * kPart;
    if (kind == Kind::kProbe) return probe(team, s);
    const Queries q = queries[s];
    const bool sentence = kind == Kind::kSentence, begins = sentence && begins_sentence(s);
    const float divisor = sentence ? 1.0F : static_cast<float>(q.count), count = sentence && !begins ? sums[s][width] + 1.0F : 1.0F;
    add_up(
        team, team.room(),
        sentence                ? width
        : width - begin < kPart ? width - begin
                                : kPart,
        sentence ? q.count - 1 : 0, q.count, [&](std::int64_t t, std::int64_t c) { return q.data[t * width + begin + c] / divisor; },
        [&](std::int64_t c, float sum) {
          if (sentence) sum = sums[s][c] = (begins ? 0.0F : sums[s][c]) + sum;
          mean[s * width + begin + c] = sum / count;
        });
    if (sentence) team.once([&] { sums[s][width] = count; });
  }

 private:
  static constexpr std::int64_t kPart = 32, kChunks = 8;  // of kMean: channels of a part, partial sums on a device

  [[nodiscard]] KVLAB_BOTH std::int64_t parts() const { return kind == Kind::kMean ? (width + kPart - 1) / kPart : 1; }
  [[nodiscard]] KVLAB_BODY bool begins_sentence(std::int64_t s) const {
    const std::int32_t at = queries[s].first_position + queries[s].count - 1;
    return fresh[s] == 1 || at == 0 || sentence_of[s][at] != sentence_of[s][at - 1];
  }

  // put(c, sum of term(t, c) over queries [from, to)).
  template <class T, class Team, class Term, class Put>
  KVLAB_BODY void add_up(const Team& team, T* sums, std::int64_t channels, std::int64_t from, std::int64_t to, const Term& term,
                         const Put& put) const {
    const std::int64_t chunks = Team::kOnDevice && kind == Kind::kMean ? kChunks : 1, n = to - from;
    each_channels(team, chunks, channels, [&](std::int64_t chunk, std::int64_t c, auto wide) {
      T sum[wide.value] = {};
      for (std::int64_t t = from + n * chunk / chunks; t < from + n * (chunk + 1) / chunks; ++t)
        for (int j = 0; j < wide.value; ++j) sum[j] += term(t, c + j);
      for (int j = 0; j < wide.value; ++j) sums[chunk * channels + c + j] = sum[j];
    });
    team.each(channels, [&](std::int64_t c) {
      T sum = sums[c];
      for (std::int64_t chunk = 1; chunk < chunks; ++chunk) sum += sums[chunk * channels + c];
      put(c, sum);
    });
  }

  template <class Team>
  KVLAB_BODY void probe(const Team& team, std::int64_t s) const {
    const std::int64_t n = queries[s].count;
    double *const sums = team.doubles(), *const middle = sums + width, *const distance = middle + width, *const weight = distance + n;
    const auto q = [&](std::int64_t t, std::int64_t c) { return static_cast<double>(queries[s].data[t * width + c]); };
    add_up(
        team, sums, width, 0, n, [&](std::int64_t t, std::int64_t c) { return q(t, c) / static_cast<double>(n); },
        [&](std::int64_t c, double sum) { middle[c] = sum; });
    for (std::int64_t t = 0; t < n; ++t) {
      const auto square = [&](std::int64_t c) { return (q(t, c) - middle[c]) * (q(t, c) - middle[c]); };
      const double total = team.template sum<double>(width, square);
      team.once([&] { distance[t] = total; });
    }
    const double deviation = team.template sum<double>(n, [&](std::int64_t t) { return distance[t] / static_cast<double>(n); });
    team.each(n, [&](std::int64_t t) { weight[t] = std::exp(deviation > 0 ? std::sqrt(distance[t] / deviation) : 0.0); });
    const double total = team.template sum<double>(n, [&](std::int64_t t) { return weight[t]; });
    add_up(
        team, sums, width, 0, n, [&](std::int64_t t, std::int64_t c) { return weight[t] / total * q(t, c); },
        [&](std::int64_t c, double sum) { mean[s * width + c] = static_cast<float>(sum); });
  }
};
KVLAB_ROW_OP(MeanQuery)

}  // namespace kvlab
