#include <gmock/gmock.h>

#include "base/error.h"
#include "tests/error_of.h"
#include "tests/kv/format_fixture.h"

namespace kvlab::test {
namespace {

constexpr ModelShape kGroupedShape{1, 4, 2, 64, 128};

TEST(Kivi, KeysInBlocksValuesTokenByToken) {
  // Prompt of 21: K 16 in two blocks of 8, V 13 beyond the last 8. Two tokens later 7 wait.
  FormatRun run("kivi", "{bits: 2, group_tokens: 4, residual_tokens: 8}", kGroupedShape, 21, 0);
  for (const auto& [keys, values] : {std::pair{16, 13}, {16, 14}, {16, 15}, {24, 16}}) {
    EXPECT_EQ(run.changed_keys(0), keys);
    EXPECT_EQ(run.changed_keys(1), keys);
    EXPECT_EQ(run.changed_values(0), values);
    EXPECT_EQ(run.changed_values(1), values);
    run.step(1);
  }
}

TEST(Kivi, AGroupOfKeysIsOneChannelOfConsecutiveTokens) {
  FormatRun run("kivi", "{bits: 2, group_tokens: 4, residual_tokens: 4}", kGroupedShape, 8, 0);
  for (std::int32_t c = 0; c < 64; ++c) {
    for (std::int32_t block = 0; block < 8; block += 4) {
      float least = 1e9F, most = -1e9F;
      for (std::int32_t i = block; i < block + 4; ++i)
        least = std::min(least, run.k[run.place(1, i, c)]), most = std::max(most, run.k[run.place(1, i, c)]);
      const float step = (most - least) / 3;
      for (std::int32_t i = block; i < block + 4; ++i) EXPECT_NEAR(run.key(1, i, c), run.k[run.place(1, i, c)], 0.502F * step + 1e-3F);
    }
  }
}

TEST(Kivi, TokensAreEncodedOnce) {
  FormatRun run("kivi", "{bits: 2, group_tokens: 4, residual_tokens: 4}", kGroupedShape, 8, 0);
  std::vector<float> before(run.store.rows().key(0, 0), run.store.rows().key(0, 8));
  for (std::int32_t t = 0; t < 8; ++t) run.step(1);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(run.store.rows().key(0, 0)[i], before[i]);
}

TEST(Kivi, MarksMoveWithEvictedRows) {
  FormatRun run("kivi", "{bits: 2, group_tokens: 4, residual_tokens: 4}", kGroupedShape, 12, 0);
  // The first 5 tokens of both heads go; the 7 encoded ones that stay move to the front.
  KvRows kv = run.store.rows();
  for (std::int32_t r = 0; r < 2; ++r) {
    for (std::int32_t i = 0; i < 7; ++i) {
      std::copy_n(kv.key(r, i + 5), 64, kv.key(r, i));
      kv.word(0, r, i) = kv.word(0, r, i + 5);
    }
    run.store.shrink(r, 7);
  }
  const std::vector<float> kept(run.store.rows().key(1, 0), run.store.rows().key(1, 7));
  for (std::int32_t t = 0; t < 4; ++t) run.step(1);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(run.store.rows().key(1, 0)[i], kept[i]);
  for (std::int32_t i = 7; i < 11; ++i) EXPECT_EQ(run.store.rows().word(0, 1, i) & 1U, 1U);
}

TEST(Kivi, RefusesAResidualThatCutsGroups) {
  EXPECT_THROW(make_part<FormatRegistry>("kivi", "{group_tokens: 32, residual_tokens: 48}"), InputError);
}

TEST(PerToken, EveryTokenIsEncodedInItsStep) {
  FormatRun run("per_token", "{bits: 4}", kGroupedShape, 9, 0, true, 4);
  EXPECT_EQ(run.changed_keys(0), 9);
  EXPECT_EQ(run.changed_values(1), 9);
}

TEST(CastFormat, RoundsAtOnce) {
  FormatRun run("cast", "{type: fp8_e4m3}", kGroupedShape, 9, 2, true, 4);
  for (std::int32_t i = 0; i < 11; ++i)
    EXPECT_NEAR(run.key(1, i, 5), run.k[run.place(1, i, 5)], std::fabs(run.k[run.place(1, i, 5)]) / 16 + 1e-3F);
}

TEST(SideBits, BytesOfMoreBitsOfKeys) {
  const auto bytes = [&](const char* name, const char* parameters, std::int32_t tokens) {
    return make_part<FormatRegistry>(name, parameters)->row_bytes({1, 8, 8, 128, 1024}, 0, tokens);
  };
  EXPECT_EQ(bytes("gear", "{key_bits: 8, value_bits: 4}", 40), bytes("gear", "{bits: 4}", 40) + 40 * 128 * 4 / 8);
  // Two more bits of a key, and 2^6 points of 4 bytes in place of 2^4.
  EXPECT_EQ(bytes("kvquant", "{key_bits: 6, value_bits: 4}", 100), bytes("kvquant", "{bits: 4}", 100) + 100 * 128 * 2 / 8 + 4 * (64 - 16));
}

// Each side is exactly what it is in a cache of its bits on both sides.
TEST(SideBits, EachSideHasTheErrorOfItsBits) {
  for (const auto& [name, more] : {std::pair{"kivi", ", group_tokens: 8, residual_tokens: 8"},
                                   {"per_channel", ", group_tokens: 8"},
                                   {"per_token", ""},
                                   {"qserve", ""},
                                   {"fireq", ""},
                                   {"gear", ""},
                                   {"kvquant", ""}}) {
    const auto errors = [format = name, parameters = std::string(more)](const std::string& bits) {
      FormatRun run(format, "{" + bits + parameters + "}", kGroupedShape, 40, 21);
      return std::pair(run.error(false), run.error(true));
    };
    const auto six = errors("bits: 6"), three = errors("bits: 3");
    EXPECT_EQ(errors("key_bits: 6, value_bits: 3"), std::pair(six.first, three.second)) << name;
    EXPECT_EQ(errors("key_bits: 3, value_bits: 6"), std::pair(three.first, six.second)) << name;
    EXPECT_LT(six.first, three.first) << name;
    expect_sound(name, "{key_bits: 6, value_bits: 3" + std::string(more) + "}", kGroupedShape, 40, 9);
  }
}

TEST(SideBits, BitsBesideBothSidesAreRefused) {
  const auto error = [](const char* parameters) { return error_of([&] { make_part<FormatRegistry>("kivi", parameters); }); };
  EXPECT_THAT(error("{bits: 4, key_bits: 8, value_bits: 4}"),
              ::testing::HasSubstr("'bits' changes nothing beside 'key_bits' and 'value_bits'"));
  EXPECT_THAT(error("{key_bits: 9}"), ::testing::HasSubstr("'key_bits' = 9 is outside [1, 8]"));
}

TEST(GroupedFormats, AreSound) {
  for (const std::int32_t n : {1, 7, 8, 9, 40}) {
    expect_sound("kivi", "{group_tokens: 4, residual_tokens: 8}", kGroupedShape, n, 10);
    expect_sound("per_token", "{group_channels: 24}", {1, 8, 1, 40, 16}, n, 3);
    expect_sound("per_channel", "{group_tokens: 8}", {1, 6, 2, 5, 16}, n, 9);
    expect_sound("cast", "{type: fp8_e5m2}", kGroupedShape, n, 2);
  }
}

}  // namespace
}  // namespace kvlab::test
