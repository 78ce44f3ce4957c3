#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "kernels/attention/append_kv/append_kv.h"
#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/model/layer/layer.h"
#include "kernels/model/sampling/sampling.h"
#include "kernels/storage/compact/compact.h"
#include "tests/kv/plain_math.h"
#include "tests/plain_softmax.h"

namespace kvlab {
namespace {

TEST(KernelFormulas, OfOneShapeByHand) {
  // 2 tokens, 3 -> 5 channels: 15 weights, 2 * (3 + 5) activations, two bytes each.
  EXPECT_EQ(bytes(LinearShape{2, 5, 3, 2, 16}), 2 * 15 + 2 * 16);
  EXPECT_EQ(flops(LinearShape{2, 5, 3}), 2 * 2 * 15);
  EXPECT_EQ(weight_bytes(LinearShape{2, 6, 4, 2, 4}), 12);  // 24 four-bit weights
  EXPECT_EQ(bytes(LinearShape{0, 5, 3}), 0);                // nothing to do, nothing read
  EXPECT_EQ(bytes(RmsNormShape{10, 8, 2, true}), (40 + 1) * 8 * 2);
  EXPECT_EQ(bytes(RmsNormShape{10, 8, 2, false}), (20 + 1) * 8 * 2);
  EXPECT_EQ(bytes(RmsNormShape{0, 8, 2, true}), 0);
  EXPECT_EQ(bytes(RopeShape{10, 4, 8, 2}), 10 * 9 * 8 * 2);
  EXPECT_EQ(flops(RopeShape{10, 4, 8, 2}), 960);
  EXPECT_EQ(bytes(SiluMulShape{10, 8, 2, true}), 3 * 80 * 2);
  EXPECT_EQ(bytes(SiluMulShape{10, 8, 2, false}), 2 * 80 * 2);
  EXPECT_EQ(bytes(EmbeddingShape{10, 8, 2}), 10 * (32 + 4));
  EXPECT_EQ(bytes(AppendKvShape{10, 2, 8, 2, 1}), 10 * (2 * 16 * 3 + 8));
  EXPECT_EQ(bytes(SamplingShape{3, 100, 2}), 3 * (200 + 4));
  // 5 tokens, 2 layers, 3 KV heads, 4 channels of 2 bytes: K and V, in and out, and a position.
  EXPECT_EQ(bytes(CompactShape{5, 2, 3, 4, 2}), 5 * 2 * 3 * (4 * 4 * 2 + 4));
  EXPECT_EQ(bytes(CompactShape{0, 2, 3, 4, 2}), 0);
  EXPECT_EQ(flops(CompactShape{5, 2, 3, 4, 2}), 0);
}

TEST(KernelFormulas, DecodeReadsKvOncePerKvHead) {
  // Geometry of the published H100 figure "64 x 4,096 in 354 us, 91 % of 3.35 TB/s": 1.0737 GB of K and V.
  const AttentionDecodeShape s{64, 64 * 4096, 32, 8, 128, 2, 2};
  EXPECT_EQ(bytes(s), 2LL * 64 * 4096 * 8 * 128 * 2 + 2LL * 64 * 32 * 128 * 2);
  EXPECT_NEAR(static_cast<double>(bytes(s)) / 354e-6 / 3.35e12, 0.91, 0.005);
  EXPECT_EQ(flops(s), 4LL * 64 * 4096 * 32 * 128);
}

TEST(KernelFormulas, PrefillCountsPairsUnderTheDiagonal) {
  AttentionPrefillShape s{3, 2, 1, 1, 1, 2, 2, 0};
  EXPECT_EQ(attended_pairs(s), 3 + 4 + 5);
  EXPECT_EQ(flops(s), 4 * 12);
  EXPECT_EQ(bytes(s), 2 * 5 * 2 + 2 * 3 * 2);  // 5 tokens of K and V, 3 of q and out
  s.window = 4;
  EXPECT_EQ(attended_pairs(s), 3 + 4 + 4);
  s.window = 2;
  EXPECT_EQ(attended_pairs(s), 2 + 2 + 2);
  EXPECT_EQ(bytes(AttentionPrefillShape{0, 100, 1, 1, 1}), 0);
  EXPECT_EQ(attended_pairs(AttentionPrefillShape{1, 0, 1, 1, 1}), 1);
}

// A prompt in chunks attends to as many pairs as in one piece.
TEST(KernelFormulas, ChunksAddUpToTheWholePrompt) {
  for (const std::int64_t window : {0, 1, 37, 100, 5000}) {
    std::int64_t pairs = 0;
    for (std::int64_t before = 0; before < 1000; before += 100) pairs += attended_pairs({100, before, 1, 1, 1, 2, 2, window});
    EXPECT_EQ(pairs, attended_pairs({1000, 0, 1, 1, 1, 2, 2, window})) << "window " << window;
  }
}

TEST(KernelFormulas, ExpectedExpertsUnderUniformRouting) {
  MoeExpertsShape s{1, 4, 6, 8, 2, 1, 2, 16, true};
  EXPECT_DOUBLE_EQ(expected_experts(s), 2.0);  // one token picks exactly its two
  s.tokens = 2;
  EXPECT_DOUBLE_EQ(expected_experts(s), 8 * (1 - 0.75 * 0.75));
  s.tokens = 0;
  EXPECT_DOUBLE_EQ(expected_experts(s), 0.0);
  s.tokens = 10'000;
  EXPECT_NEAR(expected_experts(s), 8.0, 1e-9);
  s.tokens = 1;
  EXPECT_EQ(weights_per_expert(s), 3 * 24);
  EXPECT_EQ(bytes(s), 2 * 72 * 2 + 2 * 2 * 10 * 2);
  EXPECT_EQ(flops(s), 2 * 2 * 72);
  s.ranks = 2;  // one of two pairs, half the experts
  EXPECT_EQ(flops(s), 2 * 72);
  EXPECT_EQ(bytes(s), 72 * 2 + 2 * 10 * 2);
}

std::vector<float> wave(std::int64_t n, float step) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(step * static_cast<float>(i + 1));
  return x;
}

TEST(LinearCpu, MatchesSumsInDouble) {
  for (const std::int64_t tokens : {0, 1, 2, 3, 4, 7, 12, 13, 16, 17, 24, 25, 32, 33, 48, 49, 65, 300}) {
    for (const std::int64_t out_dim : {1, 15, 33, 97, 530}) {
      const std::int64_t in_dim = tokens % 4 == 1 ? 1030 : 70;  // channels that do not all stay in the nearest cache
      const bool biased = (tokens + out_dim) % 2 == 0;
      const std::vector<float> x = wave(tokens * in_dim, 0.7F), w = wave(out_dim * in_dim, 1.3F), bias = wave(out_dim, 0.2F);
      std::vector<float> y(static_cast<std::size_t>(tokens * out_dim), 7.0F);
      run_cpu(Linear{x.data(), w.data(), y.data(), biased ? bias.data() : nullptr, tokens, in_dim, out_dim});
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t o = 0; o < out_dim; ++o) {
          double sum = biased ? bias[static_cast<std::size_t>(o)] : 0.0;
          for (std::int64_t i = 0; i < in_dim; ++i)
            sum += double{x[static_cast<std::size_t>(t * in_dim + i)]} * w[static_cast<std::size_t>(o * in_dim + i)];
          EXPECT_NEAR(y[static_cast<std::size_t>(t * out_dim + o)], sum, static_cast<double>(in_dim) * 6e-7);  // terms of at most 1
        }
      }
    }
  }
}

