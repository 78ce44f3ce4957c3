#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "kernels/attention_stats/rows_cpu.h"
#include "kernels/token_stats/token_stats.h"

namespace kvlab {

namespace {

// One query's line of probabilities over the first n tokens of a row.
struct QueryLine {
  std::int32_t row, position, n;
  const float* p;
};

void add(std::uint32_t& word, float decay, float x) { word = std::bit_cast<std::uint32_t>(decay * std::bit_cast<float>(word) + x); }

// Calls f(words of token i, i): channel c of a token lies c * pool_tokens further.
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

// Gumbel noise on the logits, then the temperature.
void add_noise(const TokenStats& a, const ProbabilityBlock& block, std::int32_t head, RowMatrix& z) {
  if (a.noise_seeds == nullptr) return;
  const std::int32_t s = a.kv.sequence(block.row);
  const auto seed = static_cast<std::uint64_t>(a.noise_seeds[s]), h = static_cast<std::uint64_t>(head);
  const float temperature = 1.0F + a.temperature_per_step * static_cast<float>(a.noise_steps[s]);
  for (std::int32_t t = 0; t < block.count; ++t) {
    const auto query = static_cast<std::uint64_t>(block.first_position + t);
    for (std::int32_t i = 0; i < block.visible[t]; ++i) {
      const auto token = static_cast<std::uint64_t>(a.kv.position[a.kv.slot(block.row, i)]);
      const double u = Draw{seed, Purpose::kGumbel, token, query, h}.uniform();
      z(t, i) = (z(t, i) - static_cast<float>(std::log(-std::log(std::max(u, 1e-12))))) / temperature;
    }
  }
}

}  // namespace

void run_cpu(const TokenStats& a) {
  std::vector<std::int32_t> order;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const auto use = [&](const ProbabilityBlock& block) {
      for (std::int32_t t = 0; t < block.count; ++t)
        update(a, {r, block.first_position + t, block.visible[t], block.p.data() + block.p.cols() * t}, order);
    };
    const auto noise = [&](const ProbabilityBlock& block, std::int32_t head, RowMatrix& z) { add_noise(a, block, head, z); };
    for_each_probability_block(a.kv, r, a.queries[a.kv.sequence(r)], a.group, use, noise);
  }
}

}  // namespace kvlab
