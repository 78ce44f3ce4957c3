#include "kernels/storage/quantize/quantize.h"

#include "tests/cuda/rows_fixture.h"

namespace kvlab {
namespace {

using Axis = GroupCodec::Axis;

// Lists of tokens, ascending, in part with entries at the end that name no token.
struct Lists {
  Lists(const std::vector<std::int32_t>& lengths, bool all, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (const std::int32_t n : lengths) {
      for (std::int32_t i = 0; i < n; ++i)
        if (all || random() % 3 != 0) index.push_back(i);
      for (std::uint64_t i = 0; !all && i < random() % 4; ++i) index.push_back(-1);
      first.push_back(static_cast<std::int64_t>(index.size()));
    }
  }
  std::vector<std::int64_t> first{0};
  std::vector<std::int32_t> index;
};

struct Case {
  std::int32_t head_dim = 64;
  std::vector<std::int32_t> lengths;
  bool all = true, values = false, scaled = false;
  float deviation = 1.0F;
};

class QuantizeCuda : public CudaTest {
 protected:
  // Same bytes as the CPU version, and from the same bytes the same numbers, rounded once to T.
  template <class T>
  void check(const GroupCodec& codec, const Case& c, std::uint64_t seed, void (*change)(RowsFixture<T>&) = nullptr) {
    SCOPED_TRACE(testing::Message() << name_of(kElementType<T>) << (codec.axis == Axis::kToken ? " token" : " channel") << " bits "
                                    << codec.bits << " group " << codec.group << (codec.symmetric ? " symmetric" : "") << " head_dim "
                                    << c.head_dim << " rows " << c.lengths.size() << " all " << c.all << " scaled " << c.scaled);
    RowsFixture<T> rows({1, 1, c.head_dim, 16, 0}, c.lengths, seed, c.deviation);
    if (change != nullptr) change(rows), rows.upload();
    const Lists lists(c.lengths, c.all, seed);
    std::vector<float> scales;
    std::vector<std::int32_t> scale_row;
    for (std::size_t r = 0; r < c.lengths.size(); ++r) scale_row.push_back(static_cast<std::int32_t>(r % 2));
    for (std::int32_t i = 0; i < 2 * c.head_dim; ++i) scales.push_back(0.3F + 0.1F * static_cast<float>(i % 7));
    Twice<float> scale(scales);
    Twice<std::int32_t> index(lists.index);
    const auto op = [&](bool gpu, std::uint8_t* packed, Quantize::Mode mode) {
      const ListedTokens listed{rows.at(gpu), lists.first.data(), index.at(gpu), c.values};
      return Quantize{listed, codec, scale.at(gpu), c.scaled ? scale_row.data() : nullptr, packed, mode};
    };
    const std::int64_t bytes = packed_bytes(op(false, nullptr, Quantize::Mode::kEncode).tokens, codec);
    const auto codes = both<std::uint8_t>(bytes, [&](bool gpu, std::uint8_t* out) { return op(gpu, out, Quantize::Mode::kEncode); });
    ASSERT_TRUE(equal(codes));

    Twice<std::uint8_t> packed(codes.expected);
    const std::vector<float> k = rows.k, v = rows.v;
    for (const auto mode : {Quantize::Mode::kWrite, Quantize::Mode::kSubtract, Quantize::Mode::kAdd}) {
      rows.k = k, rows.v = v;
      rows.upload();
      run_both([&](bool gpu) { return op(gpu, packed.at(gpu), mode); });
      expect_rounded<T>(rows.device_keys(cuda()), rows.k);
      expect_rounded<T>(rows.device_values(cuda()), rows.v);
    }
  }

  template <class T>
  static void expect_rounded(const std::vector<float>& got, const std::vector<float>& exact) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      const float expected = to_float(from_float<T>(exact[i]));
      if (std::isnan(expected) ? !std::isnan(got[i]) : got[i] != expected)
        FAIL() << "element " << i << ": " << got[i] << ", not " << expected;
    }
  }
};

