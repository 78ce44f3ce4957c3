#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "base/parallel.h"
#include "base/random.h"
#include "kernels/attention/attention_stats/rows_cpu.h"
#include "kernels/score/token_stats/token_stats.h"

namespace kvlab {

namespace {

// Probabilities over the first n tokens of a row.
struct QueryLine {
  std::int32_t row, position, n;
  const float* p;
};

void add(std::uint32_t& word, float decay, float x) { word = std::bit_cast<std::uint32_t>(decay * std::bit_cast<float>(word) + x); }

// f(words of token i, i); channel c is at offset c * pool_tokens.
template <class F>
void for_each_token(const TokenStats& a, const QueryLine& line, F&& f) {
  for_each_run(a.kv, line.row, [&](const KvRun& run) {
    std::uint32_t* words = a.kv.words + a.first_word * a.kv.pool_tokens + run.slot;
    const std::int32_t count = std::min(run.count, line.n - run.begin);
    for (std::int32_t i = 0; i < count; ++i) f(words + i, run.begin + i);
  });
}

void update_ring(const TokenStats& a, const QueryLine& line) {
  const std::int32_t bit = line.position % a.ring_tokens;
  const std::int64_t channel = bit / 32 * a.kv.pool_tokens;
  const std::uint32_t mask = 1U << static_cast<std::uint32_t>(bit % 32);
  const float threshold = 1.0F / static_cast<float>(a.threshold_by_position ? line.position + 1 : line.n);
  for_each_token(a, line, [&](std::uint32_t* words, std::int32_t i) {
    words[channel] = line.p[i] >= threshold ? words[channel] | mask : words[channel] & ~mask;
  });
}

void update_recurrence(const TokenStats& a, const QueryLine& line) {
  const auto now = static_cast<std::uint32_t>(line.position) + 1;
  for_each_token(a, line, [&](std::uint32_t* words, std::int32_t i) {
    if (line.p[i] < a.threshold) return;
    const std::uint32_t before = words[0] != 0 ? words[0] : static_cast<std::uint32_t>(a.kv.position[a.kv.slot(line.row, i)]) + 1;
    words[a.kv.pool_tokens] = std::max(words[a.kv.pool_tokens], now - before);
    words[0] = now;
  });
}

void update_top_hits(const TokenStats& a, const QueryLine& line, std::vector<std::int32_t>& order) {
  order.resize(static_cast<std::size_t>(line.n));
  std::iota(order.begin(), order.end(), 0);
  const std::int32_t top = std::min(a.top, line.n);
  std::nth_element(order.begin(), order.begin() + top, order.end(),
                   [&](std::int32_t i, std::int32_t j) { return line.p[i] != line.p[j] ? line.p[i] > line.p[j] : i < j; });
  for (std::int32_t k = 0; k < top; ++k) {
    const std::int32_t i = order[static_cast<std::size_t>(k)];
    a.kv.word(a.first_word, line.row, i) = static_cast<std::uint32_t>(line.position) + 1;
    ++a.kv.word(a.first_word + 1, line.row, i);
  }
}

void update(const TokenStats& a, const QueryLine& line, std::vector<std::int32_t>& order) {
  switch (a.kind) {
    case TokenStats::Kind::kSum: {
      const float weight = a.weigh_by_visible ? static_cast<float>(line.n) : 1.0F;
      return for_each_token(a, line, [&](std::uint32_t* words, std::int32_t i) { add(words[0], a.decay, weight * line.p[i]); });
    }
    case TokenStats::Kind::kMoments:
      return for_each_token(a, line, [&](std::uint32_t* words, std::int32_t i) {
        add(words[0], 1.0F, line.p[i]);
        add(words[a.kv.pool_tokens], 1.0F, line.p[i] * line.p[i]);
      });
    case TokenStats::Kind::kRing:
      return update_ring(a, line);
    case TokenStats::Kind::kRecurrence:
      return update_recurrence(a, line);
    case TokenStats::Kind::kTopHits:
      return update_top_hits(a, line, order);
  }
}

struct Noise {
  const TokenStats& a;
  std::int32_t row;
  float operator()(float z, std::int32_t head, std::int32_t position, std::int32_t token) const {
    const std::int32_t s = a.kv.sequence(row);
    const float temperature = 1.0F + a.temperature_per_step * static_cast<float>(a.noise_steps[s]);
    const double u = Draw{static_cast<std::uint64_t>(a.noise_seeds[s]), Purpose::kGumbel,
                          static_cast<std::uint64_t>(a.kv.position[a.kv.slot(row, token)]), static_cast<std::uint64_t>(position),
                          static_cast<std::uint64_t>(head)}
                         .uniform();
    return (z - static_cast<float>(std::log(-std::log(std::max(u, 1e-12))))) / temperature;
  }
};

// Sums without decay need no order of the queries.
void add_sums(const TokenStats& a, ProbabilityStrip& strip, std::vector<float>& sums) {
  const auto weight = [&](std::int32_t t) { return a.weigh_by_visible ? static_cast<float>(strip.visible(t)) : 1.0F; };
  sums.resize(static_cast<std::size_t>(strip.tokens()));
  strip.sum_queries(a.group == AttentionStats::Group::kMean, weight, sums.data());
  for_each_token(a, {strip.row(), 0, strip.tokens(), sums.data()},
                 [&](std::uint32_t* words, std::int32_t i) { add(words[0], 1.0F, sums[static_cast<std::size_t>(i)]); });
}

void run_row(const TokenStats& a, std::int32_t row) {
  const bool sums_alone = a.kind == TokenStats::Kind::kSum && a.decay == 1.0F && a.group != AttentionStats::Group::kMax;
  ProbabilityStrip strip(a.kv, row, a.queries[a.kv.sequence(row)]);
  RowMatrix p;
  std::vector<float> sums;
  std::vector<std::int32_t> order;
  while (a.noise_seeds == nullptr ? strip.next() : strip.next(Noise{a, row})) {
    if (sums_alone) {
      add_sums(a, strip, sums);
      continue;
    }
    strip.write(a.group, p);
    for (std::int32_t t = 0; t < strip.count(); ++t) update(a, {row, strip.position(t), strip.visible(t), p.data() + p.cols() * t}, order);
  }
}

}  // namespace

void run_cpu(const TokenStats& a) {
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) { run_row(a, static_cast<std::int32_t>(row)); });
}

}  // namespace kvlab
