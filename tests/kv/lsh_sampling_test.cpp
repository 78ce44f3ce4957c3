#include "policies/kv/selector/lsh_tables/lsh_tables.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

// Figures of the formula for K = 10 and L = 150, computed apart with numpy.
TEST(LshSampling, ProbabilityOfTwoTables) {
  const LshShape shape{10, 150};
  for (const auto& [cosine, probability] : {std::pair{0.2, 0.087}, {0.4, 0.443}, {0.6, 0.943}})
    EXPECT_NEAR(shape.sampling_probability(cosine), probability, 5e-4);
  EXPECT_EQ(shape.sampling_probability(1), 1);
  EXPECT_EQ(shape.sampling_probability(-1), 0);
}

// One KV head of a prompt that is complete, sampled with a seed: tokens of the row, and weights of its query heads.
struct LshDraw {
  std::vector<std::int32_t> tokens;
  std::vector<float> weights;  // [tokens, group]
};
class LshPrompt {
 public:
  LshPrompt(std::int32_t group, std::int32_t prompt, std::string parameters)
      : d({4, group, 1, 16, 16}, 1, prompt, 3), parameters_(std::move(parameters)) {
    d.append(prompt);
    prefill_ = d.seqs;
    len_ = prompt;
  }
  LshDraw draw(std::uint64_t seed) {
    const auto part = make_part<SelectorRegistry>("lsh_sampling", parameters_);
    if (d.tokens() == len_) d.append(1);
    const Ops::Frame frame(d.ops);
    LayerStep built = d.step(1);
    const std::int64_t first[2] = {0, len_};
    built.seqs = prefill_, built.kv.len = &len_, built.kv.first = first, built.seed = seed;
    part->update(built);
    LayerStep step = d.step(1);
    step.seed = seed;
    part->update(step);
    const Selection chosen = part->select(step);
    const std::int64_t n = chosen.index_first[1];
    std::vector<Segment> segments(1);
    part->add_segments(step, segments);
    const float* weights = segments[0].token_log_weight;
    return {{chosen.index, chosen.index + n}, {weights, weights + n * step.kv.group}};
  }
  Decode d;

 private:
  std::string parameters_;
  std::vector<SeqStep> prefill_;
  std::int32_t len_ = 0;
};

// The sum of exp(logit) over a sample, each token divided by its probability, is that over all tokens in the mean of many seeds; the plain
// sum over the sample is far below.
TEST(LshSampling, WeightsMakeSumsUnbiased) {
  LshPrompt prompt(2, 120, "{sink_tokens: 4, local_tokens: 16, bits: 4, tables: 12}");
  constexpr int kSeeds = 400;
  std::vector<double> all(2, 0.0), plain(2, 0.0), weighed(2, 0.0), squares(2, 0.0);
  for (int seed = 0; seed < kSeeds; ++seed) {
    const LshDraw drawn = prompt.draw(static_cast<std::uint64_t>(seed));
    for (std::size_t h = 0; h < 2; ++h) {
      double sum = 0;
      for (std::size_t i = 0; i < drawn.tokens.size(); ++i) {
        const double e = std::exp(prompt.d.logit(0, static_cast<std::int32_t>(h), drawn.tokens[i]));
        const auto w = static_cast<double>(drawn.weights[2 * i + h]);
        sum += e * std::exp(w);
        if (std::isfinite(w)) plain[h] += e / kSeeds;
      }
      weighed[h] += sum / kSeeds, squares[h] += sum * sum / kSeeds;
    }
  }
  for (std::size_t h = 0; h < 2; ++h) {
    for (std::int32_t i = 0; i < 121; ++i) all[h] += std::exp(prompt.d.logit(0, static_cast<std::int32_t>(h), i));
    const double error = std::sqrt((squares[h] - weighed[h] * weighed[h]) / kSeeds);
    EXPECT_NEAR(weighed[h], all[h], 4 * error + 1e-3 * all[h]);
    EXPECT_LT(plain[h], all[h] - 10 * error);
  }
}

// First, last and decoded tokens are there with weight 0. A head that did not sample a token does not see it.
TEST(LshSampling, EndsAreExactAndHeadsSampleAlone) {
  LshPrompt prompt(4, 200, "{sink_tokens: 3, local_tokens: 20, bits: 5, tables: 10}");
  const LshDraw drawn = prompt.draw(5);
  std::ptrdiff_t hidden = 0, seen = 0;
  std::vector<std::int32_t> ends;
  for (std::size_t i = 0; i < drawn.tokens.size(); ++i) {
    const std::span<const float> weights = std::span(drawn.weights).subspan(4 * i, 4);
    if (drawn.tokens[i] < 3 || drawn.tokens[i] >= 180) {
      ends.push_back(drawn.tokens[i]);
      for (const float w : weights) EXPECT_EQ(w, 0);
      continue;
    }
    for (const float w : weights) EXPECT_TRUE(w > -1e-3 || std::isinf(w));  // the inverse of a probability
    const auto heads = std::count_if(weights.begin(), weights.end(), [](float w) { return std::isfinite(w); });
    EXPECT_GT(heads, 0);
    seen += heads, hidden += 4 - heads;
  }
  EXPECT_EQ(ends.size(), 3U + 20U + 1U);
  EXPECT_GT(seen, 0);
  EXPECT_GT(hidden, 0);
}