TEST_F(QuantizeCuda, GroupsHaveTheCpusBytes) {
  for (const std::int32_t bits : {1, 2, 3, 4, 8})
    for (const std::int32_t group : {8, 32, 64, 0, 24}) {
      const GroupCodec codec{Axis::kToken, bits, group, false};
      check<bf16>(codec, {64, {33, 0, 7}, true, false, false}, 1);
      if (bits > 1) check<f16>({Axis::kToken, bits, group, true}, {64, {5, 40}, false, true, bits == 4}, 2);
    }
  check<float>({Axis::kToken, 4, 32, false}, {64, {129, 1}, false, true, true}, 3);
  check<float>({Axis::kToken, 2, 128, false}, {128, {16, 31}, true, false, true}, 4);
  check<bf16>({Axis::kToken, 4, 0, false}, {256, {9}, true, false, false}, 5);
  check<bf16>({Axis::kToken, 4, 64, true}, {576, {9}, true, false, false}, 6);
  check<bf16>({Axis::kToken, 6, 32, false}, {80, {17}, true, false, true}, 7);
  check<bf16>({Axis::kToken, 4, 16, false}, {96, {140}, true, false, false}, 8);
  check<bf16>({Axis::kToken, 4, 0, false}, {7, {5}, true, false, false}, 9);
  for (const std::int32_t bits : {1, 2, 3, 4, 7, 8})
    for (const std::int32_t group : {32, 64, 128, 0, 40}) {
      check<bf16>({Axis::kChannel, bits, group, false}, {8, {70, 0, 131}, true, false, false}, 11);
      if (bits > 1) check<f16>({Axis::kChannel, bits, group, true}, {16, {65, 40}, false, true, false}, 12);
    }
  for (const std::int32_t tokens : {1, 31, 32, 33, 96, 127, 128, 129}) check<bf16>({Axis::kChannel, 4, 32, false}, {64, {tokens}}, 13);
  check<float>({Axis::kChannel, 2, 64, false}, {128, {129, 1}, false, true, false}, 14);
  check<float>({Axis::kChannel, 4, 0, false}, {130, {300, 20}, true, false, false}, 15);
  check<bf16>({Axis::kChannel, 4, 150, false}, {144, {300, 150}, true, false, false}, 16);
  check<bf16>({Axis::kChannel, 4, 32, false}, {80, {70}, true, false, true}, 17);  // scaled
  check<bf16>({Axis::kChannel, 3, 20, true}, {7, {50}, false, false, false}, 18);  // odd head_dim
  check<bf16>({Axis::kChannel, 4, 96, false}, {64, {200}, true, false, false}, 19);
  check<bf16>({Axis::kChannel, 4, 8, false}, {64, {50}, true, false, false}, 20);
  check<bf16>({Axis::kToken, 4, 32, false}, {64, {0, 0}}, 31);
  check<bf16>({Axis::kChannel, 4, 32, false}, {64, {0}}, 32);
}

// Blocks have fewer threads than the bytes between a group and the next multiple of 16.
TEST_F(QuantizeCuda, NarrowHeadsHaveTheCpusBytes) {
  for (const std::int32_t head_dim : {2, 4, 6})
    for (const std::int32_t bits : {2, 3, 4, 8})
      for (const std::int32_t group : {32, 128, 0}) {
        check<bf16>({Axis::kChannel, bits, group, false}, {head_dim, {33, 1, 100, 64, 7}, true, false, false}, 23);
        check<float>({Axis::kChannel, bits, group, true}, {head_dim, {5, 40, 129}, false, true, false}, 24);
      }
}

// Values out of fp16's range, NaN, zeros of both signs, constant groups.
template <class T>
void put_extremes(RowsFixture<T>& rows) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const float special[] = {1e30F, -1e30F, kInfinity, -kInfinity, kNan, 0.0F, -0.0F, 65504.0F, -65504.0F, 1e-8F, -1e-8F, 70000.0F};
  std::mt19937_64 random(5);
  rows.for_each_token([&](std::int32_t row, std::int32_t token, std::size_t slot) {
    const std::size_t d = rows.k.size() / rows.position.size();
    for (std::size_t c = 0; c < d; ++c) {
      float& x = rows.k[slot * d + c];
      if (row == 0) x = random() % 3 == 0 ? special[random() % 12] : x;
      if (row == 1) x = token % 2 == 0 ? 0.0F : -0.0F;
      if (row == 2) x = special[static_cast<std::size_t>(token / 32 + static_cast<std::int32_t>(c / 32)) % 12];
      if (row == 3) x = 2.5F;
      x = to_float(from_float<T>(x));
    }
  });
}

TEST_F(QuantizeCuda, ExtremesHaveTheCpusBytes) {
  for (const std::int32_t bits : {1, 2, 4, 5, 8})
    for (const Axis axis : {Axis::kToken, Axis::kChannel})
      for (const std::int32_t group : {32, 0}) {
        const Case c{64, {40, 33, 70, 20}, true, false, false};
        check<bf16>({axis, bits, group, false}, c, 21, put_extremes<bf16>);
        if (bits > 1) check<float>({axis, bits, group, true}, c, 22, put_extremes<float>);
      }
}

}  // namespace
}  // namespace kvlab