// Up to 12 tokens are summed in one way and up to 48 in another. A token's result is the same to the last bit for any neighbours.
TEST(LinearCpu, ATokenIsTheSameWhateverIsBesideIt) {
  for (const auto& [most, least] : {std::pair<std::int64_t, std::int64_t>{12, 1}, {48, 13}}) {
    const std::int64_t in_dim = 517, out_dim = 101;
    const std::vector<float> x = wave(most * in_dim, 0.7F), w = wave(out_dim * in_dim, 1.3F);
    std::vector<float> all(static_cast<std::size_t>(most * out_dim));
    run_cpu(Linear{x.data(), w.data(), all.data(), nullptr, most, in_dim, out_dim});
    for (std::int64_t tokens = least; tokens < most; ++tokens) {
      std::vector<float> some(static_cast<std::size_t>(tokens * out_dim));
      run_cpu(Linear{x.data(), w.data(), some.data(), nullptr, tokens, in_dim, out_dim});
      EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << tokens;
    }
  }
}

TEST(LinearCpu, AGroupIsItsParts) {
  for (const std::int64_t tokens : {1, 9, 30, 200, 300}) {
    const std::int64_t in_dim = 48, first = 40, second = 600;
    const std::vector<float> x = wave(tokens * in_dim, 0.7F), w = wave((first + second) * in_dim, 1.3F);
    std::vector<float> a(static_cast<std::size_t>(tokens * first)), b(static_cast<std::size_t>(tokens * second)), c(a.size()), d(b.size());
    run_cpu(Linear{x.data(), w.data(), a.data(), nullptr, tokens, in_dim, first});
    run_cpu(Linear{x.data(), w.data() + first * in_dim, b.data(), nullptr, tokens, in_dim, second});
    const LinearPart parts[] = {{w.data(), c.data(), first}, {nullptr, nullptr, 0}, {w.data() + first * in_dim, d.data(), second}};
    run_cpu(LinearGroup{x.data(), tokens, in_dim, parts, 3});
    EXPECT_EQ(a, c);
    EXPECT_EQ(b, d);
  }
}

