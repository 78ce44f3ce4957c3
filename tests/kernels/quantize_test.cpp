#include "kernels/storage/quantize/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/half.h"
#include "kernels/select/unit_lists_op.h"
#include "kernels/storage/cast/cast.h"
#include "kernels/storage/take_due_op.h"
#include "tests/kernels/paged_rows.h"
#include "tests/kv/plain_math.h"

namespace kvlab {
namespace {

struct Rows : ListedRows {
  Rows(std::int32_t heads, std::int32_t head_dim, std::int32_t tokens)
      : ListedRows(heads, head_dim, drawn_normals(tokens * heads * head_dim, 11, 1, 0.5F),
                   drawn_normals(tokens * heads * head_dim, 11, 2)) {}
};

void encode(const ListedTokens& tokens, const GroupCodec& codec, std::uint8_t* packed, Quantize::Mode mode) {
  run_cpu(Quantize{tokens, codec, nullptr, nullptr, packed, mode});
}
std::vector<std::uint8_t> encoded(const ListedTokens& tokens, const GroupCodec& codec) {
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(packed_bytes(tokens, codec)));
  run_cpu(Quantize{tokens, codec, nullptr, nullptr, packed.data()});
  return packed;
}
// The tokens become what comes back from their codes.
void decode_in_place(const ListedTokens& tokens, const GroupCodec& codec) {
  std::vector<std::uint8_t> packed = encoded(tokens, codec);
  encode(tokens, codec, packed.data(), Quantize::Mode::kWrite);
}

// Codes and numbers decoded bit by bit, as the layout in group_codec.h says.
std::vector<double> plain_decode(const std::uint8_t* packed, std::int32_t n, std::int32_t bits) {
  std::uint16_t zero = 0, scale = 0;
  std::memcpy(&zero, packed, 2);
  std::memcpy(&scale, packed + 2, 2);
  std::vector<double> x;
  for (std::int32_t i = 0; i < n; ++i) {
    std::int32_t code = 0;
    for (std::int32_t b = 0; b < bits; ++b) code |= (packed[4 + (i * bits + b) / 8] >> ((i * bits + b) % 8) & 1) << b;
    x.push_back(double{half_to_float(zero)} + double{half_to_float(scale)} * code);
  }
  return x;
}

// Codes of a group, and what comes back.
struct Group {
  Group(const GroupCodec& codec, const std::vector<float>& x) : back(x.size(), -99.0F) {
    const auto n = static_cast<std::int32_t>(x.size());
    packed.resize(static_cast<std::size_t>(group_bytes(codec, n)));
    encode_group(codec, x.data(), n, packed.data());
    decode_group(codec, packed.data(), n, back.data());
  }
  std::vector<std::uint8_t> packed;
  std::vector<float> back;
};

TEST(GroupCodec, HandComputedCodes) {
  const Group g({GroupCodec::Axis::kToken, 2, 0, false}, {-1.0F, 0.0F, 0.4F, 1.0F, 2.0F});  // step 1
  ASSERT_EQ(g.packed.size(), 6U);
  EXPECT_EQ(g.packed[4], 0 | 1 << 2 | 1 << 4 | 2 << 6);
  EXPECT_EQ(g.packed[5], 3);
  EXPECT_EQ(g.back, (std::vector<float>{-1.0F, 0.0F, 0.0F, 1.0F, 2.0F}));
}

TEST(GroupCodec, SymmetricCodesKeepZeroAndSign) {
  const Group g({GroupCodec::Axis::kToken, 4, 0, true}, {-7.0F, 0.0F, 3.2F, 7.0F});
  EXPECT_EQ(g.packed.size(), 4U);
  EXPECT_EQ(g.back, (std::vector<float>{-7.0F, 0.0F, 3.0F, 7.0F}));
}

TEST(GroupCodec, ConstantGroupsComeBackExactly) {
  for (const bool symmetric : {false, true})
    for (const float value : {0.0F, 2.5F, -1.25F, 65504.0F})
      for (const float b : Group({GroupCodec::Axis::kToken, 3, 0, symmetric}, std::vector<float>(7, value)).back)
        EXPECT_NEAR(b, value, symmetric ? std::fabs(value) * 1e-3F : 0.0F);
}

TEST(GroupCodec, NeverStoresNanOrInfinity) {
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool symmetric : {false, true})
    for (const auto& x : std::vector<std::vector<float>>{
             {nan, nan, nan}, {nan, 1.0F, 2.0F}, {inf, 1.0F, -inf}, {1e30F, -1e30F, 1e-40F}, {1e-9F, 2e-9F, 3e-9F}})
      for (const float b : Group({GroupCodec::Axis::kToken, 4, 0, symmetric}, x).back) EXPECT_TRUE(std::isfinite(b));
}

