#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "base/ceil_div.h"
#include "base/parallel.h"
#include "kernels/model/layer/layer.h"
#include "kernels/packets_cpu.h"

namespace kvlab {

namespace {

constexpr bool kManyRegisters = kPacket == 16;                               // AVX-512
constexpr std::int64_t kFewTokens = 12;                                      // up to these, a lane has a channel
constexpr std::int64_t kSomeTokens = 48;                                     // up to these, a lane has a token
constexpr std::int64_t kBlockTokens = 128, kBlockOutputs = 512, kRows = 96;  // most per task

// Outputs begin, begin + stride ... of tokens [first, first + Tokens).
template <int Rows, int Tokens>
void dot_rows(const LinearGroup& a, const LinearPart& part, std::int64_t begin, std::int64_t stride, std::int64_t first) {
  constexpr bool kAsks = Tokens > 2;  // prefetches the next rows; with fewer tokens the hardware keeps up
  Packet sum[Rows * Tokens];
  for (Packet& one : sum) one = broadcast(0.0F);
  const float *const w = part.w + begin * a.in_dim, *const x = a.x + first * a.in_dim;
  const std::int64_t apart = stride * a.in_dim;
  std::int64_t c = 0;
  for (; c + kPacket <= a.in_dim; c += kPacket) {
    Packet token[Tokens];
    for (int t = 0; t < Tokens; ++t) token[t] = load_packet(x + t * a.in_dim + c);
    for (int r = 0; r < Rows; ++r) {
      if constexpr (kAsks) __builtin_prefetch(w + r * apart + a.in_dim + c);
      const Packet weight = load_packet(w + r * apart + c);
      for (int t = 0; t < Tokens; ++t) sum[r * Tokens + t] = Eigen::internal::pmadd(token[t], weight, sum[r * Tokens + t]);
    }
  }
  float y[Rows * Tokens];
  fill_sums_of_lanes(sum, y);
  for (int r = 0; r < Rows; ++r) {
    for (int t = 0; t < Tokens; ++t) {
      float& dot = y[r * Tokens + t];
      for (std::int64_t i = c; i < a.in_dim; ++i) dot += w[r * apart + i] * x[t * a.in_dim + i];
      part.y[(first + t) * part.out_dim + begin + r * stride] = dot;
    }
  }
}

template <int Rows, int Tokens>
void dot_tokens(const LinearGroup& a, const LinearPart& part, std::int64_t begin, std::int64_t stride, std::int64_t first) {
  for (; first + Tokens <= a.tokens; first += Tokens) dot_rows<Rows, Tokens>(a, part, begin, stride, first);
  if constexpr (Tokens > 1) dot_tokens<Rows, Tokens - 1>(a, part, begin, stride, first);
}

// Reads each weight once for kFewTokens.
void few_tokens(const LinearGroup& a, const LinearPart& part, std::int64_t begin, std::int64_t end) {
  constexpr int kTokens = 4, kTogether = kManyRegisters ? 4 : 3;  // sums fill the vector registers
  const std::int64_t stride = (end - begin) / kTogether;
  for (std::int64_t first = 0; first < a.tokens; first += kFewTokens) {
    LinearGroup some = a;
    some.tokens = std::min(a.tokens, first + kFewTokens);
    for (std::int64_t r = begin; r < begin + stride; ++r) dot_tokens<kTogether, kTokens>(some, part, r, stride, first);
    for (std::int64_t r = begin + kTogether * stride; r < end; ++r) dot_tokens<1, kTokens>(some, part, r, 1, first);
  }
}

constexpr std::int64_t kPanel = dot_tiles::kWide * kPacket;              // tokens adjacent in memory
constexpr std::int64_t kNearChannels = 4096 / kPanel / kLanes * kLanes;  // of a panel, for the L1 cache

// [in_dim, lanes]; lanes after the last token are 0.
struct Panels {
  explicit Panels(const LinearGroup& a) : tokens(a.tokens), in_dim(a.in_dim), x(Eigen::ArrayXf::Zero(in_dim * padded(tokens))) {
    for (std::int64_t t = 0; t < tokens; t += kPanel)
      transpose(a.x + t * in_dim, std::min(kPanel, tokens - t), in_dim, in_dim, x.data() + t * in_dim, lanes(t));
  }
  static std::int64_t padded(std::int64_t n) { return round_up(n, kPacket); }
  [[nodiscard]] std::int64_t lanes(std::int64_t t) const { return std::min(kPanel, padded(tokens - t)); }

