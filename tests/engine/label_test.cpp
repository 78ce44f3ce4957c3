// Head labels and query filters of the probe model.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <numbers>
#include <numeric>

#include "base/random.h"
#include "engine/label/label_heads.h"
#include "engine/label/prefill_patterns.h"
#include "engine/label/probe_prompts.h"
#include "engine/model/record.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "tests/engine/probe.h"
#include "tests/engine/small_model.h"
#include "tests/error_of.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

const Tokenizer& probe_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(kProbeDir);
  return tokenizer;
}

LabelOptions small_options() {
  LabelOptions o;
  o.probes = 3, o.prompt_tokens = 700, o.block_tokens = 64, o.blocks = 1, o.short_prompts = 4;
  return o;
}

const HeadLabelScores& probe_labels() {
  static const HeadLabelScores scores = label_heads(probe(), probe_tokenizer(), small_options());
  return scores;
}

float largest_of(const std::vector<float>& values) { return *std::max_element(values.begin(), values.end()); }

TEST(LabelPrompts, TheNeedleIsWhereItIsSaidToBe) {
  std::int32_t before = 0;
  for (const double depth : {0.1, 0.5, 0.9}) {
    const NeedleProbe p = needle_probe(probe_tokenizer(), probe().config(), 3, 0, 500, depth);
    EXPECT_NEAR(static_cast<double>(p.ids.size()), 500, 60);
    const std::string digits = probe_tokenizer().decode(
        std::span(p.ids).subspan(static_cast<std::size_t>(p.needle.first), static_cast<std::size_t>(p.needle.second - p.needle.first)),
        true);
    EXPECT_EQ(digits.size(), 6U);
    EXPECT_TRUE(std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) << digits;
    EXPECT_GT(p.needle.first, before);
    before = p.needle.first;
  }
  EXPECT_EQ(needle_probe(probe_tokenizer(), probe().config(), 3, 0, 500, 0.5).ids,
            needle_probe(probe_tokenizer(), probe().config(), 3, 0, 500, 0.5).ids);
  EXPECT_NE(needle_probe(probe_tokenizer(), probe().config(), 4, 0, 500, 0.5).ids,
            needle_probe(probe_tokenizer(), probe().config(), 3, 0, 500, 0.5).ids);
}

TEST(LabelPrompts, ABlockIsRepeated) {
  const std::vector<std::int32_t> ids = repeated_block(probe_tokenizer(), probe().config(), 1, 0, 20, 3);
  ASSERT_EQ(ids.size(), 61U);
  EXPECT_EQ(ids[0], probe().config().bos_id);
  for (std::size_t i = 1; i <= 40; ++i) EXPECT_EQ(ids[i], ids[i + 20]);
}

// Rows of a pass in two pieces are those of one, and each sums to 1; a uniform model attends alike.
TEST(LabelHeads, RowsAreAttention) {
  const std::vector<std::int32_t> ids = made_up_text(probe_tokenizer(), probe().config(), 1, 0, 40);
  std::map<std::array<std::int32_t, 3>, std::vector<double>> rows;
  KvState kv(probe().config());
  HeadRowRecorder whole(probe().config(), kv, HeadRowRecorder::Which::kAllQueries,
                        [&](std::int32_t l, std::int32_t h, std::int32_t at, std::span<const double> row) {
                          rows[{l, h, at}] = {row.begin(), row.end()};
                        });
  forward(probe(), ids, kv, &whole);
  EXPECT_EQ(rows.size(), 8U * 8U * 40U);
  for (const auto& [place, row] : rows) {
    EXPECT_EQ(row.size(), static_cast<std::size_t>(place[2]) + 1);
    EXPECT_NEAR(std::accumulate(row.begin(), row.end(), 0.0), 1, 1e-9);
  }
  KvState again(probe().config());
  std::size_t seen = 0;
  HeadRowRecorder last(probe().config(), again, HeadRowRecorder::Which::kLastQuery,
                       [&](std::int32_t l, std::int32_t h, std::int32_t at, std::span<const double> row) {
                         ++seen;
                         EXPECT_EQ(at, 39);
                         const std::vector<double>& expected = rows.at({l, h, at});
                         for (std::size_t i = 0; i < row.size(); ++i) EXPECT_NEAR(row[i], expected[i], 1e-4);
                       });
  forward(probe(), std::span(ids).first(23), again);
  forward(probe(), std::span(ids).subspan(23), again, &last);
  EXPECT_EQ(seen, 64U);
}

TEST(LabelHeads, TheProbeHasRetrievalHeadsAndSinks) {
  const HeadLabelScores& s = probe_labels();
  EXPECT_GT(s.answered_frac, 0.8);
  EXPECT_GT(largest_of(s.retrieval), 0.5F);  // heads that look the digits up
  EXPECT_GT(largest_of(s.semantic), 0.1F);
  EXPECT_GT(largest_of(s.induction), 0.1F);
  const auto few = std::count_if(s.retrieval.begin(), s.retrieval.end(), [](float x) { return x >= 0.1F; });
  EXPECT_LT(few, 32);  // of 64
  // A needle is farther away than the recent tokens in most prompts, so a head that reads it has a gate.
  EXPECT_GT(largest_of(s.gates), 0.1F);
  EXPECT_GT(largest_of(s.sink), 0.3F);  // engine/probe/README.md: token 0 draws up to 0.6 in layer 5
  for (const auto* scores : {&s.retrieval, &s.semantic, &s.sink, &s.echo, &s.induction, &s.gates}) {
    for (const float x : *scores) {
      EXPECT_GE(x, 0.0F);
      EXPECT_LE(x, 1.0F);
    }
  }
  ASSERT_EQ(s.kv_induction.size(), 16U);
  for (std::size_t row = 0; row < 16; ++row)
    EXPECT_EQ(s.kv_induction[row], *std::max_element(s.induction.begin() + static_cast<std::ptrdiff_t>(4 * row),
                                                     s.induction.begin() + static_cast<std::ptrdiff_t>(4 * row + 4)));
}