TEST(Quantize, ErrorIsAtMostHalfAStepAndFallsWithBits) {
  for (const auto axis : {GroupCodec::Axis::kToken, GroupCodec::Axis::kChannel}) {
    for (const std::int32_t tokens : {0, 1, 31, 32, 33, 65}) {
      double before = std::numeric_limits<double>::infinity();
      for (const std::int32_t bits : {1, 2, 3, 4, 5, 8}) {
        Rows rows(2, 20, tokens);
        const GroupCodec codec{axis, bits, axis == GroupCodec::Axis::kToken ? 8 : 32, false};
        decode_in_place(rows.listed, codec);
        double total = 0;
        const KvRows& kv = rows.listed.kv;
        for (std::int32_t r = 0; r < 2; ++r) {
          for_each_group(codec, tokens, 20, [&](std::int32_t t, std::int32_t count, std::int32_t c, std::int32_t width, std::int64_t) {
            float least = 1e9F, most = -1e9F, worst = 0;
            for (std::int32_t i = 0; i < count; ++i)
              for (std::int32_t j = 0; j < width; ++j) {
                const float x = rows.k[static_cast<std::size_t>(((t + i) * 2 + r) * 20 + c + j)];
                least = std::min(least, x), most = std::max(most, x);
                worst = std::max(worst, std::fabs(x - kv.key(r, t + i)[c + j]));
                total += std::fabs(x - kv.key(r, t + i)[c + j]);
              }
            // Half a step of the exact range, which rounding zero and scale outwards to fp16 widens by at most 2^-10 of the largest number.
            const float levels = static_cast<float>((1 << bits) - 1), largest = std::max(std::fabs(least), std::fabs(most));
            EXPECT_LE(worst, 0.5F * ((most - least) / levels * 1.001F + largest * 0.001F / levels) + 1e-5F);
          });
        }
        if (tokens > 1) {
          EXPECT_LT(total, before);
        }
        before = total;
      }
    }
  }
}

TEST(Quantize, PackedSizeIsExact) {
  // Per token, 4 bits, whole head: 4 bytes of zero and scale and 64 of codes; 4.25 bits per element.
  EXPECT_EQ(packed_bytes({GroupCodec::Axis::kToken, 4, 0, false}, 10, 128), 10 * 68);
  // Two bits in groups of 32: 3 bits per element (KIVI).
  EXPECT_EQ(packed_bytes({GroupCodec::Axis::kChannel, 2, 32, false}, 64, 128), 64 * 128 * 3 / 8);
  EXPECT_EQ(packed_bytes({GroupCodec::Axis::kToken, 2, 32, false}, 64, 128), 64 * 128 * 3 / 8);
  // 33 tokens: the last group of each channel has one code in a byte of its own.
  EXPECT_EQ(packed_bytes({GroupCodec::Axis::kChannel, 2, 32, false}, 33, 5), 5 * (12 + 5));
  EXPECT_EQ(packed_bytes({GroupCodec::Axis::kToken, 3, 0, true}, 3, 20), 3 * (2 + 8));
  EXPECT_EQ(packed_bytes({GroupCodec::Axis::kChannel, 2, 32, false}, 0, 5), 0);
  for (const std::int32_t tokens : {1, 31, 32, 33}) {  // the bytes that are written, and nothing after them
    Rows rows(3, 5, tokens);
    const GroupCodec codec{GroupCodec::Axis::kChannel, 3, 32, false};
    const auto bytes = static_cast<std::size_t>(packed_bytes(rows.listed, codec));
    EXPECT_EQ(bytes, 3 * static_cast<std::size_t>(packed_bytes(codec, tokens, 5)));
    std::vector<std::uint8_t> packed(bytes + 8, 0xa5);
    run_cpu(Quantize{rows.listed, codec, nullptr, nullptr, packed.data()});
    for (std::size_t i = bytes; i < packed.size(); ++i) EXPECT_EQ(packed[i], 0xa5);
  }
}