  std::int64_t tokens, in_dim;
  Eigen::ArrayXf x;  // packets do not cross cache lines
};

// Adds channels [c, c + channels) to z [rows, lanes].
void add_panel(const Panels& p, std::int64_t t, std::int64_t c, std::int64_t channels, const float* w, std::int64_t rows, float* z) {
  using dot_tiles::kKeys;
  const std::int64_t lanes = p.lanes(t), stride = rows / kKeys;
  dot_tiles::Tile tile{p.x.data() + t * p.in_dim + c * lanes, lanes, w + c, stride * p.in_dim, channels, t == 0 ? p.in_dim : 0};
  for (std::int64_t r = 0; r < stride; ++r, tile.keys += p.in_dim) dot_tiles::add_tiles<kKeys>(tile, z + r * lanes, stride * lanes);
  for (std::int64_t r = kKeys * stride; r < rows; ++r) {
    tile.keys = w + r * p.in_dim + c;
    dot_tiles::add_tiles<1>(tile, z + r * lanes, lanes);
  }
}

// Tokens [from, to), from a whole panel on.
void some_tokens(const LinearPart& part, const Panels& p, std::int64_t from, std::int64_t to, std::int64_t begin, std::int64_t end) {
  const std::int64_t rows = end - begin;
  float z[kRows * kSomeTokens];
  std::fill_n(z, rows * Panels::padded(to - from), 0.0F);
  for (std::int64_t c = 0; c < p.in_dim; c += kNearChannels)
    for (std::int64_t t = from; t < to; t += kPanel)
      add_panel(p, t, c, std::min(kNearChannels, p.in_dim - c), part.w + begin * p.in_dim, rows, z + rows * (t - from));
  for (std::int64_t t = from; t < to; t += kPanel)
    transpose(z + rows * (t - from), rows, std::min(kPanel, to - t), p.lanes(t), part.y + t * part.out_dim + begin, part.out_dim);
}

void many_tokens(const LinearGroup& a, const LinearPart& part, std::int64_t token, std::int64_t tokens, std::int64_t out,
                 std::int64_t outs) {
  const Eigen::Map<const RowMatrix> x(a.x + token * a.in_dim, tokens, a.in_dim), w(part.w + out * a.in_dim, outs, a.in_dim);
  Eigen::Map<RowMatrix, 0, Eigen::OuterStride<>>(part.y + token * part.out_dim + out, tokens, outs, Eigen::OuterStride<>(part.out_dim))
      .noalias() = x * w.transpose();
}

void add_bias(const LinearPart& part, std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end) {
  if (part.bias == nullptr) return;
  for (std::int64_t t = first; t < last; ++t)
    for (std::int64_t r = begin; r < end; ++r) part.y[t * part.out_dim + r] += part.bias[r];
}

// In whole vectors.
std::int64_t equal_block(std::int64_t n, std::int64_t count) { return round_up(ceil_div(n, count), kLanes); }

// f(part, block of tokens, begin, end) for size_of(part) outputs.
template <class Size, class F>
void for_each_piece(const LinearGroup& a, std::int64_t token_blocks, const Size& size_of, const F& f) {
  std::int64_t each = 0;
  for (std::int32_t p = 0; p < a.num_parts; ++p) each += ceil_div(a.parts[p].out_dim, size_of(a.parts[p]));
  for_each_in_parallel(token_blocks * each, [&](std::int64_t piece) {
    std::int64_t i = piece % each;
    for (const LinearPart* part = a.parts;; ++part) {
      const std::int64_t size = size_of(*part), count = ceil_div(part->out_dim, size);
      if (i < count) return f(*part, piece / each, i * size, std::min((i + 1) * size, std::int64_t{part->out_dim}));
      i -= count;
    }
  });
}

enum class Way { kFew, kSome, kMany };

Way way_of(std::int64_t tokens) {
  if (tokens <= kFewTokens) return Way::kFew;
  return tokens <= kSomeTokens ? Way::kSome : Way::kMany;
}

// Each weight is read once for kFewTokens or kSomeTokens.
void run_rows(const LinearGroup& a, Way way) {
  const auto rows_of = [](const LinearPart& p) { return p.out_dim > 0 ? equal_block(p.out_dim, ceil_div(p.out_dim, kRows)) : kRows; };
  const std::optional<Panels> panels = way == Way::kFew ? std::optional<Panels>() : std::make_optional<Panels>(a);
  for_each_piece(a, 1, rows_of, [&](const LinearPart& p, std::int64_t /*block*/, std::int64_t begin, std::int64_t end) {
    if (way == Way::kFew) few_tokens(a, p, begin, end);
    for (std::int64_t t = 0; way == Way::kSome && t < a.tokens; t += kSomeTokens)
      some_tokens(p, *panels, t, std::min(t + kSomeTokens, std::int64_t{a.tokens}), begin, end);
    add_bias(p, 0, a.tokens, begin, end);
  });
}

// An even number of equal blocks.
void run_blocks(const LinearGroup& a) {
  const bool is_one = a.tokens <= 2 * kBlockTokens;
  const std::int64_t block_tokens = is_one ? a.tokens : equal_block(a.tokens, 2 * ceil_div(a.tokens, 2 * kBlockTokens));
  const auto outputs_of = [&](const LinearPart& p) {
    return is_one && p.out_dim > 0 ? equal_block(p.out_dim, 2 * ceil_div(p.out_dim, kBlockOutputs)) : kBlockOutputs;
  };
  for_each_piece(a, ceil_div(a.tokens, block_tokens), outputs_of,
                 [&](const LinearPart& p, std::int64_t block, std::int64_t begin, std::int64_t end) {
                   const std::int64_t token = block * block_tokens, last = std::min(token + block_tokens, std::int64_t{a.tokens});
                   many_tokens(a, p, token, last - token, begin, end - begin);
                   add_bias(p, token, last, begin, end);
                 });
}

// Tokens [first, first + tokens) of all.
void run_part(const LinearGroup& all, Way way, std::int64_t first, std::int64_t tokens) {
  if (tokens == 0) return;
  std::vector<LinearPart> parts(all.parts, all.parts + all.num_parts);
  for (LinearPart& p : parts) p.y += first * p.out_dim;
  const LinearGroup a{all.x + first * all.in_dim, tokens, all.in_dim, parts.data(), all.num_parts};
  if (way == Way::kMany)
    run_blocks(a);
  else
    run_rows(a, way);
}

}  // namespace

// Neighbouring pieces of a few or some tokens are computed together.
void run_cpu(const LinearGroup& a) {
  const auto whole = static_cast<std::int32_t>(a.tokens);
  const std::span<const std::int32_t> pieces = a.pieces.empty() ? std::span(&whole, 1) : a.pieces;
  std::int64_t first = 0;
  for (std::size_t i = 0, end = 0; i < pieces.size(); i = end) {
    const Way way = way_of(pieces[i]);
    std::int64_t tokens = 0;
    do tokens += pieces[end++];
    while (way != Way::kMany && end < pieces.size() && way_of(pieces[end]) == way);
    run_part(a, way, first, tokens);
    first += tokens;
  }
}

void run_cpu(const Linear& a) {
  const LinearPart part{static_cast<const float*>(a.w), static_cast<float*>(a.y), a.out_dim, static_cast<const float*>(a.bias)};
  run_cpu(LinearGroup{static_cast<const float*>(a.x), a.tokens, a.in_dim, &part, 1});
}

}  // namespace kvlab
