#include <gtest/gtest.h>

#include <cmath>

#include "kernels/storage/quantize/quantize.h"
#include "tests/kv/disposal_fixture.h"

namespace kvlab::test {
namespace {

// Encoded and decoded in two halves.
std::vector<float> through_codes(const std::vector<float>& x, std::int32_t bits) {
  GroupCodec codec;
  codec.bits = bits;
  std::vector<float> out(x.size());
  const std::size_t half = x.size() / 2;
  for (const std::size_t at : {std::size_t{0}, half}) {
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(group_bytes(codec, static_cast<std::int64_t>(half))));
    encode_group(codec, x.data() + at, static_cast<std::int64_t>(half), packed.data());
    decode_group(codec, packed.data(), static_cast<std::int64_t>(half), out.data() + at);
  }
  return out;
}

std::vector<float> copy(const float* x, std::int32_t n) { return {x, x + n}; }

TEST(LowPrecision, EncodesEachDroppedTokenOnce) {
  RandomLayer layer({1, 2, 1, 8, 16}, 1, 5, 3, 1), before({1, 2, 1, 8, 16}, 1, 5, 3, 1);
  auto disposal = make_part<DisposalRegistry>("low_precision", "{bits: 2, balance: false}");
  LayerStep step = layer.prompt_step(1);
  const KvRows was = before.store.rows();
  disposal->observe(step);
  disposal->dispose(step, KeptLists({{1, 3, 4}}).kept());
  const auto first = copy(step.kv.key(0, 0), 8);
  EXPECT_EQ(first, through_codes(copy(was.key(0, 0), 8), 2));
  EXPECT_EQ(copy(step.kv.value(0, 2), 8), through_codes(copy(was.value(0, 2), 8), 2));
  for (const std::int32_t i : {1, 3, 4}) EXPECT_EQ(copy(step.kv.key(0, i), 8), copy(was.key(0, i), 8));
  disposal->dispose(step, KeptLists({{3, 4}}).kept());  // one more
  EXPECT_EQ(copy(step.kv.key(0, 0), 8), first);
  EXPECT_EQ(copy(step.kv.key(0, 1), 8), through_codes(copy(was.key(0, 1), 8), 2));
  const std::size_t calls = layer.ops.log().size();
  disposal->dispose(step, KeptLists({{3, 4}}).kept());
  for (std::size_t i = calls; i < layer.ops.log().size(); ++i) EXPECT_NE(layer.ops.log()[i].op, "quantize");
  EXPECT_EQ(step.kv.len[0], 5);
}

// No way back: a demoted token ranks last from then on, unless it is protected.
TEST(LowPrecision, DemotedTokensRankLast) {
  RandomLayer layer({1, 2, 1, 8, 16}, 1, 4, 3, 1);
  auto disposal = make_part<DisposalRegistry>("low_precision");
  LayerStep step = layer.prompt_step(1);
  disposal->observe(step);
  disposal->dispose(step, KeptLists({{1, 3}}).kept());
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> scores = {9, 1, infinity, 2};
  disposal->rank(step, scores.data());
  EXPECT_EQ(scores, (std::vector<float>{-infinity, 1, infinity, 2}));
}

// Errors are within half a step of what balancing makes of each key: k b with b = sqrt(max |q| / max |k|), in halves of a head.
TEST(LowPrecision, BalancesKeysAgainstQueries) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    const ModelShape shape{1, group, 1, 8, 16};
    RandomLayer layer(shape, 1, 20, 3, 1), before(shape, 1, 20, 3, 1);
    auto disposal = make_part<DisposalRegistry>("low_precision", "{bits: 4}");
    LayerStep step = layer.prompt_step(1);
    disposal->observe(step);
    disposal->dispose(step, KeptLists({{19}}).kept());
    const KvRows was = before.store.rows();
    std::vector<double> b(8);
    for (std::size_t c = 0; c < 8; ++c) {
      double q = 0, k = 0;
      for (std::size_t i = 0; i < 20; ++i) k = std::max(k, std::fabs(double{layer.k[0][i * 8 + c]}));
      for (std::size_t i = 0; i < 20 * static_cast<std::size_t>(group); ++i) q = std::max(q, std::fabs(double{layer.q[0][i * 8 + c]}));
      b[c] = std::sqrt(q / k);
    }
    double total = 0;
    for (std::int32_t i = 0; i < 19; ++i)
      for (const std::size_t half : {std::size_t{0}, std::size_t{4}}) {
        double low = 1e9, high = -1e9;
        for (std::size_t c = half; c < half + 4; ++c) {
          const double x = double{was.key(0, i)[c]} * b[c];
          low = std::min(low, x), high = std::max(high, x);
        }
        for (std::size_t c = half; c < half + 4; ++c) {
          const double error = std::fabs(double{step.kv.key(0, i)[c]} - double{was.key(0, i)[c]}) * b[c];
          EXPECT_LE(error, 0.51 * (high - low) / 15 + 2e-3) << group;
          total += error;
        }
      }
    EXPECT_GT(total, 0.1);
  }
}

// The paper's figure: a third of the full cache with a fifth of the tokens in fp16, the others in 2 bits, head of 128, groups of 64.
TEST(LowPrecision, TakesTheMemoryThatThePaperSays) {
  RandomLayer layer({1, 1, 1, 128, 16}, 1, 1000, 3, 1, false);
  auto disposal = make_part<DisposalRegistry>("low_precision", "{balance: false}");
  const auto format = make_part<FormatRegistry>("native");
  std::vector<std::int32_t> fifth(200);
  LayerStep step = layer.prompt_step(1);
  disposal->observe(step);
  disposal->dispose(step, KeptLists({fifth}).shapes());
  const std::int64_t full = format->row_bytes(layer.model, 0, 1000);
  const std::int64_t held = disposal->resident(layer.model, 0, layer.seqs, step.kv, *format, {full}).gpu;
  EXPECT_EQ(held, 200 * 512 + 800 * 2 * (2 * (4 + 16)));
  EXPECT_NEAR(static_cast<double>(held) / static_cast<double>(full), 0.33, 0.01);
  std::vector<Segment> segments(1);
  segments[0].kv = step.kv;
  disposal->add_segments(step, segments);
  EXPECT_EQ(segments[0].read_bytes, held);
  disposal->forget(0);
  EXPECT_EQ(disposal->resident(layer.model, 0, layer.seqs, step.kv, *format, {full}).gpu, full);
}

}  // namespace
}  // namespace kvlab::test
