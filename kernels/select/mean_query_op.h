#pragma once

#include "base/ceil_div.h"
#include "kernels/rows/channels.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Mean of the given queries of each sequence, all heads; a sequence without queries gets zeros.
struct MeanQuery {
  static constexpr std::int64_t kPart = 32, kChunks = 8;  // channels of a row, partial sums on a device
  std::int32_t num_sequences = 0, width = 0;              // q_heads * head_dim
  const Queries* queries = nullptr;                       // [num_sequences]
  float* mean = nullptr;                                  // [num_sequences, width] out

  // Queries are read, means written at 2 bytes per value.
  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "mean_query", .rows = num_sequences};
    for (std::int32_t s = 0; s < num_sequences; ++s) {
      const std::int64_t n = queries[s].count;
      if (n == 0) continue;
      c.outputs += 1;
      c.bytes += 2 * (n + 1) * width;
      c.flops += n * width;
    }
    return c;
  }
  static constexpr bool kInParallel = true;
  [[nodiscard]] std::int64_t rows() const { return num_sequences * ceil_div<std::int64_t>(width, kPart); }
  void shapes(auto&& visit) { visit(queries, num_sequences); }
  [[nodiscard]] std::int64_t room(std::int64_t /*part*/) const { return kPart * kChunks; }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t part) const {
    constexpr std::int64_t kTaken = Team::kOnDevice ? kChunks : 1;
    const std::int64_t parts = (width + kPart - 1) / kPart, s = part / parts, begin = part % parts * kPart;
    const std::int64_t channels = width - begin < kPart ? width - begin : kPart;
    const Queries q = queries[s];
    const auto n = static_cast<float>(q.count);
    float* const sums = team.room();
    each_channels(team, kTaken, channels, [&](std::int64_t chunk, std::int64_t c, auto wide) {
      float sum[wide.value] = {};
      for (std::int64_t t = q.count * chunk / kTaken; t < q.count * (chunk + 1) / kTaken; ++t)
        for (int j = 0; j < wide.value; ++j) sum[j] += q.data[t * width + begin + c + j] / n;
      for (int j = 0; j < wide.value; ++j) sums[chunk * kPart + c + j] = sum[j];
    });
    team.each(channels, [&](std::int64_t c) {
      float sum = sums[c];
      for (std::int64_t chunk = 1; chunk < kTaken; ++chunk) sum += sums[chunk * kPart + c];
      mean[s * width + begin + c] = sum;
    });
  }
};
KVLAB_ROW_OP(MeanQuery)

// Mean of the queries since the current sentence began: the step's newest query is added to `sums`, which is reset if the token before it
// ended a sentence (see sentences.h) or `fresh` is 1.
struct SentenceQuery {
  std::int32_t num_sequences = 0, width = 0;
  const Queries* queries = nullptr;                  // [num_sequences]
  const std::int32_t* const* sentence_of = nullptr;  // [num_sequences] -> by position, of SplitSentences
  const std::int32_t* fresh = nullptr;               // [num_sequences] 0 or 1
  float* const* sums = nullptr;                      // [num_sequences] -> [width + 1]: the sum, then the number of queries
  float* mean = nullptr;                             // [num_sequences, width] out

  // The query is read, the mean written at 2 bytes per value, the sum read and written at 4.
  [[nodiscard]] OpCall cost() const {
    const std::int64_t n = num_sequences, values = n * width;
    return {.op = "sentence_query", .rows = n, .outputs = n, .bytes = 12 * values, .flops = 2 * values};
  }
  [[nodiscard]] std::int64_t rows() const { return num_sequences; }
  void shapes(auto&& visit) {
    visit(queries, num_sequences), visit(sentence_of, num_sequences), visit(fresh, num_sequences), visit(sums, num_sequences);
  }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int32_t at = queries[s].first_position + queries[s].count - 1;
    const bool begins = fresh[s] == 1 || at == 0 || sentence_of[s][at] != sentence_of[s][at - 1];
    const float* const q = queries[s].data + (queries[s].count - std::int64_t{1}) * width;
    float* const sum = sums[s];
    const float count = (begins ? 0.0F : sum[width]) + 1.0F;
    team.each(width, [&](std::int64_t i) {
      sum[i] = (begins ? 0.0F : sum[i]) + q[i];
      mean[s * width + i] = sum[i] / count;
    });
    team.once([&] { sum[width] = count; });
  }
};
KVLAB_ROW_OP(SentenceQuery)

}  // namespace kvlab