TEST(Quantize, ChannelScalesHelpOutlierChannels) {
  double plain = 0, scaled = 0;
  for (const bool with_scale : {false, true}) {
    Rows rows(1, 16, 40);
    for (std::int32_t i = 0; i < 40; ++i) rows.listed.kv.key(0, i)[3] *= 50.0F;
    std::vector<float> original(rows.listed.kv.k, rows.listed.kv.k + 40 * 16), scale(32, 1.0F);
    scale[16 + 3] = 50.0F;  // line 1 is row 0's
    const std::int32_t scale_row[] = {1};
    const GroupCodec codec{GroupCodec::Axis::kToken, 4, 0, false};
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(packed_bytes(rows.listed, codec)));
    run_cpu(Quantize{rows.listed, codec, scale.data(), with_scale ? scale_row : nullptr, packed.data()});
    run_cpu(Quantize{rows.listed, codec, scale.data(), with_scale ? scale_row : nullptr, packed.data(), Quantize::Mode::kWrite});
    for (std::int32_t i = 0; i < 40 * 16; ++i)
      if (i % 16 != 3) (with_scale ? scaled : plain) += std::fabs(rows.listed.kv.k[i] - original[static_cast<std::size_t>(i)]);
  }
  EXPECT_LT(scaled * 10, plain);
}

TEST(Quantize, EntriesWithoutTokenChangeNothing) {
  for (const auto axis : {GroupCodec::Axis::kToken, GroupCodec::Axis::kChannel}) {
    Rows rows(1, 8, 40), short_list(1, 8, 40);
    for (std::int32_t i = 30; i < 40; ++i) rows.index[static_cast<std::size_t>(i)] = -1;
    short_list.first[1] = 30;
    const GroupCodec codec{axis, 4, 8, false};
    for (const Rows* x : {&rows, &short_list}) decode_in_place(x->listed, codec);
    EXPECT_EQ(0, std::memcmp(rows.listed.kv.k, short_list.listed.kv.k, 40 * 8 * sizeof(float)));
  }
}

TEST(Quantize, SubtractAndAddRestore) {
  Rows rows(2, 8, 9);
  const GroupCodec codec{GroupCodec::Axis::kToken, 2, 0, false};
  const ListedTokens values = rows.listed.of_values();
  std::vector<std::uint8_t> packed = encoded(values, codec);
  encode(values, codec, packed.data(), Quantize::Mode::kSubtract);
  EXPECT_GT(std::fabs(values.at(0, 0)[0] - rows.v[0]), 1e-3F);
  encode(values, codec, packed.data(), Quantize::Mode::kAdd);
  for (std::int32_t i = 0; i < 9; ++i)
    for (std::int32_t c = 0; c < 8; ++c) EXPECT_NEAR(values.at(1, i)[c], rows.v[static_cast<std::size_t>((i * 2 + 1) * 8 + c)], 1e-5F);
}

