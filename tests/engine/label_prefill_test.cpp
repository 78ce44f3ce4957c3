// The search for patterns of prompt attention, on attention made of one pattern, and on the probe.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <numbers>

#include "base/random.h"
#include "engine/label/prefill_patterns.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "tests/engine/probe.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

constexpr std::int32_t kDim = 64;

// A prompt whose logits are the products of these rows, values normal.
HeadPrompt made_head(std::int32_t tokens, const std::function<void(std::int32_t, float*)>& query,
                     const std::function<void(std::int32_t, float*)>& key) {
  HeadPrompt head;
  head.tokens = tokens, head.head_dim = kDim;
  const auto size = static_cast<std::size_t>(tokens * kDim);
  head.q.resize(size), head.k.resize(size), head.v.resize(size), head.out.resize(size);
  for (std::size_t i = 0; i < size; ++i) head.v[i] = static_cast<float>(Draw{1, Purpose::kTest, 1, i}.normal());
  for (std::int32_t t = 0; t < tokens; ++t) {
    query(t, head.q.data() + std::ptrdiff_t{t} * kDim);
    key(t, head.k.data() + std::ptrdiff_t{t} * kDim);
  }
  AttentionPrefill op;
  op.q = head.q.data(), op.k = head.k.data(), op.v = head.v.data(), op.out = head.out.data();
  op.new_tokens = tokens, op.q_heads = op.kv_heads = 1, op.head_dim = kDim, op.scale = 0.125F;
  std::vector<float> scratch(static_cast<std::size_t>(scratch_floats(op)));
  op.scratch = scratch.data();
  run_cpu(op);
  return head;
}

// Channels 2 i and 2 i + 1: an angle, so that the product of a query and a key is largest where their angles agree.
void set_angle(float* row, std::int32_t pair, double angle, double size) {
  row[2 * pair] = static_cast<float>(size * std::cos(angle)), row[2 * pair + 1] = static_cast<float>(size * std::sin(angle));
}

// Logits 25 where the key is `distance` before the query, less at 4, 8 and 12 tokens from there; queries that have no such key see all keys
// alike. Angles turn by about a quarter per token, so that means of blocks tell nothing.
HeadPrompt diagonal_head(std::int32_t tokens, std::int32_t distance) {
  const auto row = [](std::int32_t t, float* x) {
    for (std::int32_t i = 0; i < kDim / 2; ++i) set_angle(x, i, t * std::numbers::pi * (0.5 + (i - 15.5) / 512), 2.5);
  };
  return made_head(
      tokens,
      [=](std::int32_t t, float* x) {
        if (t >= distance) row(t - distance, x);
      },
      row);
}

HeadPatternSearch::Found found(const HeadPrompt& head, double flops_frac) {
  HeadPatternSearch search(flops_frac);
  search.see(head);
  return search.best();
}

using Kind = HeadPattern::Kind;

TEST(LabelPrefill, FindsFirstAndNewestTokens) {
  // Near tokens are alike, and every query attends strongly to the first 64: more columns than the choice of columns has room for.
  const auto row = [](std::int32_t t, float* x) {
    for (std::int32_t i = 0; i < 8; ++i) set_angle(x, i, t * 0.002 * (i + 1), 4);
  };
  const HeadPrompt head = made_head(
      1024,
      [&](std::int32_t t, float* x) {
        row(t, x);
        x[kDim - 1] = 8;
      },
      [&](std::int32_t t, float* x) {
        row(t, x);
        x[kDim - 1] = t < 64 ? 24 : 0;
      });
  const HeadPatternSearch::Found best = found(head, 0.3);
  EXPECT_EQ(best.pattern.kind, Kind::kAShape);
  EXPECT_LE(best.flops_frac, 0.3);
}

TEST(LabelPrefill, FindsDiagonalsAndColumns) {
  const HeadPatternSearch::Found diagonal = found(diagonal_head(1024, 420), 0.55);
  EXPECT_EQ(diagonal.pattern.kind, Kind::kVerticalSlash);
  EXPECT_LE(diagonal.error, 0.1);
  // Every 37th key is seen by all queries.
  const HeadPrompt columns = made_head(
      1024, [](std::int32_t, float* x) { x[0] = 8; }, [](std::int32_t t, float* x) { x[0] = t % 37 == 5 ? 8 : 0; });
  const HeadPatternSearch::Found column = found(columns, 0.45);
  EXPECT_EQ(column.pattern.kind, Kind::kVerticalSlash);
  EXPECT_LE(column.error, 0.05);
}

TEST(LabelPrefill, FindsBlocks) {
  // Each query block looks for one earlier block of its own choice.
  const auto code = [](std::int32_t block, float* x) {
    for (std::int32_t c = 0; c < kDim; ++c)
      x[c] = static_cast<float>(3 * Draw{2, Purpose::kTest, static_cast<std::uint64_t>(block), static_cast<std::uint64_t>(c)}.normal());
  };
  const HeadPrompt head = made_head(
      1024,
      [&](std::int32_t t, float* x) {
        const auto block = static_cast<std::uint64_t>(t / 64);
        code(static_cast<std::int32_t>(Draw{3, Purpose::kTest, block, 0}.below(block + 1)), x);
      },
      [&](std::int32_t t, float* x) { code(t / 64, x); });
  const HeadPatternSearch::Found best = found(head, 0.25);
  EXPECT_EQ(best.pattern.kind, Kind::kBlocks);
  EXPECT_LE(best.error, 1e-3);
}

TEST(LabelPrefill, ASmallShareIsRefused) {
  EXPECT_NE(error_of([] {
              HeadPatternSearch search(0.01);
              search.see(diagonal_head(256, 100));
            }).find("give --flops-frac more"),
            std::string::npos);
}

TEST(LabelPrefill, PatternsOfTheProbeAreRead) {
  LabelOptions options;
  options.probes = 1, options.prompt_tokens = 320;
  const PrefillLabels labels = label_prefill(probe(), Tokenizer::load(kProbeDir), options, 0.6);
  ASSERT_EQ(labels.heads.size(), 64U);
  const std::string file = testing::TempDir() + "/probe_patterns.json";
  std::ofstream(file) << prefill_labels_text(labels);
  const PatternTable table = read_head_patterns(file);
  EXPECT_EQ(std::tuple(table.layers, table.q_heads), std::tuple(8, 8));
  for (std::int32_t i = 0; i < 64; ++i) {
    const HeadPattern &read = table.patterns.at({i / 8, i % 8}), &made = labels.heads[static_cast<std::size_t>(i)].pattern;
    EXPECT_EQ(std::tuple(read.kind, read.first, read.second), std::tuple(made.kind, made.first, made.second)) << i;
    EXPECT_LE(labels.heads[static_cast<std::size_t>(i)].flops_frac, 0.6) << i;
  }
}

}  // namespace
}  // namespace kvlab
