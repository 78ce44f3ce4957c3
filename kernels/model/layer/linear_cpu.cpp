#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/big_array.h"
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

// Eigen's product in its parts: each matrix is packed once for all blocks. Bit for bit as many_tokens() of a block.
namespace packed {

namespace E = Eigen::internal;
using Index = std::int64_t;
using Traits = E::gebp_traits<float, float>;
using Weights = E::const_blas_data_mapper<float, Index, Eigen::RowMajor>;
using Tokens = E::const_blas_data_mapper<float, Index, Eigen::ColMajor>;
using Out = E::blas_data_mapper<float, Index, Eigen::ColMajor>;
constexpr Index kOuts = Index{3} * Traits::mr;  // per task: whole tiles

// Channels that are added before a sum is stored.
Index channels_of(Index in_dim) {
  Index k = in_dim, m = kBlockOutputs, n = kBlockTokens;
  E::computeProductBlockingSizes<float, float, 1>(k, m, n, Index{1});
  return k;
}

// Eigen takes other ways for these.
bool is_small(Index tokens, Index outs, Index in_dim) { return tokens == 1 || outs == 1 || tokens + outs + in_dim < 20; }

// Eigen stores whole vectors.
Index aligned(Index n) { return round_up(n, kLanes); }

struct Block {
  Index first, count;  // tokens
  Index place = 0;     // in Blocks::x, of token [0] of its channels
};

// Tokens in blocks; a block's channels are adjacent in memory.
struct Blocks {
  Blocks(const LinearGroup& group, std::vector<Block> blocks) : a(group), channels(channels_of(group.in_dim)), all(std::move(blocks)) {
    Index floats = 0;
    for (Block& b : all) b.place = std::exchange(floats, floats + aligned(b.count) * a.in_dim);
    x = BigArray<float>(static_cast<std::size_t>(floats));
    for_each_in_parallel(std::ssize(all), [&](Index i) { pack(all[static_cast<std::size_t>(i)]); });
  }
  void pack(const Block& b) {
    const Tokens tokens(a.x + b.first * a.in_dim, a.in_dim);
    E::gemm_pack_rhs<float, Index, Tokens, Traits::nr, Eigen::ColMajor> packs;
    for (Index c = 0; c < a.in_dim; c += channels) packs(at(b, c), tokens.getSubMapper(c, 0), width(c), b.count);
  }
  [[nodiscard]] Index width(Index c) const { return std::min(channels, a.in_dim - c); }
  [[nodiscard]] float* at(const Block& b, Index c) { return x.data() + b.place + c * aligned(b.count); }
  [[nodiscard]] const float* at(const Block& b, Index c) const { return x.data() + b.place + c * aligned(b.count); }

  const LinearGroup& a;
  Index channels;
  std::vector<Block> all;
  BigArray<float> x;
};

// Weights of outputs [begin, begin + outs).
struct Slice {
  Slice(const Blocks& b, const LinearPart& part, Index first, Index count)
      : begin(first), outs(count), w(static_cast<std::size_t>(aligned(count) * b.a.in_dim)) {
    const Weights weights(part.w + begin * b.a.in_dim, b.a.in_dim);
    E::gemm_pack_lhs<float, Index, Weights, Traits::mr, Traits::LhsProgress, Traits::LhsPacket4Packing, Eigen::RowMajor> packs;
    for (Index c = 0; c < b.a.in_dim; c += b.channels) packs(w.data() + c * aligned(outs), weights.getSubMapper(0, c), b.width(c), outs);
  }

  Index begin, outs;
  BigArray<float> w;
};

void fill_block(const Blocks& b, const Block& block, const LinearPart& part, const Slice& s) {
  float* const y = part.y + block.first * part.out_dim + s.begin;
  for (Index t = 0; t < block.count; ++t) std::fill_n(y + t * part.out_dim, s.outs, 0.0F);
  E::gebp_kernel<float, float, Index, Out, Traits::mr, Traits::nr, false, false> multiply;
  for (Index c = 0; c < b.a.in_dim; c += b.channels)
    multiply(Out(y, part.out_dim), s.w.data() + c * aligned(s.outs), b.at(block, c), s.outs, b.width(c), block.count, 1.0F);
}

}  // namespace packed

void add_bias(const LinearPart& part, std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end) {
  if (part.bias == nullptr) return;
  for (std::int64_t t = first; t < last; ++t)
    for (std::int64_t r = begin; r < end; ++r) part.y[t * part.out_dim + r] += part.bias[r];
}

// In whole vectors.
std::int64_t equal_block(std::int64_t n, std::int64_t count) { return round_up(ceil_div(n, count), kLanes); }

// f(part, set of tokens, begin, end) for size_of(part) outputs.
template <class Size, class F>
void for_each_piece(const LinearGroup& a, std::int64_t sets, const Size& size_of, const F& f) {
  std::int64_t each = 0;
  for (std::int32_t p = 0; p < a.num_parts; ++p) each += ceil_div(a.parts[p].out_dim, size_of(a.parts[p]));
  for_each_in_parallel(sets * each, [&](std::int64_t piece) {
    std::int64_t i = piece % each;
    for (const LinearPart* part = a.parts;; ++part) {
      const std::int64_t size = size_of(*part), count = ceil_div(part->out_dim, size);
      if (i < count) return f(*part, piece / each, i * size, std::min((i + 1) * size, std::int64_t{part->out_dim}));
      i -= count;
    }
  });
}

// What a piece alone is computed by.
enum class Way { kFew, kSome, kOneBlock, kBlocks };

Way way_of(std::int64_t tokens) {
  if (tokens <= kFewTokens) return Way::kFew;
  if (tokens <= kSomeTokens) return Way::kSome;
  return tokens <= 2 * kBlockTokens ? Way::kOneBlock : Way::kBlocks;
}

