#include "base/half.h"
#include "policies/kv/format/probes.h"
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
      EXPECT_EQ(run.changed_keys(0), changed) << b.name;
      EXPECT_EQ(run.changed_values(0), changed) << b.name;
      EXPECT_EQ(run.changed_values(1), changed) << b.name;
      run.step(1);
    }
  }
}

// One number far off at either end of each channel of K and of each token of V, in a buffer of decode as in a prompt: it is stored apart,
// so that codes of four bits serve the others.
TEST(Gear, BuffersHaveOutliersOfKAndV) {
  const auto error_of_others = [](std::int32_t prompt, std::int32_t decode) {
    FormatRun run("gear", "{bits: 4, prompt_rank: 1, buffer_rank: 1}", kShape, 0, 0);
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
    run.take(k, v, decode);
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
          double total = 0;
          for (std::int32_t i = 0; i <= t; ++i) {
            double z = 0;
            for (std::int32_t c = 0; c < 64; ++c) z += double{nth(run.q, (t * 8 + h * 4 + g) * 64 + c)} * double{run.k[run.place(h, i, c)]};
            p.push_back(std::exp(z / 8));
            total += p.back();
          }
          for (std::size_t i = 0; i < p.size(); ++i) sum[i] += p[i] / total, seen[i] += 1;
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

TEST(CodedFormats, AreSound) {
  for (const std::int32_t n : {1, 19, 20, 21, 60}) {
    expect_sound("gear", "{}", kShape, n, 25);
    expect_sound("zipcache", "{block_tokens: 10}", kShape, n, 25);
    expect_sound("dfloat11", "{}", {1, 6, 2, 5, 16}, n, 3);
    expect_sound("cachegen", "{}", {1, 6, 2, 5, 16}, n, 3);
  }
}

}  // namespace
}  // namespace kvlab::test