// For any sizes of pieces: each is computed as in a call for it.
TEST(LinearCpu, APieceIsTheSameInAnyCall) {
  const std::vector<std::int32_t> pieces{1, 1, 7, 12, 13, 48, 30, 49, 50, 131, 256, 257, 300, 1, 561, 0, 64, 3};
  const std::int64_t tokens = std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0});
  for (const std::int64_t in_dim : {6, 384, 1030}) {
    const std::int64_t first = 264, second = in_dim == 6 ? 513 : 531;  // with a last block of few outputs
    const std::vector<float> x = wave(tokens * in_dim, 0.7F), w = wave((first + second) * in_dim, 1.3F), bias = wave(second, 0.2F);
    std::vector<float> a(static_cast<std::size_t>(tokens * first)), b(static_cast<std::size_t>(tokens * second)), c(a.size()), d(b.size());
    const auto run = [&](std::int64_t at, std::int64_t count, std::span<const std::int32_t> all, float* y, float* z) {
      const LinearPart parts[] = {{w.data(), y + at * first, first}, {w.data() + first * in_dim, z + at * second, second, bias.data()}};
      run_cpu(LinearGroup{x.data() + at * in_dim, count, in_dim, parts, 2, all});
    };
    run(0, tokens, pieces, a.data(), b.data());
    std::int64_t at = 0;
    for (const std::int32_t piece : pieces) run(at, piece, {}, c.data(), d.data()), at += piece;
    EXPECT_EQ(a, c);
    EXPECT_EQ(b, d);
  }
}

TEST(EmbeddingCpu, CopiesRows) {
  const std::vector<float> table{0, 1, 10, 11, 20, 21};
  const std::vector<std::int32_t> ids{2, 0, 2};
  std::vector<float> out(6);
  run_cpu(Embedding{ids.data(), table.data(), out.data(), 3, 2});
  EXPECT_EQ(out, (std::vector<float>{20, 21, 0, 1, 20, 21}));
}

TEST(SiluMulCpu, MatchesTheFormula) {
  for (const std::int64_t width : {1, 15, 16, 17}) {
    std::vector<float> gate = wave(3 * width, 0.9F), up = wave(3 * width, 0.4F), out(gate.size());
    gate[0] = -100.0F;  // exp(100) overflows: the product is 0
    run_cpu(SiluMul{gate.data(), up.data(), out.data(), 3, width});
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_TRUE(std::isfinite(out[i]));
      EXPECT_NEAR(out[i], gate[i] / (1.0 + std::exp(-double{gate[i]})) * up[i], 3e-7);
    }
  }
}