// As a kernel finds them that reads codes on the way: keys by block, channel and token, values by token and group of channels.
TEST(Quantize, DecodedRowsAreThoseOfTheCodes) {
  constexpr std::int32_t d = 16, n = 37, bits = 3;
  Rows rows(1, d, n);
  const ListedTokens keys = rows.listed, values = keys.of_values();
  const GroupCodec k_codec{GroupCodec::Axis::kChannel, bits, 8, false}, v_codec{GroupCodec::Axis::kToken, bits, 8, false};
  std::vector<std::uint8_t> k_packed = encoded(keys, k_codec), v_packed = encoded(values, v_codec);
  encode(keys, k_codec, k_packed.data(), Quantize::Mode::kWrite);
  encode(values, v_codec, v_packed.data(), Quantize::Mode::kWrite);
  const std::int32_t group_bytes = 4 + 3;  // of 8 numbers
  for (std::int32_t i = 0; i < n; ++i)
    for (std::int32_t c = 0; c < d; ++c) {
      const std::int32_t block = i / 8, in_block = std::min(8, n - block * 8);
      const std::uint8_t* const of_key = k_packed.data() + block * d * group_bytes + c * (4 + (in_block * bits + 7) / 8);
      const std::uint8_t* const of_value = v_packed.data() + (2 * i + c / 8) * group_bytes;
      EXPECT_NEAR(keys.at(0, i)[c], nth(plain_decode(of_key, in_block, bits), i % 8), 1e-6);
      EXPECT_NEAR(values.at(0, i)[c], nth(plain_decode(of_value, 8, bits), c % 8), 1e-6);
    }
}

TEST(Cast, Fp8HandComputedValues) {
  EXPECT_EQ(to_stored(StoredType::kFp8E4M3, 1.0F), 0x38U);
  EXPECT_EQ(to_stored(StoredType::kFp8E4M3, -448.0F), 0xfeU);
  EXPECT_EQ(to_stored(StoredType::kFp8E4M3, 1e9F), 0x7eU);
  EXPECT_EQ(to_stored(StoredType::kFp8E4M3, 0x1p-9F), 0x01U);   // the smallest subnormal
  EXPECT_EQ(to_stored(StoredType::kFp8E4M3, 0x1p-10F), 0x00U);  // a tie goes to the even 0
  EXPECT_EQ(to_stored(StoredType::kFp8E4M3, 0x1.8p-10F), 0x01U);
  EXPECT_EQ(to_stored(StoredType::kFp8E4M3, 0x1p-6F), 0x08U);  // the smallest normal
  EXPECT_EQ(to_stored(StoredType::kFp8E4M3, 17.0F), 0x58U);    // between 16 and 18, to the even fraction
  EXPECT_EQ(to_stored(StoredType::kFp8E4M3, 15.6F), 0x58U);    // rounding carries into the exponent
  EXPECT_EQ(to_stored(StoredType::kFp8E4M3, 0.0F), 0x00U);
  EXPECT_EQ(to_stored(StoredType::kFp8E5M2, 1.0F), 0x3cU);
  EXPECT_EQ(to_stored(StoredType::kFp8E5M2, 57344.0F), 0x7bU);
  EXPECT_EQ(to_stored(StoredType::kFp8E5M2, std::numeric_limits<float>::infinity()), 0x7bU);
  EXPECT_EQ(from_stored(StoredType::kFp8E4M3, to_stored(StoredType::kFp8E4M3, std::numeric_limits<float>::quiet_NaN())), 0.0F);
}

TEST(Cast, EveryStoredNumberComesBackAsItself) {
  for (const StoredType type : {StoredType::kFp16, StoredType::kBf16, StoredType::kFp8E4M3, StoredType::kFp8E5M2}) {
    const std::uint32_t count = bytes_of(type) == 1 ? 256 : 65536;
    for (std::uint32_t bits = 0; bits < count; ++bits) {
      // Codes of NaN and infinity, which are never written.
      if (type == StoredType::kFp8E4M3 && (bits & 0x7fU) == 0x7fU) continue;
      if (type == StoredType::kFp8E5M2 && (bits & 0x7cU) == 0x7cU) continue;
      const float x = from_stored(type, bits);
      if (!std::isfinite(x)) continue;
      EXPECT_EQ(to_stored(type, x), bits);
    }
  }
}

