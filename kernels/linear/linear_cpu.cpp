#include <Eigen/Core>
#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "kernels/dot_tiles_cpu.h"
#include "kernels/linear/linear.h"
#include "kernels/packets_cpu.h"

namespace kvlab {

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr bool kManyRegisters = kPacket == 16;                   // of AVX-512
constexpr std::int64_t kFewTokens = kManyRegisters ? 12 : 8;     // up to these, channels lie in lanes
constexpr std::int64_t kNearFloats = kManyRegisters ? 8192 : 0;  // of x, that stay in the nearest cache: then up to twice as many tokens
constexpr std::int64_t kSomeTokens = 48;                         // up to these, tokens lie in lanes; above, a general matrix product
constexpr std::int64_t kBlockTokens = 128, kBlockOutputs = 512, kRows = 32;  // of a task, at most: of products, and rows of w

// Outputs [begin, begin + Rows) of tokens [first, first + Tokens).
template <int Rows, int Tokens>
void dot_rows(const LinearGroup& a, const LinearPart& part, std::int64_t begin, std::int64_t first) {
  Packet sum[Rows * Tokens];
  for (Packet& one : sum) one = broadcast(0.0F);
  const float *const w = part.w + begin * a.in_dim, *const x = a.x + first * a.in_dim;
  std::int64_t c = 0;
  for (; c + kPacket <= a.in_dim; c += kPacket) {
    Packet token[Tokens];
    for (int t = 0; t < Tokens; ++t) token[t] = load_packet(x + t * a.in_dim + c);
    for (int r = 0; r < Rows; ++r) {
      __builtin_prefetch(w + (Rows + r) * a.in_dim + c);  // of the rows that come next
      const Packet weight = load_packet(w + r * a.in_dim + c);
      for (int t = 0; t < Tokens; ++t) sum[r * Tokens + t] = Eigen::internal::pmadd(token[t], weight, sum[r * Tokens + t]);
    }
  }
  float y[Rows * Tokens];
  fill_sums_of_lanes(sum, y);
  for (int r = 0; r < Rows; ++r) {
    for (int t = 0; t < Tokens; ++t) {
      float& dot = y[r * Tokens + t];
      for (std::int64_t i = c; i < a.in_dim; ++i) dot += w[r * a.in_dim + i] * x[t * a.in_dim + i];
      part.y[(first + t) * part.out_dim + begin + r] = dot;
    }
  }
}

// Outputs [begin, end) of so many tokens, with about sixteen sums under way.
template <int Tokens>
void dot_all_rows(const LinearGroup& a, const LinearPart& part, std::int64_t begin, std::int64_t end, std::int64_t first) {
  constexpr int kTogether = Tokens > 4 ? 2 : Tokens == 2 ? 8 : 4;
  std::int64_t r = begin;
  for (; r + kTogether <= end; r += kTogether) dot_rows<kTogether, Tokens>(a, part, r, first);
  for (; r < end; ++r) dot_rows<1, Tokens>(a, part, r, first);
}

constexpr std::int64_t kTokensAtOnce = 8;

template <int Tokens = kTokensAtOnce>
void dot_tokens(const LinearGroup& a, const LinearPart& part, std::int64_t begin, std::int64_t end, std::int64_t first,
                std::int64_t tokens) {
  if constexpr (Tokens > 0) {
    if (tokens < Tokens) return dot_tokens<Tokens - 1>(a, part, begin, end, first, tokens);
    dot_all_rows<Tokens>(a, part, begin, end, first);
  }
}

// Every weight comes from memory once: more tokens than are done at once follow while a few rows of w are near.
void few_tokens(const LinearGroup& a, const LinearPart& part, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kNearRows = 8, kTokens = 4;
  if (a.tokens <= kTokensAtOnce) return dot_tokens(a, part, begin, end, 0, a.tokens);
  for (std::int64_t r = begin; r < end; r += kNearRows)
    for (std::int64_t t = 0; t < a.tokens; t += kTokens)
      dot_tokens(a, part, r, std::min(r + kNearRows, end), t, std::min(kTokens, a.tokens - t));
}

// Tokens side by side: [in_dim, lanes], the lanes behind the last token 0.
std::vector<float> in_lanes(const LinearGroup& a, std::int64_t lanes) {
  std::vector<float> x(static_cast<std::size_t>(a.in_dim * lanes), 0.0F);
  transpose(a.x, a.tokens, a.in_dim, a.in_dim, x.data(), lanes);
  return x;
}

void some_tokens(const LinearGroup& a, const LinearPart& part, const std::vector<float>& x, std::int64_t lanes, std::int64_t begin,
                 std::int64_t end) {
  float z[kRows * kSomeTokens];
  fill_dots(x.data(), lanes, part.w + begin * a.in_dim, end - begin, a.in_dim, z);
  transpose(z, end - begin, a.tokens, lanes, part.y + begin, part.out_dim);
}

void many_tokens(const LinearGroup& a, const LinearPart& part, std::int64_t token, std::int64_t tokens, std::int64_t out,
                 std::int64_t outs) {
  const Eigen::Map<const Matrix> x(a.x + token * a.in_dim, tokens, a.in_dim), w(part.w + out * a.in_dim, outs, a.in_dim);
  Eigen::Map<Matrix, 0, Eigen::OuterStride<>>(part.y + token * part.out_dim + out, tokens, outs, Eigen::OuterStride<>(part.out_dim))
      .noalias() = x * w.transpose();
}

// To outputs [begin, end) of tokens [first, last).
void add_bias(const LinearPart& part, std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end) {
  if (part.bias == nullptr) return;
  for (std::int64_t t = first; t < last; ++t)
    for (std::int64_t r = begin; r < end; ++r) part.y[t * part.out_dim + r] += part.bias[r];
}

bool is_few(const LinearGroup& a) { return a.tokens <= kFewTokens || (a.tokens <= 2 * kFewTokens && a.tokens * a.in_dim <= kNearFloats); }

std::int64_t blocks(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

// Of n in `count` equal blocks of whole vectors.
std::int64_t equal_block(std::int64_t n, std::int64_t count) { return blocks(blocks(n, count), kLanes) * kLanes; }

// Calls f(part, block of tokens, begin, end) for every block of tokens and every size_of(part) outputs of every part, in parallel. Blocks
// of tokens come one behind the other, as in all operations on activations: each core then finds in its cache what it wrote before.
template <class Size, class F>
void for_each_piece(const LinearGroup& a, std::int64_t token_blocks, const Size& size_of, const F& f) {
  std::int64_t each = 0;
  for (std::int32_t p = 0; p < a.num_parts; ++p) each += blocks(a.parts[p].out_dim, size_of(a.parts[p]));
  for_each_in_parallel(token_blocks * each, [&](std::int64_t piece) {
    std::int64_t i = piece % each;
    for (const LinearPart* part = a.parts;; ++part) {
      const std::int64_t size = size_of(*part), count = blocks(part->out_dim, size);
      if (i < count) return f(*part, piece / each, i * size, std::min((i + 1) * size, std::int64_t{part->out_dim}));
      i -= count;
    }
  });
}

}  // namespace

void run_cpu(const LinearGroup& a) {
  if (a.tokens == 0) return;
  if (a.tokens > kSomeTokens) {
    // An even number of equal blocks of tokens, or smaller ones of outputs where blocks of tokens would be small (each lays out the weights
    // anew): two cores are done at the same time. The same on any machine, so that results do not depend on its cores.
    const bool is_one = a.tokens <= 2 * kBlockTokens;
    const std::int64_t block_tokens = is_one ? a.tokens : equal_block(a.tokens, 2 * blocks(a.tokens, 2 * kBlockTokens));
    const auto outputs_of = [&](const LinearPart& p) {
      return is_one && p.out_dim > 0 ? equal_block(p.out_dim, 2 * blocks(p.out_dim, kBlockOutputs)) : kBlockOutputs;
    };
    for_each_piece(a, blocks(a.tokens, block_tokens), outputs_of,
                   [&](const LinearPart& p, std::int64_t block, std::int64_t begin, std::int64_t end) {
                     const std::int64_t token = block * block_tokens, last = std::min(token + block_tokens, std::int64_t{a.tokens});
                     many_tokens(a, p, token, last - token, begin, end - begin);
                     add_bias(p, token, last, begin, end);
                   });
    return;
  }
  const std::int64_t lanes = blocks(a.tokens, kLanes) * kLanes;
  const bool few = is_few(a);
  const std::vector<float> x = few ? std::vector<float>{} : in_lanes(a, lanes);
  for_each_piece(
      a, 1, [](const LinearPart&) { return kRows; },
      [&](const LinearPart& p, std::int64_t /*block*/, std::int64_t begin, std::int64_t end) {
        if (!few) {
          some_tokens(a, p, x, lanes, begin, end);
        } else {
          few_tokens(a, p, begin, end);
        }
        add_bias(p, 0, a.tokens, begin, end);
      });
}

void run_cpu(const Linear& a) {
  const LinearPart part{a.w, a.y, a.out_dim, a.bias};
  run_cpu(LinearGroup{a.x, a.tokens, a.in_dim, &part, 1});
}

}  // namespace kvlab