// Lengths around Eigen's packets of 4, 8 and 16 floats.
TEST(RmsNormCpu, MatchesTheFormulaInDouble) {
  for (const std::int64_t width : {1, 15, 16, 17, 384}) {
    for (const std::int64_t tokens : {0, 1, 3}) {
      const std::vector<float> in = wave(tokens * width, 1.0F), before = wave(tokens * width, 3.0F);
      std::vector<float> residual = before, weight(static_cast<std::size_t>(width)), out(in.size());
      for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = 1.0F + 0.1F * static_cast<float>(i % 7);
      run_cpu(RmsNorm{in.data(), residual.data(), weight.data(), out.data(), tokens, width, 1e-5F});
      for (std::int64_t t = 0; t < tokens; ++t) {
        double mean_square = 0;
        for (std::int64_t i = 0; i < width; ++i) {
          const std::size_t at = static_cast<std::size_t>(t * width + i);
          EXPECT_EQ(residual[at], in[at] + before[at]);
          mean_square += std::pow(double{residual[at]}, 2) / static_cast<double>(width);
        }
        for (std::int64_t i = 0; i < width; ++i) {
          const std::size_t at = static_cast<std::size_t>(t * width + i);
          // A handful of roundings on values of order 1.
          EXPECT_NEAR(out[at], residual[at] / std::sqrt(mean_square + 1e-5) * weight[static_cast<std::size_t>(i)],
                      1e-6 * weight[static_cast<std::size_t>(i)] * 4);
        }
      }
    }
  }
}

TEST(RmsNormCpu, WithoutResidualAndInPlace) {
  std::vector<float> x{3, 4};
  const std::vector<float> weight{1, 2};
  const RmsNorm a{x.data(), nullptr, weight.data(), x.data(), 1, 2, 0.0F};
  run_cpu(a);
  const float rms = std::sqrt(12.5F);
  EXPECT_FLOAT_EQ(x[0], 3 / rms);
  EXPECT_FLOAT_EQ(x[1], 8 / rms);
  EXPECT_EQ(bytes(shape(a)), (2 * 1 + 1) * 2 * 4);
}

TEST(RopeCpu, TurnsChannelPairsHalfAHeadApart) {
  // One token, two heads of four channels; the first pair turns by 90 degrees, the second not at all.
  std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> cos{0, 1}, sin{1, 0};
  run_cpu(Rope{x.data(), x.data(), cos.data(), sin.data(), nullptr, nullptr, 1, 2, 4});
  EXPECT_EQ(x, (std::vector<float>{-3, 2, 1, 4, -7, 6, 5, 8}));
}

struct Attention {
  std::int64_t new_tokens, kv_before, q_heads, kv_heads, head_dim, window = 0;
};

std::vector<float> attend(const Attention& s, const float* q, const std::vector<float>& k, const std::vector<float>& v) {
  std::vector<float> out(static_cast<std::size_t>(s.new_tokens * s.q_heads * s.head_dim));
  AttentionPrefill a{q,           k.data(),  v.data(),   out.data(), nullptr, s.new_tokens,
                     s.kv_before, s.q_heads, s.kv_heads, s.head_dim, 0.5F,    s.window};
  std::vector<float> scratch(static_cast<std::size_t>(scratch_floats(a)));
  a.scratch = scratch.data();
  run_cpu(a);
  return out;
}

// Plain softmax over the visible keys, in double: all up to the query's own, or the last `window` of them.
double reference(const Attention& s, const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v, std::int64_t t,
                 std::int64_t head, std::int64_t channel) {
  const std::int64_t kv_head = head / (s.q_heads / s.kv_heads), d = s.head_dim;
  const std::int64_t position = s.kv_before + t, begin = s.window == 0 ? 0 : std::max<std::int64_t>(0, position - s.window + 1);
  std::vector<double> p;
  for (std::int64_t j = begin; j <= position; ++j)
    p.push_back(0.5 * plain_dot(q.data() + (t * s.q_heads + head) * d, k.data() + (j * s.kv_heads + kv_head) * d, d));
  plain_softmax(p);
  double sum = 0;
  for (std::int64_t j = begin; j <= position; ++j) sum += nth(p, j - begin) * nth(v, (j * s.kv_heads + kv_head) * d + channel);
  return sum;
}

class AttentionPrefillCpu : public testing::TestWithParam<Attention> {};

TEST_P(AttentionPrefillCpu, MatchesPlainSoftmax) {
  const Attention s = GetParam();
  const std::int64_t total = s.kv_before + s.new_tokens;
  const std::vector<float> q = wave(s.new_tokens * s.q_heads * s.head_dim, 0.3F), k = wave(total * s.kv_heads * s.head_dim, 1.1F),
                           v = wave(total * s.kv_heads * s.head_dim, 0.23F);
  const std::vector<float> out = attend(s, q.data(), k, v);
  for (std::int64_t t = 0; t < s.new_tokens; ++t)
    for (std::int64_t h = 0; h < s.q_heads; ++h)
      for (std::int64_t c = 0; c < s.head_dim; ++c)
        ASSERT_NEAR(out[static_cast<std::size_t>((t * s.q_heads + h) * s.head_dim + c)], reference(s, q, k, v, t, h, c), 2e-6)
            << "token " << t << " head " << h << " channel " << c;  // a mean of values of at most 1
}

