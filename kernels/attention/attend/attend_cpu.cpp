#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "kernels/attention/attend/attend.h"
#include "kernels/kv_rows.h"
#include "kernels/lanes_cpu.h"
#include "kernels/packets_cpu.h"

namespace kvlab {

namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr std::int32_t kBlockLines = 16;   // query heads of queries per block
constexpr std::int64_t kChunkTokens = 32;  // values in the L1 cache
// Half of the vector registers.
constexpr int kTileSums = kPacket == 16 ? 16 : 8;
constexpr int kValuePackets = 4;
// In tokens.
constexpr std::int64_t kKeysAhead = 16;

// In the reading order of for_each_in_streams.
struct Tokens {
  struct Place {
    const float *k, *v;
  };
  struct Hidden {
    std::int64_t at;
    std::int32_t position;
  };
  struct ByQuery {
    std::int64_t at;
    const float* log_weight;  // of the first query's first head
    std::int64_t stride;      // to the next query
  };
  Eigen::Array<Place, Eigen::Dynamic, 1> places;
  std::vector<float> log_weight;  // [tokens, group]; empty: all 0
  std::vector<Hidden> hidden;     // hidden from some query
  std::vector<ByQuery> by_query;  // weighted per query
};

// Maps token `column`, in segment order, to reading order.
struct Columns {
  std::int64_t each, longer;  // the first `longer` streams have one more
  std::int64_t stream = 0, at = 0;
  explicit Columns(std::int64_t n) : each(n / kStreams), longer(n % kStreams) {}
  std::int64_t next() {
    if (at == each + (stream < longer ? 1 : 0)) ++stream, at = 0;
    return at++ * kStreams + stream;
  }
};

bool has_weights(const Segment& s) { return s.log_weight != nullptr || s.head_log_weight != nullptr || s.token_log_weight != nullptr; }

float log_weight(const Segment& s, std::int32_t row, std::int64_t i, std::int32_t head) {
  return (s.log_weight == nullptr ? 0.0F : s.log_weight[row]) +
         (s.head_log_weight == nullptr ? 0.0F : s.head_log_weight[static_cast<std::int64_t>(row) * s.kv.group + head]) +
         (s.token_log_weight == nullptr || s.weighed_queries > 0 ? 0.0F : s.token_log_weight[(s.begin(row) + i) * s.kv.group + head]);
}

// First visible position.
std::int32_t window_begin(const Attend& a, std::int32_t query_position) {
  return a.window == 0 ? std::numeric_limits<std::int32_t>::min() : query_position - a.window + 1;
}

Tokens gather_tokens(const Attend& a, std::int32_t row, const Queries& q) {
  const std::int32_t last_begin = window_begin(a, q.first_position + q.count - 1);
  std::int64_t n = 0;
  bool weighs = false;
  for (std::int32_t s = 0; s < a.num_segments; ++s) n += a.segments[s].tokens(row), weighs |= has_weights(a.segments[s]);
  Tokens tokens;
  tokens.places.resize(n);
  if (weighs) tokens.log_weight.assign(static_cast<std::size_t>(n * a.segments[0].kv.group), 0.0F);
  Columns columns(n);
  for (std::int32_t s = 0; s < a.num_segments; ++s) {
    const Segment& segment = a.segments[s];
    const KvRows& kv = segment.kv;
    const auto add = [&](std::int64_t slot, std::int64_t i) {
      const std::int64_t at = columns.next();
      tokens.places[at] = {kv.k + slot * kv.head_dim, kv.v + slot * kv.head_dim};
      if (kv.position[slot] > q.first_position || kv.position[slot] < last_begin) tokens.hidden.push_back({at, kv.position[slot]});
      if (segment.weighed_queries > 0) {
        const std::int64_t first = segment.begin(row) * segment.weighed_queries + i;
        tokens.by_query.push_back({at, segment.token_log_weight + first * kv.group, segment.tokens(row) * kv.group});
      }
      for (std::int32_t g = 0; weighs && g < kv.group; ++g)
        tokens.log_weight[static_cast<std::size_t>(at * kv.group + g)] = log_weight(segment, row, i, g);
    };
    if (segment.index_first != nullptr) {
      const std::int32_t* index = segment.index + segment.index_first[row];
      for (std::int64_t i = 0; i < segment.tokens(row); ++i) add(kv.slot(row, index[i]), i);
    } else {
      for_each_run(kv, row, [&](const KvRun& run) {
        for (std::int64_t i = 0; i < run.count; ++i) add(run.slot + i, run.begin + i);
      });
    }
  }
  return tokens;
}

// Lines [first, first + count) of a row: t * group + g.
struct LineBlock {
  const Attend& a;
  std::int32_t row;
  const Queries& q;
  const Tokens& tokens;
  std::int64_t d, group, first, count;
  Eigen::ArrayXf queries;  // [count, d], scaled
  Eigen::ArrayXf z;        // [count, tokens] logits, then probabilities
  Eigen::ArrayXf out;      // [count, d]

