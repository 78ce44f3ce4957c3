#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

struct ScorerCase {
  std::string name, parameters;
};

void PrintTo(const ScorerCase& c, std::ostream* out) { *out << c.name << " " << c.parameters; }

// A prompt step with everything that a scorer can ask for. Queries and keys before RoPE are the layer's own.
struct FullStep {
  explicit FullStep(RandomLayer& layer) : step(layer.prompt_step(16)) {
    const bool data = layer.store.has_data();
    for (const auto& k : layer.k) keys.push_back(data ? k.data() : nullptr);
    w_o = RandomLayer::normals(static_cast<std::size_t>(layer.model.hidden_dim * layer.model.q_heads * layer.model.head_dim), 4, 99);
    step.in.pre_rope_queries = layer.step_queries;
    step.in.pre_rope_keys = keys;
    step.in.w_o = data ? w_o.data() : nullptr;
  }
  std::vector<const float*> keys;
  std::vector<float> w_o;
  LayerStep step;
};

// Scores after both stages; everything is kept but a third of each row.
std::vector<float> run(const ScorerCase& c, RandomLayer& layer) {
  auto scorer = make_part<ScorerRegistry>(c.name, c.parameters);
  scorer->bind(0);
  FullStep full(layer);
  LayerStep& step = full.step;
  std::vector<float> scores(layer.store.has_data() ? static_cast<std::size_t>(step.kv.total()) : 0);
  std::vector<std::int32_t> keep;
  for (std::int32_t r = 0; r < step.kv.num_rows; ++r) keep.push_back(step.kv.len[r] - step.kv.len[r] / 3);
  scorer->observe(step);
  scorer->score(step, layer.store.has_data() ? scores.data() : nullptr);
  scorer->refine(step, keep.data(), layer.store.has_data() ? scores.data() : nullptr);
  return scores;
}

class ScorerLog : public ::testing::TestWithParam<ScorerCase> {};

TEST_P(ScorerLog, IsTheSameWithAndWithoutData) {
  for (const std::int32_t n : {0, 1, 63, 65}) {
    RandomLayer with({8, 6, 2, 16, 24, 2, 1e4}, 2, n, 3, 1), without({8, 6, 2, 16, 24, 2, 1e4}, 2, n, 3, 1, false);
    run(GetParam(), with);
    run(GetParam(), without);
    EXPECT_FALSE(with.ops.log().empty());
    EXPECT_EQ(with.ops.log(), without.ops.log()) << n;
  }
}

TEST_P(ScorerLog, ScoresAreNumbersAndTheSameTwice) {
  for (const std::int32_t group : {1, 3, 4, 8}) {
    RandomLayer a({8, 2 * group, 2, 16, 24, 2, 1e4}, 2, 65, 3, 1), b({8, 2 * group, 2, 16, 24, 2, 1e4}, 2, 65, 3, 1);
    const std::vector<float> scores = run(GetParam(), a);
    EXPECT_TRUE(std::none_of(scores.begin(), scores.end(), [](float x) { return std::isnan(x); }));
    EXPECT_EQ(scores, run(GetParam(), b));
  }
}

TEST_P(ScorerLog, SequencesDoNotMix) {
  RandomLayer both({8, 6, 2, 16, 24, 2, 1e4}, 2, 65, 3, 1), first({8, 6, 2, 16, 24, 2, 1e4}, 1, 65, 3, 1);
  const std::vector<float> of_both = run(GetParam(), both), alone = run(GetParam(), first);
  EXPECT_EQ(std::vector<float>(of_both.begin(), of_both.begin() + static_cast<std::ptrdiff_t>(alone.size())), alone);
}

INSTANTIATE_TEST_SUITE_P(
    Geometry, ScorerLog,
    ::testing::Values(ScorerCase{"key_norm", "{}"}, ScorerCase{"key_norm", "{heads: shared}"}, ScorerCase{"key_diversity", "{}"},
                      ScorerCase{"lag_relative", "{sinks_tokens: 4, lag_tokens: 16}"}, ScorerCase{"value_key_norm", "{}"},
                      ScorerCase{"cur", "{}"}, ScorerCase{"redundancy_and_value_norm", "{}"}, ScorerCase{"leverage", "{sketch_dim: 8}"},
                      ScorerCase{"compactor", "{sketch_dim: 8, chunk_tokens: 32}"}, ScorerCase{"noncausal_chunk", "{chunk_tokens: 32}"},
                      ScorerCase{"noncausal_chunk", "{chunk_tokens: 48, padded: true}"}, ScorerCase{"expected_attention", "{}"},
                      ScorerCase{"expected_attention", "{covariance: false, value_norm: false}"}, ScorerCase{"value_leverage", "{}"},
                      ScorerCase{"query_direction", "{window_tokens: 16}"}, ScorerCase{"peak_attention", "{window_tokens: 16}"},
                      ScorerCase{"attention_and_redundancy", "{window_tokens: 16}"}, ScorerCase{"query_centers", "{}"}));

INSTANTIATE_TEST_SUITE_P(
    Wrappers, ScorerLog,
    ::testing::Values(ScorerCase{"chunks", "{of: {window_attention: {window_tokens: 16}}}"},
                      ScorerCase{"chunks", "{of: key_norm, chunks_frac: 0.5, heads: own, chunk_score: top_half, shared_layers: 4}"},
                      ScorerCase{"slices", "{of: key_norm, slice_tokens: 20}"}, ScorerCase{"slices", "{of: key_norm, peer_ties: true}"},
                      ScorerCase{"value_aware", "{of: {window_attention: {window_tokens: 16}}}"},
                      ScorerCase{"output_aware", "{of: {window_attention: {window_tokens: 16}}}"},
                      ScorerCase{"output_aware", "{of: {window_attention: {window_tokens: 16}}, protect: above_max}"},
                      ScorerCase{"graph", "{of: {window_attention: {window_tokens: 16}}}"},
                      ScorerCase{"graph", "{of: {window_attention: {window_tokens: 16}}, combine: product}"},
                      ScorerCase{"representatives", "{of: key_norm, anchor: random}"},
                      ScorerCase{"fair", "{of: key_norm, span_tokens: 20}"}, ScorerCase{"composite", "{of: key_norm}"},
                      ScorerCase{"whitelist", "{of: key_norm, begin_tokens: 3, span_tokens: 7}"}));

}  // namespace
}  // namespace kvlab::test