// Blocks of 128 query rows, tiles of 256 keys: one below, at and above both.
INSTANTIATE_TEST_SUITE_P(Sizes, AttentionPrefillCpu,
                         testing::Values(Attention{0, 3, 2, 1, 4}, Attention{1, 0, 1, 1, 1}, Attention{1, 255, 4, 2, 8},
                                         Attention{1, 256, 8, 2, 5}, Attention{31, 0, 4, 1, 4}, Attention{32, 0, 4, 1, 4},
                                         Attention{33, 0, 4, 1, 4}, Attention{127, 129, 2, 2, 3}, Attention{129, 128, 3, 3, 2},
                                         Attention{257, 3, 2, 1, 4}, Attention{5, 700, 1, 1, 16}, Attention{2, 1, 200, 1, 2}));

// Windows of one key, within a tile, of a tile and one more, over several tiles, as long as everything and longer.
INSTANTIATE_TEST_SUITE_P(Windows, AttentionPrefillCpu,
                         testing::Values(Attention{40, 0, 2, 1, 4, 1}, Attention{1, 300, 2, 1, 4, 1}, Attention{130, 20, 4, 2, 4, 16},
                                         Attention{260, 300, 2, 1, 3, 256}, Attention{129, 700, 2, 2, 3, 257},
                                         Attention{300, 400, 1, 1, 4, 513}, Attention{70, 30, 2, 1, 4, 99}, Attention{70, 30, 2, 1, 4, 100},
                                         Attention{70, 30, 2, 1, 4, 5000}));

// Tiles outside of the window are not read: what is no number there does not reach the result.
TEST(AttentionPrefillCpuRange, KeysBeforeTheWindowAreNotTouched) {
  const Attention s{3, 1000, 1, 1, 1, 20};
  std::vector<float> k(1003, 1.0F), v(1003, 2.0F);
  std::fill_n(k.begin(), 980, NAN);
  std::fill_n(v.begin(), 980, NAN);
  const std::vector<float> q(3, 1.0F);
  EXPECT_EQ(attend(s, q.data(), k, v), (std::vector<float>{2, 2, 2}));
}

TEST(AttentionPrefillCpuRange, LargeScoresInLaterTilesDoNotOverflow) {
  const Attention s{1, 299, 1, 1, 1};
  std::vector<float> k(300, 0.0F), v(300, 1.0F);
  k[290] = 400.0F;  // in the second tile: score 200
  v[290] = 5.0F;
  const float q = 1.0F;
  EXPECT_FLOAT_EQ(attend(s, &q, k, v)[0], 5.0F);
}

// The address of a buffer must not change a bit: traces are recorded to the same bytes every time.
TEST(CpuKernels, ResultsDoNotDependOnAddresses) {
  const Attention s{40, 20, 4, 2, 8};
  const std::vector<float> k = wave(60 * 16, 1.1F), v = wave(60 * 16, 0.23F);
  std::vector<float> q = wave(40 * 32, 0.3F), moved(q.size() + 1), norm(q.size()), norm_moved(q.size() + 1), silu(q.size()),
                     silu_moved(q.size() + 1);
  std::copy(q.begin(), q.end(), moved.begin() + 1);
  EXPECT_EQ(attend(s, q.data(), k, v), attend(s, moved.data() + 1, k, v));
  run_cpu(RmsNorm{q.data(), nullptr, k.data(), norm.data(), 40, 32, 1e-5F});
  run_cpu(RmsNorm{moved.data() + 1, nullptr, k.data(), norm_moved.data() + 1, 40, 32, 1e-5F});
  EXPECT_EQ(std::memcmp(norm.data(), norm_moved.data() + 1, norm.size() * sizeof(float)), 0);
  run_cpu(SiluMul{q.data(), q.data(), silu.data(), 40, 31});
  run_cpu(SiluMul{moved.data() + 1, moved.data() + 1, silu_moved.data() + 1, 40, 31});
  EXPECT_EQ(std::memcmp(silu.data(), silu_moved.data() + 1, 40 * 31 * sizeof(float)), 0);
}

}  // namespace
}  // namespace kvlab
