#include <gmock/gmock.h>

#include "base/half.h"
#include "policies/kv/format/probes.h"
#include "tests/error_of.h"
#include "tests/kv/format_fixture.h"

namespace kvlab::test {
namespace {

constexpr ModelShape kShape{1, 8, 2, 64, 128};

TEST(Gear, EachPartLowersTheError) {
  const auto error = [](const std::string& parameters) { return FormatRun("gear", parameters, kShape, 60, 0).error(false); };
  const double rank = error("{bits: 2, outliers_frac: 0, prompt_rank: 16}");
  EXPECT_LT(rank, error("{bits: 2, outliers_frac: 0, prompt_rank: 1}"));
  EXPECT_LT(error("{bits: 2, outliers_frac: 0.1, prompt_rank: 16}"), rank);
}

// The next token fills a block.
TEST(CodedFormats, TokensWaitUntilTheirBlockIsFull) {
  struct Blocks {
    const char *name, *parameters;
    std::int32_t prompt, decode, before, after;
  };
  for (const Blocks& b : {Blocks{"gear", "{}", 47, 12, 40, 60},
                          {"zipcache", "{block_tokens: 20}", 47, 12, 40, 60},
                          {"per_channel", "{bits: 4, group_tokens: 8}", 23, 0, 16, 24}}) {
    FormatRun run(b.name, b.parameters, kShape, b.prompt, b.decode);
    for (const std::int32_t changed : {b.before, b.after}) {
      EXPECT_EQ(std::tuple(run.changed_keys(0), run.changed_values(0)), std::tuple(changed, changed)) << b.name;
      EXPECT_EQ(run.changed_values(1), changed) << b.name;
      run.step(1);
    }
  }
}

// One number far off at either end of each channel of K and of each token of V, in a buffer of decode as in a prompt: it is stored apart,
// so that codes of four bits serve the others.
TEST(Gear, BuffersHaveOutliersOfKAndV) {
  const auto error_of_others = [](std::int32_t prompt, std::int32_t decode) {
    std::vector<float> k, v;
    const std::int32_t n = prompt + decode, width = kShape.kv_heads * kShape.head_dim;
    for (std::int32_t i = 0; i < n * width; ++i) {
      const std::int32_t token = i / width, c = i % width;
      const auto drawn = [&](std::uint64_t of) {
        return static_cast<float>(Draw{5, Purpose::kTest, of, static_cast<std::uint64_t>(i)}.normal());
      };
      k.push_back(token % 20 == c % 20 ? 90.0F : token % 20 == (c + 9) % 20 ? -90.0F : drawn(1));
      v.push_back(c % 64 == token % 64 ? 90.0F : c % 64 == (token + 9) % 64 ? -90.0F : drawn(2));
    }
    FormatRun run("gear", "{bits: 4, prompt_rank: 1, buffer_rank: 1}", kShape, k, v, decode);
    double worst = 0;
    for (std::int32_t i = n - 20; i < n; ++i)
      for (std::int32_t c = 0; c < 64; ++c)
        for (const bool of_v : {false, true}) {
          const float x = (of_v ? run.v : run.k)[run.place(1, i, c)], y = of_v ? run.value(1, i, c) : run.key(1, i, c);
          worst = std::max(worst, std::abs(double{x} - double{y}));
        }
    return worst;
  };
  EXPECT_LT(error_of_others(20, 0), 0.5);
  EXPECT_LT(error_of_others(20, 40), 0.5);
}

TEST(Dfloat11, IsBf16WithoutFurtherLossAndMeasuresItsSize) {
  FormatRun run("dfloat11", "{}", kShape, 200, 3);
  for (std::int32_t i = 0; i < 203; ++i)
    for (std::int32_t c = 0; c < 64; ++c) {
      const float k = run.k[run.place(1, i, c)];
      EXPECT_EQ(run.key(1, i, c), i < 192 ? bfloat16_to_float(float_to_bfloat16(k)) : k);  // whole blocks of 64 tokens
    }
  const double share = static_cast<double>(run.format->row_bytes(kShape, 0, 192)) / (192 * 64 * 4);
  EXPECT_GT(share, 0.6);  // exponents of normal numbers hold about 2.5 bits
  EXPECT_LT(share, 0.72);
  EXPECT_EQ(run.format->row_bytes(kShape, 0, 203), run.format->row_bytes(kShape, 0, 192) + 11 * 64 * 4);
  FormatRun shapes("dfloat11", "{}", kShape, 200, 3, false);
  EXPECT_EQ(shapes.format->row_bytes(kShape, 0, 192), 192 * 64 * 4 * 11 / 16);
}

TEST(Cachegen, DenseOnTheGpuSmallOnTheWay) {
  FormatRun run("cachegen", "{}", kShape, 300, 2), shapes("cachegen", "{}", kShape, 300, 2, false);
  EXPECT_EQ(run.changed_keys(0), 300);
  const std::int64_t dense = 302LL * 64 * 4;
  EXPECT_EQ(run.format->row_bytes(kShape, 0, 302), dense);
  const std::int64_t measured = run.format->transfer_bytes(kShape, 0, 302), bound = shapes.format->transfer_bytes(kShape, 0, 302);
  EXPECT_LT(measured, bound);
  EXPECT_LT(bound, dense * 6 / 16);  // 5 bits per difference, and anchors
  EXPECT_GT(measured, dense / 8);
  EXPECT_LT(run.error(false), 0.01);  // 32 levels
}

TEST(Cachegen, LaterLayersAreCoarser) {
  FormatRun fine("cachegen", "{fine_key_layers: 1}", kShape, 100, 0), coarse("cachegen", "{fine_key_layers: 0}", kShape, 100, 0);
  EXPECT_LT(fine.error(false), coarse.error(false));
  EXPECT_GT(fine.format->transfer_bytes(kShape, 0, 100), coarse.format->transfer_bytes(kShape, 0, 100));
}

// The tokens in few bits are those that plain probe attention ranks lowest.
TEST(Zipcache, SalientTokensGetMoreBits) {
  FormatRun run("zipcache", "{block_tokens: 20, salient_frac: 0.5, salient_bits: 8, other_bits: 1}", kShape, 200, 0);
  const SeqStep seq{0, 0, 200, 200, -1};
  const Probes probes{0.05, 20};
  for (std::int32_t h = 0; h < 2; ++h) {
    std::vector<double> sum(200, 0.0), seen(200, 0.0);
    for (const Probes::Range& range : probes.ranges(seq, 0, 200))
      for (std::int32_t t = range.begin; t < range.end; ++t)
        for (std::int32_t g = 0; g < 4; ++g) {
          std::vector<double> p;
          for (std::int32_t i = 0; i <= t; ++i) p.push_back(dot(&nth(run.q, (t * 8 + h * 4 + g) * 64), &run.k[run.place(h, i, 0)], 64) / 8);
          p = softmax(p);
          for (std::size_t i = 0; i < p.size(); ++i) sum[i] += p[i], seen[i] += 1;
        }
    for (std::size_t i = 0; i < 200; ++i) sum[i] /= std::max(1.0, seen[i]);
    std::vector<double> sorted = sum;
    std::sort(sorted.rbegin(), sorted.rend());
    for (std::int32_t i = 0; i < 200; ++i) {
      double wrong = 0;
      for (std::int32_t c = 0; c < 64; ++c) wrong += std::pow(double{run.value(h, i, c)} - run.v[run.place(h, i, c)], 2) / 64;
      if (std::abs(nth(sum, i) / sorted[99] - 1) <= 1e-4) continue;
      EXPECT_EQ(nth(sum, i) > sorted[99], wrong < 1e-3) << i;
      EXPECT_EQ(nth(sum, i) < sorted[99], wrong > 1e-2) << i;
    }
  }
}

// Counts that depend on data are settled: shapes alone take the bound, every token at the higher bits.
TEST(Zipcache, MassFracCountsAreSettled) {
  FormatRun run("zipcache", "{block_tokens: 20, mass_frac: 0.5}", kShape, 100, 0),
      shapes("zipcache", "{block_tokens: 20, mass_frac: 0.5}", kShape, 100, 0, false);
  const std::int64_t measured = run.format->row_bytes(kShape, 0, 100), bound = shapes.format->row_bytes(kShape, 0, 100);
  EXPECT_LT(measured, bound);
  EXPECT_EQ(bound, make_part<FormatRegistry>("zipcache", "{block_tokens: 20, salient_frac: 1}")->row_bytes(kShape, 0, 100));
}

constexpr ModelShape kGroupedShape{1, 4, 2, 64, 128};

TEST(Kivi, KeysInBlocksValuesTokenByToken) {
  // Prompt of 21: K 16 in two blocks of 8, V 13 beyond the last 8. Two tokens later 7 wait.
  FormatRun run("kivi", "{bits: 2, group_tokens: 4, residual_tokens: 8}", kGroupedShape, 21, 0);
  for (const auto& [keys, values] : {std::pair{16, 13}, {16, 14}, {16, 15}, {24, 16}}) {
    EXPECT_EQ(std::tuple(run.changed_keys(0), run.changed_keys(1), run.changed_values(0)), std::tuple(keys, keys, values));
    EXPECT_EQ(run.changed_values(1), values);
    run.step(1);
  }
}

TEST(Kivi, AGroupOfKeysIsOneChannelOfConsecutiveTokens) {
  FormatRun run("kivi", "{bits: 2, group_tokens: 4, residual_tokens: 4}", kGroupedShape, 8, 0);
  for (std::int32_t c = 0; c < 64; ++c)
    for (std::int32_t block = 0; block < 8; block += 4) {
      float least = 1e9F, most = -1e9F;
      for (std::int32_t i = block; i < block + 4; ++i)
        least = std::min(least, run.k[run.place(1, i, c)]), most = std::max(most, run.k[run.place(1, i, c)]);
      const float step = (most - least) / 3;
      for (std::int32_t i = block; i < block + 4; ++i) EXPECT_NEAR(run.key(1, i, c), run.k[run.place(1, i, c)], 0.502F * step + 1e-3F);
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
  EXPECT_EQ(std::tuple(run.changed_keys(0), run.changed_values(1)), std::tuple(9, 9));
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

TEST(Mustafar, PrunesWhatLeavesTheWindow) {
  FormatRun run("mustafar", "{key_sparsity: 0.5, value_sparsity: 0.75, recent_tokens: 4}", kShape, 10, 0);
  EXPECT_EQ(run.changed_keys(0), 6);
  run.step(1);
  EXPECT_EQ(run.changed_keys(1), 7);
  std::int32_t k_zeros = 0, v_zeros = 0;
  for (std::int32_t c = 0; c < 64; ++c) k_zeros += run.key(1, 6, c) == 0 ? 1 : 0, v_zeros += run.value(1, 6, c) == 0 ? 1 : 0;
  EXPECT_EQ(k_zeros, 32);
  EXPECT_EQ(v_zeros, 48);
}

// Score of channel c by plain loops: group mean of the window's q_c^2, times the mean of k_c^2 over all tokens.
std::vector<double> think_scores(const FormatRun& run, std::int32_t head, std::int32_t n, std::int32_t window) {
  const ModelShape& m = run.model;
  std::vector<double> scores;
  for (std::int32_t c = 0; c < m.head_dim; ++c) {
    double q = 0, k = 0;
    for (std::int32_t t = n - window; t < n; ++t)
      for (std::int32_t g = 0; g < m.group(); ++g)
        q += std::pow(double{nth(run.q, (t * m.q_heads + head * m.group() + g) * m.head_dim + c)}, 2);
    for (std::int32_t i = 0; i < n; ++i) k += std::pow(double{run.k[run.place(head, i, c)]}, 2);
    scores.push_back(q / (window * m.group()) * k / n);
  }
  return scores;
}

TEST(Think, PrunesTheLowestChannelsOfOlderTokens) {
  for (const std::int32_t q_heads : {2, 6, 8, 16}) {  // groups of 1, 3, 4, 8
    FormatRun run("think", "{ratio: 0.4, window_tokens: 8}", {1, q_heads, 2, 64, 128}, 30, 0);
    for (std::int32_t h = 0; h < 2; ++h) {
      const std::vector<double> scores = think_scores(run, h, 30, 8);
      std::vector<double> sorted = scores;
      std::sort(sorted.begin(), sorted.end());
      const double threshold = sorted[25];  // 0.4 * 64 = 25.6: 25 are pruned
      for (std::int32_t i = 0; i < 30; ++i)
        for (std::int32_t c = 0; c < 64; ++c)
          EXPECT_EQ(run.key(h, i, c), i < 22 && nth(scores, c) < threshold ? 0.0F : run.k[run.place(h, i, c)]);
    }
    EXPECT_EQ(run.changed_values(0), 0);
  }
}

TEST(Think, TheMaskStaysInDecode) {
  FormatRun run("think", "{ratio: 0.5, window_tokens: 4}", kShape, 12, 6);
  EXPECT_EQ(run.changed_keys(1), 14);
  for (std::int32_t c = 0; c < 64; ++c) EXPECT_EQ(run.key(1, 0, c) == 0, run.key(1, 13, c) == 0);
}

TEST(Think, ScopePromptPrunesTheWholePromptOnce) {
  FormatRun run("think", "{ratio: 0.5, window_tokens: 4, scope: prompt}", kShape, 12, 6);
  EXPECT_EQ(run.changed_keys(1), 12);
}

TEST(LowRankKeys, FactorsThePromptAndLeavesTheRest) {
  FormatRun run("low_rank_keys", "{rank: 100, keys: after_rope}", kShape, 60, 2);
  EXPECT_LT(run.error(false), 1e-5);  // 60 tokens have at most rank 60
  EXPECT_EQ(run.changed_values(0), 0);
  for (std::int32_t c = 0; c < 64; ++c) EXPECT_EQ(run.key(1, 61, c), run.k[run.place(1, 61, c)]);
  // The fixture's keys before and after RoPE are the same ones.
  FormatRun before("low_rank_keys", "{rank: 100, keys: before_rope}", kShape, 60, 2);
  EXPECT_LT(before.error(false), 1e-5);
  EXPECT_TRUE(before.format->needs().pre_rope_keys);
}

TEST(LowRankKeys, RowBytesAndRefusal) {
  const auto format = make_part<FormatRegistry>("low_rank_keys", "{rank: 160}");
  const ModelShape m{1, 32, 8, 128, 4096};
  EXPECT_EQ(format->row_bytes(m, 0, 1000), 1000 * 256 + 1000 * 160 * 2 / 8 + 160 * 128 * 2);
  EXPECT_EQ(format->refuses(m), "");
  EXPECT_EQ(format->refuses(kShape), "rank 160 of format 'low_rank_keys' saves nothing on keys of 2 x 64 = 128 channels");
}

TEST(Qserve, SmoothingHelpsWhereAPairOfChannelsIsLarge) {
  double plain = 0, smoothed = 0;
  for (const std::string name : {"per_token", "qserve", "fireq"}) {
    std::vector<float> k = RandomLayer::normals(40 * 128, 5, 9);
    for (std::size_t i = 7; i < k.size(); i += 32) k[i] *= 30.0F;
    FormatRun run(name, "{}", kShape, k, std::vector<float>(k.size()));
    double wrong = 0;
    for (std::int32_t i = 0; i < 40; ++i)
      for (std::int32_t c = 0; c < 64; ++c)
        if (c % 32 != 7) wrong += std::pow(double{run.key(0, i, c)} - run.k[run.place(0, i, c)], 2);
    (name == "per_token" ? plain : smoothed) = wrong;
    if (name != "per_token") {
      EXPECT_LT(smoothed * 4, plain) << name;
    }
  }
}

TEST(CodedFormats, AreSound) {
  struct Sound {
    const char *name, *parameters;
    Ints prompts;
    std::int32_t decode;
    ModelShape model = kShape;
  };
  constexpr ModelShape kOdd{1, 6, 2, 5, 16};
  const Ints around_20{1, 19, 20, 21, 60}, around_8{1, 7, 8, 9, 40}, after_8{1, 8, 9, 40};
  for (const Sound& s : std::vector<Sound>{{"gear", "{}", around_20, 25},
                                           {"zipcache", "{block_tokens: 10}", around_20, 25},
                                           {"dfloat11", "{}", around_20, 3, kOdd},
                                           {"cachegen", "{}", around_20, 3, kOdd},
                                           {"kivi", "{group_tokens: 4, residual_tokens: 8}", around_8, 10, kGroupedShape},
                                           {"per_token", "{group_channels: 24}", around_8, 3, {1, 8, 1, 40, 16}},
                                           {"per_channel", "{group_tokens: 8}", around_8, 9, kOdd},
                                           {"cast", "{type: fp8_e5m2}", around_8, 2, kGroupedShape},
                                           {"mustafar", "{recent_tokens: 8}", after_8, 10},
                                           {"think", "{window_tokens: 8}", after_8, 10},
                                           {"think", "{window_tokens: 8, scope: prompt}", after_8, 3, kOdd},
                                           {"low_rank_keys", "{rank: 9}", after_8, 3},
                                           {"qserve", "{}", after_8, 3},
                                           {"fireq", "{}", after_8, 3, kOdd}})
    for (const std::int32_t n : s.prompts) expect_sound(s.name, s.parameters, s.model, n, s.decode);
}

}  // namespace
}  // namespace kvlab::test