TEST(Cast, UnpackingFillsWhatCastLeft) {
  for (const StoredType type : {StoredType::kFp32, StoredType::kFp16, StoredType::kBf16, StoredType::kFp8E4M3, StoredType::kFp8E5M2}) {
    Rows rows(2, 8, 33);
    std::vector<std::uint8_t> stored(static_cast<std::size_t>(2 * 33 * 8 * bytes_of(type)));
    run_cpu(Cast{rows.listed, type, stored.data()});
    std::vector<float> expected;
    for (std::int32_t r = 0; r < 2; ++r) {
      for (std::int32_t i = 0; i < 33; ++i) {
        float* const x = rows.listed.at(r, i);
        expected.insert(expected.end(), x, x + 8);
        std::fill_n(x, 8, 99.0F);
      }
    }
    run_cpu(Cast{rows.listed, type, stored.data(), true});
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(rows.listed.at(static_cast<std::int32_t>(i) / (33 * 8), static_cast<std::int32_t>(i) / 8 % 33)[i % 8], expected[i]);
  }
}

TEST(Cast, RelativeErrorIsHalfAUnit) {
  const std::pair<StoredType, float> units[] = {{StoredType::kFp32, 0.0F},
                                                {StoredType::kFp16, 0x1p-11F},
                                                {StoredType::kBf16, 0x1p-8F},
                                                {StoredType::kFp8E4M3, 0x1p-4F},
                                                {StoredType::kFp8E5M2, 0x1p-3F}};
  for (const auto& [type, unit] : units) {
    Rows rows(2, 8, 33);
    std::vector<std::uint8_t> stored(static_cast<std::size_t>(2 * 33 * 8 * bytes_of(type)));
    run_cpu(Cast{rows.listed.of_values(), type, stored.data()});
    for (std::int32_t i = 0; i < 33; ++i) {
      for (std::int32_t c = 0; c < 8; ++c) {
        const float x = rows.v[static_cast<std::size_t>(i * 2 * 8 + c)];
        EXPECT_NEAR(rows.listed.kv.value(0, i)[c], x,
                    std::fabs(x) * unit + 0x1p-10F * (unit > 0x1p-5F ? 1.0F : 0x1p-15F) * (unit > 0 ? 1.0F : 0.0F));
        EXPECT_EQ(rows.listed.kv.key(0, i)[c], rows.k[static_cast<std::size_t>(i * 2 * 8 + c)]);
      }
    }
  }
}

TEST(TakeDue, OldestUnmarkedTokensInWholeBlocks) {
  Rows rows(1, 4, 20);
  const KvRows& kv = rows.listed.kv;
  for (const std::int32_t i : {0, 1, 2, 5}) kv.word(0, 0, i) = 2;
  const std::int64_t first[] = {0, 12};
  std::vector<std::int32_t> index(12, 7);
  run_cpu(TakeDue{kv, 0, 2, 5, 4, first, index.data()});  // 16 unmarked, 11 beyond the residual, 8 in whole blocks
  EXPECT_EQ(index, (std::vector<std::int32_t>{3, 4, 6, 7, 8, 9, 10, 11, -1, -1, -1, -1}));
  for (std::int32_t i = 0; i < 20; ++i) EXPECT_EQ(kv.word(0, 0, i), i < 12 ? 2U : 0U);
  run_cpu(TakeDue{kv, 0, 1, 0, 1, first, index.data()});  // another mark; no more than the list has room for
  EXPECT_EQ(index.front(), 0);
  EXPECT_EQ(index.back(), 11);
}

TEST(SelectUnits, HighestScoresInTheListsOrder) {
  const std::int64_t first[] = {0, 6}, row_first[] = {0, 9}, high_first[] = {0, 3};
  const std::int32_t index[] = {1, 3, 4, 6, 8, -1};
  const float scores[] = {9, 2, 9, 5, 5, 9, 7, 9, 5};
  std::vector<std::int32_t> high(3), low(3);
  SelectUnits split{1, 1, SelectUnits::Kind::kSplit, {first, index}, row_first, scores};
  split.first = high_first, split.unit = high.data(), split.rest = low.data();
  run_cpu(split);
  EXPECT_EQ(high, (std::vector<std::int32_t>{3, 4, 6}));  // of the three fives the two earlier
  EXPECT_EQ(low, (std::vector<std::int32_t>{1, 8, -1}));
}

}  // namespace
}  // namespace kvlab