// Tables against the definition: a key is sampled if its signs equal the query's in all projections of at least two tables. The keys' mean
// is taken off them, and not off the query.
TEST(LshSampling, SamplesKeysOfTwoCommonBuckets) {
  Decode d({4, 2, 1, 8, 16}, 1, 90, 4);
  d.append(90);
  for (std::size_t i = 0; i < d.k[0].size(); i += 8) d.k[0][i] += 3;  // a mean far from 0
  LayerStep step = d.step();
  for (std::int32_t i = 0; i < 90; ++i) step.kv.key(0, i)[0] += 3;
  const LshShape shape{3, 6};
  const std::vector<float> projections = RandomLayer::normals(static_cast<std::size_t>(18 * 8), 8, 1);
  const std::int32_t begin = 10, end = 80, keys = 70;
  std::vector<float> center(8);
  std::vector<std::int32_t> table(static_cast<std::size_t>(shape.table_size(keys))), unit(70);
  std::vector<std::uint32_t> heads(70);
  float* centers = center.data();
  std::int32_t *tables = table.data(), count = 70, looked_at = 1 << 20;
  const std::int64_t first[2] = {0, 70};
  run_cpu(LshBuild{step.kv, shape, projections.data(), &begin, &end, &centers, &tables});
  run_cpu(LshSample{step.kv, shape, d.queries.data(), projections.data(), &keys, &tables, first, unit.data(), heads.data(), &count,
                    &looked_at});
  const auto sign = [&](const std::vector<double>& x, std::int32_t p) { return dot(x.data(), &nth(projections, p * 8), 8) > 0; };
  std::vector<double> mean(8, 0.0);
  for (std::int32_t i = begin; i < end; ++i)
    for (std::size_t c = 0; c < 8; ++c) mean[c] += static_cast<double>(d.key(0, i)[c]) / keys;
  std::vector<std::uint32_t> expected(70, 0);
  std::int32_t entries = 0;
  for (std::int32_t h = 0; h < 2; ++h) {
    const std::vector<double> q(d.query(0, h), d.query(0, h) + 8);
    for (std::int32_t i = begin; i < end; ++i) {
      std::vector<double> k(d.key(0, i), d.key(0, i) + 8);
      for (std::size_t c = 0; c < 8; ++c) k[c] -= mean[c];
      int common = 0;
      for (std::int32_t t = 0; t < 6; ++t)
        common += sign(q, 3 * t) == sign(k, 3 * t) && sign(q, 3 * t + 1) == sign(k, 3 * t + 1) && sign(q, 3 * t + 2) == sign(k, 3 * t + 2)
                      ? 1
                      : 0;
      entries += common;
      if (common >= 2) nth(expected, i - begin) |= 1U << h;
    }
  }
  std::vector<std::uint32_t> got(70, 0);
  for (std::int32_t i = 0; i < count; ++i) nth(got, nth(unit, i)) = nth(heads, i);
  EXPECT_EQ(got, expected);
  EXPECT_EQ(looked_at, entries);
  EXPECT_GT(count, 0);
  EXPECT_LT(count, 70);
}

TEST(LshSampling, ShortPromptsAndDenseLayersAreReadWhole) {
  for (const auto& [prompt, layer] : {std::pair{68, 1}, std::pair{68, 2}, std::pair{300, 0}, std::pair{300, 16}}) {
    Prefilled d({32, 4, 2, 8, 16}, 2, prompt, "lsh_sampling", "{}", {.layer = layer});
    for (const auto& row : d.decode()) EXPECT_EQ(static_cast<std::int32_t>(row.size()), d.tokens());
  }
  Prefilled d({4, 4, 2, 8, 16}, 2, 69, "lsh_sampling");  // one key in tables
  d.decode();
  EXPECT_EQ(d.ops.log().front().op, "lsh_build");
}

TEST(LshSampling, RefusesLargeGroups) {
  EXPECT_EQ(make_part<SelectorRegistry>("lsh_sampling")->refuses({2, 33, 1, 8, 16}),
            "selector 'lsh_sampling' takes at most 32 query heads per KV head, the model has 33: choose another selector");
}

}  // namespace
}  // namespace kvlab::test