// Each weight is read once for kFewTokens or kSomeTokens.
void run_rows(const LinearGroup& a, Way way) {
  const auto rows_of = [](const LinearPart& p) { return p.out_dim > 0 ? equal_block(p.out_dim, ceil_div(p.out_dim, kRows)) : kRows; };
  const auto run = [&](const auto& tokens) {
    for_each_piece(a, 1, rows_of, [&](const LinearPart& p, std::int64_t /*set*/, std::int64_t begin, std::int64_t end) {
      tokens(p, begin, end);
      add_bias(p, 0, a.tokens, begin, end);
    });
  };
  if (way == Way::kFew) return run([&](const LinearPart& p, std::int64_t begin, std::int64_t end) { few_tokens(a, p, begin, end); });
  const Panels panels(a);
  run([&](const LinearPart& p, std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = 0; t < a.tokens; t += kSomeTokens) some_tokens(p, panels, t, std::min(t + kSomeTokens, a.tokens), begin, end);
  });
}

std::vector<packed::Block> blocks_of(std::span<const std::int32_t> pieces, Way way) {
  std::vector<packed::Block> blocks;
  std::int64_t first = 0;
  for (const std::int64_t tokens : pieces) {
    // An even number of equal blocks.
    const std::int64_t most = way == Way::kOneBlock ? tokens : equal_block(tokens, 2 * ceil_div(tokens, 2 * kBlockTokens));
    for (std::int64_t t = 0; t < tokens; t += most) blocks.push_back({first + t, std::min(most, tokens - t), 0});
    first += tokens;
  }
  return blocks;
}

struct Outputs {
  const LinearPart* part;
  std::int64_t begin, end;  // of one Eigen product
};

std::vector<Outputs> outputs_of(const LinearGroup& a, Way way) {
  std::vector<Outputs> all;
  for (const LinearPart& p : std::span(a.parts, static_cast<std::size_t>(a.num_parts))) {
    if (p.out_dim == 0) continue;
    const std::int64_t most = way == Way::kOneBlock ? equal_block(p.out_dim, 2 * ceil_div(p.out_dim, kBlockOutputs)) : kBlockOutputs;
    for (std::int64_t o = 0; o < p.out_dim; o += most) all.push_back({&p, o, std::min(o + most, p.out_dim)});
  }
  return all;
}

void fill_outputs(const packed::Blocks& b, std::span<const packed::Block> blocks, const Outputs& o, std::int64_t begin) {
  const std::int64_t end = std::min(begin + packed::kOuts, o.end), outs = o.end - o.begin;
  const packed::Slice slice(b, *o.part, begin, end - begin);
  for (const auto& block : blocks) {
    if (!packed::is_small(block.count, outs, b.a.in_dim))
      packed::fill_block(b, block, *o.part, slice);
    else if (begin == o.begin)
      many_tokens(b.a, *o.part, block.first, block.count, o.begin, outs);
  }
}

void run_blocks(const LinearGroup& a, Way way) {
  const packed::Blocks packed(a, blocks_of(a.pieces, way));
  std::vector<std::pair<Outputs, std::int64_t>> slices;
  for (const Outputs& o : outputs_of(a, way))
    for (std::int64_t begin = o.begin; begin < o.end; begin += packed::kOuts) slices.emplace_back(o, begin);
  const std::int64_t blocks = std::ssize(packed.all), count = std::ssize(slices);
  const std::int64_t sets = std::clamp<std::int64_t>(count == 0 ? 1 : ceil_div<std::int64_t>(2 * num_parallel(), count), 1, blocks);
  for_each_in_parallel(count * sets, [&](std::int64_t i) {
    const auto& [outputs, begin] = slices[static_cast<std::size_t>(i % count)];
    const std::int64_t set = i / count, first = blocks * set / sets, last = blocks * (set + 1) / sets;
    fill_outputs(packed, std::span(packed.all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first)), outputs,
                 begin);
  });
  for (const LinearPart& p : std::span(a.parts, static_cast<std::size_t>(a.num_parts))) add_bias(p, 0, a.tokens, 0, p.out_dim);
}

void run_way(const LinearGroup& all, Way way, std::int64_t first, std::span<const std::int32_t> pieces) {
  std::vector<LinearPart> parts(all.parts, all.parts + all.num_parts);
  for (LinearPart& p : parts) p.y += first * p.out_dim;
  LinearGroup a{all.x + first * all.in_dim,
                std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0}),
                all.in_dim,
                parts.data(),
                all.num_parts,
                pieces};
  if (a.tokens == 0) return;
  if (way == Way::kFew || way == Way::kSome)
    run_rows(a, way);
  else
    run_blocks(a, way);
}

}  // namespace

void run_cpu(const LinearGroup& a) {
  const auto whole = static_cast<std::int32_t>(a.tokens);
  const std::span<const std::int32_t> pieces = a.pieces.empty() ? std::span(&whole, 1) : a.pieces;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < pieces.size();) {
    const Way way = way_of(pieces[i]);
    std::size_t end = i;
    std::int64_t tokens = 0;
    for (; end < pieces.size() && way_of(pieces[end]) == way; ++end) tokens += pieces[end];
    run_way(a, way, first, pieces.subspan(i, end - i));
    i = end, first += tokens;
  }
}

void run_cpu(const Linear& a) {
  const LinearPart part{static_cast<const float*>(a.w), static_cast<float*>(a.y), a.out_dim, static_cast<const float*>(a.bias)};
  run_cpu(LinearGroup{static_cast<const float*>(a.x), a.tokens, a.in_dim, &part, 1});
}

}  // namespace kvlab