  [[nodiscard]] std::int64_t n() const { return tokens.places.size(); }
  // Start in arrays [query, query head].
  [[nodiscard]] std::int64_t head(std::int64_t line) const {
    const KvRows& kv = a.segments[0].kv;
    return (first + line) / group * kv.kv_heads * group + row % kv.kv_heads * group + (first + line) % group;
  }
};

// Spread out: cores stall above a dozen outstanding L1 lines.
constexpr int kNearestCache = 3, kSecondCache = 2;  // compilers' numbers; the second for later use
template <int Cache = kNearestCache>
void prefetch(const float* x, std::int64_t d) {
  constexpr int kRead = 0;
  for (std::int64_t c = 0; c < d; c += 16) __builtin_prefetch(x + c, kRead, Cache);
}

// Over channels, then over lanes; the same for any tiling.
template <int Lines, int Tokens>
void dot_tile(LineBlock& b, std::int64_t line, std::int64_t at) {
  const float* q = b.queries.data() + line * b.d;
  const auto* tokens = b.tokens.places.data() + at;
  Packet sum[Lines * Tokens];
  for (Packet& s : sum) s = broadcast(0.0F);
  std::int64_t c = 0;
  for (; c + kPacket <= b.d; c += kPacket) {
    Packet key[Tokens];
    for (int t = 0; t < Tokens; ++t) key[t] = load_packet(tokens[t].k + c);
    for (int l = 0; l < Lines; ++l) {
      const Packet query = load_packet(q + l * b.d + c);
      for (int t = 0; t < Tokens; ++t) sum[l * Tokens + t] = Eigen::internal::pmadd(query, key[t], sum[l * Tokens + t]);
    }
  }
  float z[Lines * Tokens];
  fill_sums_of_lanes(sum, z);
  for (int l = 0; l < Lines; ++l) {
    for (std::int64_t rest = c; rest < b.d; ++rest)
      for (int t = 0; t < Tokens; ++t) z[l * Tokens + t] += q[l * b.d + rest] * tokens[t].k[rest];
    std::copy_n(z + l * Tokens, Tokens, b.z.data() + (line + l) * b.n() + at);
  }
}

template <int Lines>
void dot_tokens(LineBlock& b, std::int64_t line, std::int64_t at) {
  constexpr int tokens = kTileSums / Lines;
  for (std::int64_t end = at + kTileSums; at < end; at += tokens) {
    const std::int64_t next = at + kKeysAhead;
    for (std::int64_t i = next; line == 0 && i < std::min(next + tokens, b.n()); ++i) prefetch(b.tokens.places[i].k, b.d);
    dot_tile<Lines, tokens>(b, line, at);
  }
}

void dot_lines(LineBlock& b, std::int64_t at) {
  std::int64_t line = 0;
  for (; line + 4 <= b.count; line += 4) dot_tokens<4>(b, line, at);
  for (; line + 2 <= b.count; line += 2) dot_tokens<2>(b, line, at);
  for (; line < b.count; ++line) dot_tokens<1>(b, line, at);
}

void fill_logits(LineBlock& b) {
  std::int64_t at = 0;
  for (; at + kTileSums <= b.n(); at += kTileSums) dot_lines(b, at);
  for (; at < b.n(); ++at)
    for (std::int64_t line = 0; line < b.count; ++line) dot_tile<1, 1>(b, line, at);
  for (std::int64_t i = 0; i < b.n() && !b.tokens.log_weight.empty(); ++i)
    for (std::int64_t line = 0; line < b.count; ++line)
      b.z[line * b.n() + i] += b.tokens.log_weight[static_cast<std::size_t>(i * b.group + (b.first + line) % b.group)];
  for (const auto& [token, log_weight, stride] : b.tokens.by_query)
    for (std::int64_t line = 0; line < b.count; ++line)
      b.z[line * b.n() + token] += log_weight[(b.first + line) / b.group * stride + (b.first + line) % b.group];
  for (const auto& [token, position] : b.tokens.hidden) {
    for (std::int64_t line = 0; line < b.count; ++line) {
      const auto query = static_cast<std::int32_t>(b.q.first_position + (b.first + line) / b.group);
      if (position > query || position < window_begin(b.a, query)) b.z[line * b.n() + token] = kMasked;
    }
  }
}

// Returns the log of the denominator; meanwhile() per vector.
template <class Meanwhile>
float softmax(float* z, std::int64_t n, const Meanwhile& meanwhile) {
  Lanes top = Lanes::Constant(kMasked), sum = Lanes::Zero();
  for (std::int64_t i = 0; i < n; i += kLanes) top = top.max(load(z + i, n - i, kMasked));
  const float max = top.maxCoeff();
  if (max == kMasked) {
    std::fill_n(z, n, 0.0F);
    return kMasked;
  }
  for (std::int64_t i = 0; i < n; i += kLanes) {
    meanwhile();
    const Lanes before = load(z + i, n - i, kMasked);
    const Lanes e = (before - max).exp();
    const Lanes seen = (before == kMasked).select(Lanes::Zero(), e);  // separate: inside a select, exp is not vectorized
    store(seen, z + i, n - i);
    sum += seen;
  }
  const float total = sum.sum();
  for (std::int64_t i = 0; i < n; i += kLanes) store(load(z + i, n - i) / total, z + i, n - i);
  return max + std::log(total);
}

// Packets packets of channels.
template <int Lines, int Packets>
void value_tile(LineBlock& b, std::int64_t line, std::int64_t channel, std::int64_t begin, std::int64_t end) {
  Packet sum[Lines][Packets];
  float* out = b.out.data() + line * b.d + channel;
  const float* p = b.z.data() + line * b.n();
  const std::int64_t tiles = b.d / (Packets * kPacket), passes = tiles * (b.count / Lines);
  std::int64_t ask = begin + line / Lines * tiles + channel / (Packets * kPacket);
  for (int l = 0; l < Lines; ++l)
    for (int c = 0; c < Packets; ++c) sum[l][c] = load_packet(out + l * b.d + c * kPacket);
  for (std::int64_t i = begin; i < end; ++i) {
    const float* v = b.tokens.places[i].v + channel;
    if (i == ask) {
      if (i + kChunkTokens < b.n()) prefetch(b.tokens.places[i + kChunkTokens].v, b.d);
      ask += passes;
    }
    Packet value[Packets];
    for (int c = 0; c < Packets; ++c) value[c] = load_packet(v + c * kPacket);
    for (int l = 0; l < Lines; ++l) {
      const Packet weight = broadcast(p[l * b.n() + i]);
      for (int c = 0; c < Packets; ++c) sum[l][c] = Eigen::internal::pmadd(weight, value[c], sum[l][c]);
    }
  }
  for (int l = 0; l < Lines; ++l)
    for (int c = 0; c < Packets; ++c) store_packet(out + l * b.d + c * kPacket, sum[l][c]);
}

template <int Lines>
void value_lines(LineBlock& b, std::int64_t line, std::int64_t begin, std::int64_t end) {
  std::int64_t channel = 0;
  for (; channel + kValuePackets * kPacket <= b.d; channel += kValuePackets * kPacket)
    value_tile<Lines, kValuePackets>(b, line, channel, begin, end);
  for (; channel + kPacket <= b.d; channel += kPacket) value_tile<Lines, 1>(b, line, channel, begin, end);
  for (; channel < b.d; ++channel)
    for (std::int64_t l = line; l < line + Lines; ++l)
      for (std::int64_t i = begin; i < end; ++i) b.out[l * b.d + channel] += b.z[l * b.n() + i] * b.tokens.places[i].v[channel];
}

void add_values(LineBlock& b) {
  b.out.setZero(b.count * b.d);
  for (std::int64_t begin = 0; begin < b.n(); begin += kChunkTokens) {
    const std::int64_t end = std::min(begin + kChunkTokens, b.n());
    std::int64_t line = 0;
    for (; kPacket == 16 && line + 4 <= b.count; line += 4) value_lines<4>(b, line, begin, end);
    for (; line + 2 <= b.count; line += 2) value_lines<2>(b, line, begin, end);
    for (; line < b.count; ++line) value_lines<1>(b, line, begin, end);
  }
}

void run_block(LineBlock& b) {
  const Attend& a = b.a;
  const std::int32_t sequence = a.segments[0].kv.sequence(b.row);
  const float scale = std::sqrt(static_cast<float>(b.d));
  for (std::int64_t i = 0; i < std::min(kKeysAhead, b.n()); ++i) prefetch(b.tokens.places[i].k, b.d);
  b.queries.resize(b.count * b.d);
  b.z.resize(b.count * b.n());
  for (std::int64_t line = 0; line < b.count; ++line)
    for (std::int64_t c = 0; c < b.d; ++c) b.queries[line * b.d + c] = b.q.data[b.head(line) * b.d + c] / scale;
  fill_logits(b);
  std::int64_t next_value = 0;
  const auto prefetch_value = [&] {
    if (next_value < b.n()) prefetch<kSecondCache>(b.tokens.places[next_value++].v, b.d);
  };
  for (std::int64_t line = 0; line < b.count; ++line) {
    float* z = b.z.data() + line * b.n();
    const float log_sum = softmax(z, b.n(), prefetch_value);
    if (a.log_sum != nullptr) a.log_sum[sequence][b.head(line)] = log_sum;
    if (a.probabilities == nullptr) continue;
    float* p = a.probabilities[b.row] + (b.first + line) * b.n();
    Columns columns(b.n());
    for (std::int64_t i = 0; i < b.n(); ++i) p[i] = z[columns.next()];
  }
  add_values(b);
  for (std::int64_t line = 0; line < b.count; ++line) std::copy_n(b.out.data() + line * b.d, b.d, a.out[sequence] + b.head(line) * b.d);
}

void run_row(const Attend& a, std::int32_t row) {
  const KvRows& kv = a.segments[0].kv;
  const Queries& q = a.queries[kv.sequence(row)];
  if (q.count == 0) return;
  const Tokens tokens = gather_tokens(a, row, q);
  const std::int64_t lines = static_cast<std::int64_t>(q.count) * kv.group;
  for (std::int64_t first = 0; first < lines; first += kBlockLines) {
    LineBlock b{a, row, q, tokens, kv.head_dim, kv.group, first, std::min<std::int64_t>(kBlockLines, lines - first), {}, {}, {}};
    run_block(b);
  }
}

}  // namespace

void run_cpu(const Attend& a) {
  if (a.num_segments == 0) return;
  for_each_in_parallel(a.segments[0].kv.num_rows, [&](std::int64_t row) { run_row(a, static_cast<std::int32_t>(row)); });
}

}  // namespace kvlab