TEST(LabelHeads, ScoresDoNotDependOnChunks) {
  if (short_run()) GTEST_SKIP() << "two more passes of the model";
  for (const std::int32_t chunk : {64, 333}) {
    LabelOptions options = small_options();
    options.chunk_tokens = chunk;
    const HeadLabelScores other = label_heads(probe(), probe_tokenizer(), options);
    EXPECT_EQ(other.retrieval, probe_labels().retrieval) << chunk;
    EXPECT_EQ(other.answered_frac, probe_labels().answered_frac);
    for (std::size_t i = 0; i < other.semantic.size(); ++i) EXPECT_NEAR(other.semantic[i], probe_labels().semantic[i], 1e-4F) << chunk;
    for (std::size_t i = 0; i < other.gates.size(); ++i) EXPECT_NEAR(other.gates[i], probe_labels().gates[i], 1e-4F) << chunk;
    EXPECT_EQ(other.sink, probe_labels().sink);
  }
}

TEST(LabelHeads, PromptsMustFit) {
  LabelOptions options = small_options();
  options.prompt_tokens = 5000;
  EXPECT_NE(error_of([&] { label_heads(probe(), probe_tokenizer(), options); }).find("is longer than the context"), std::string::npos);
}

TEST(QueryFilters, PointAwayFromTheQueries) {
  std::vector<std::vector<std::int32_t>> texts;
  for (std::uint64_t i = 0; i < 2; ++i) texts.push_back(made_up_text(probe_tokenizer(), probe().config(), 1, i, 300));
  const std::vector<float> filters = query_filters(probe(), texts);
  ASSERT_EQ(filters.size(), 8U * 2U * 64U);
  EXPECT_EQ(filters, query_filters(probe(), texts));
  RecordOptions options;
  const AttentionTrace trace = record(probe(), texts[1], options);
  double mean_dot = 0, better = 0, rows = 0;
  for (std::size_t l = 0; l < 8; ++l) {
    for (std::size_t h = 0; h < 2; ++h) {
      const float* f = filters.data() + (l * 2 + h) * 64;
      double norm = 0;
      for (std::size_t c = 0; c < 64; ++c) norm += double{f[c]} * double{f[c]};
      EXPECT_NEAR(norm, 1, 1e-5);
      const auto dot = [&](const float* x) { return std::inner_product(x, x + 64, f, 0.0); };
      for (std::size_t t = 0; t < 300; ++t)
        for (std::size_t g = 0; g < 4; ++g) mean_dot += dot(trace.layers[l].q.data() + (t * 8 + h * 4 + g) * 64);
      // Keys of a high score get more attention from the last queries than those of a low one.
      std::vector<std::pair<double, std::size_t>> order;
      for (std::size_t t = 4; t < 250; ++t) order.emplace_back(-dot(trace.layers[l].k.data() + (t * 2 + h) * 64), t);
      std::sort(order.begin(), order.end());
      double low = 0, high = 0;
      for (std::size_t i = 0; i < order.size(); ++i) {
        for (std::size_t t = 250; t < 300; ++t) {
          double z = 0;
          for (std::size_t g = 0; g < 4; ++g)
            z += std::inner_product(trace.layers[l].q.data() + (t * 8 + h * 4 + g) * 64,
                                    trace.layers[l].q.data() + (t * 8 + h * 4 + g + 1) * 64,
                                    trace.layers[l].k.data() + (order[i].second * 2 + h) * 64, 0.0);
          (i < order.size() / 2 ? low : high) += z;
        }
      }
      better += high > low ? 1 : 0, rows += 1;
    }
  }
  EXPECT_LT(mean_dot, 0);
  EXPECT_GE(better / rows, 0.9);
}

TEST(QueryFilters, TextIsNeeded) {
  EXPECT_NE(error_of([&] { query_filters(probe(), {}); }).find("no token"), std::string::npos);
}

// The search for patterns of prompt attention, on attention made of one pattern, and on the probe.

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
  EXPECT_EQ(best.pattern.kind, HeadPattern::Kind::kAShape);
  EXPECT_LE(best.flops_frac, 0.3);
}

TEST(LabelPrefill, FindsDiagonalsAndColumns) {
  const HeadPatternSearch::Found diagonal = found(diagonal_head(1024, 420), 0.55);
  EXPECT_EQ(diagonal.pattern.kind, HeadPattern::Kind::kVerticalSlash);
  EXPECT_LE(diagonal.error, 0.1);
  // Every 37th key is seen by all queries.
  const HeadPrompt columns = made_head(
      1024, [](std::int32_t, float* x) { x[0] = 8; }, [](std::int32_t t, float* x) { x[0] = t % 37 == 5 ? 8 : 0; });
  const HeadPatternSearch::Found column = found(columns, 0.45);
  EXPECT_EQ(column.pattern.kind, HeadPattern::Kind::kVerticalSlash);
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
  EXPECT_EQ(best.pattern.kind, HeadPattern::Kind::kBlocks);
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
