// What every selector holds: a budget of the whole row, order and repetition of its choice, and its calls on shapes.
#include "policies/kv/selector/lsh_tables/lsh_tables.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

struct ContractRun {
  std::int32_t prompt, steps;
};
using ContractRuns = std::vector<ContractRun>;

struct Contract {
  std::string part, parameters;
  bool reads_all = false;      // at a budget of the whole row
  ContractRuns runs = {};      // give the same tokens twice, ascending, the newest among them
  ContractRuns recorded = {};  // make the same calls, reads and traffic on shapes, with the counts that data gave
  ContractRuns plain = {};     // make the same calls and reads on shapes without counts
  bool bounded = false;        // without counts shapes read no less
};

// A batch as a host drives the part.
Decode batch_for(const Selector& part, std::int32_t q_heads, ContractRun run, std::uint64_t seed, bool with_data = true) {
  Decode d({4, q_heads, 2, 8, 16}, 2, run.prompt, seed, with_data, part.num_words());
  d.window_tokens = part.needs().window_queries;
  d.ids.assign(2, {});
  for (Ints& ids : d.ids)
    for (std::int32_t i = 0; i < run.prompt + run.steps; ++i) ids.push_back(i * 7 % 5);
  return d;
}

class SelectorContract : public testing::TestWithParam<Contract> {
 protected:
  static std::unique_ptr<Selector> make() { return make_part<SelectorRegistry>(GetParam().part, GetParam().parameters); }

  // Without `counts` shapes take none.
  static void expect_same_on_shapes(ContractRun run, Played* counts, bool bounded) {
    auto a = make(), b = make();
    Decode with = batch_for(*a, 8, run, 5), without = batch_for(*b, 8, run, 5, false);
    with.ops.take_counts_from(counts), without.ops.take_counts_from(counts);
    std::vector<std::int64_t> attended;
    with.prefill(*a);
    for (std::int32_t t = 0; t < run.steps; ++t) with.decode(*a), attended.push_back(with.attended);
    if (counts != nullptr) counts->play();
    without.prefill(*b);
    for (std::int32_t t = 0; t < run.steps; ++t) {
      without.decode(*b);
      if (!bounded) {
        EXPECT_EQ(without.attended, nth(attended, t)) << "step " << t;
      }
    }
    EXPECT_GE(without.attended, with.attended);
    EXPECT_FALSE(with.ops.log().empty());
    if (!bounded) {
      EXPECT_EQ(with.ops.log(), without.ops.log());
    }
    if (counts == nullptr) return;
    const Traffic x = a->take_traffic(), y = b->take_traffic();
    EXPECT_TRUE(counts->fitted());
    EXPECT_EQ(std::tie(x.fetched_bytes, x.asked_units, x.hit_units), std::tie(y.fetched_bytes, y.asked_units, y.hit_units));
  }
};

TEST_P(SelectorContract, ABudgetOfTheWholeRowReadsEverything) {
  if (!GetParam().reads_all) return;
  const auto part = make();
  Decode d = batch_for(*part, 6, {40, 3}, 11);
  part->set_budget({400});
  d.prefill(*part);
  for (std::int32_t t = 0; t < 3; ++t)
    for (const Ints& row : d.decode(*part)) EXPECT_EQ(std::ssize(row), d.tokens());
}

TEST_P(SelectorContract, SameTokensTwiceAscendingWithTheNewest) {
  for (const ContractRun& run : GetParam().runs) {
    SCOPED_TRACE(run.prompt);
    auto a = make(), b = make();
    Decode one = batch_for(*a, 6, run, 9), two = batch_for(*b, 6, run, 9);
    one.prefill(*a), two.prefill(*b);
    for (std::int32_t i = 0; i < run.steps; ++i) {
      const auto x = one.decode(*a), y = two.decode(*b);
      EXPECT_EQ(x, y);
      for (const Ints& row : x) {
        ASSERT_FALSE(row.empty());
        EXPECT_GE(row.front(), 0);
        EXPECT_EQ(row.back(), one.tokens() - 1);
        EXPECT_EQ(std::adjacent_find(row.begin(), row.end(), std::greater_equal<>()), row.end());
      }
    }
  }
}

TEST_P(SelectorContract, ShapesMakeTheSameCalls) {
  for (const ContractRun& run : GetParam().recorded) {
    Played counts;
    expect_same_on_shapes(run, &counts, false);
    if (GetParam().bounded) expect_same_on_shapes(run, nullptr, true);
  }
  for (const ContractRun& run : GetParam().plain) expect_same_on_shapes(run, nullptr, false);
}

// Parameters too long for a line of a table.
const char* const kInfllm2 = "{kernel_tokens: 8, stride_tokens: 4, block_tokens: 16, window_tokens: 20, top_blocks: 3, dense_tokens: 9}";
const char* const kActQkv = "{chunk_tokens: 8, window_tokens: 9, sink_tokens: 8, recent_tokens: 10, budget_tokens: 50}";
const char* const kGraphSearch =
    "{sink_tokens: 4, recent_tokens: 8, top_tokens: 10, search: hnsw, links: 8, build_candidates: 64, search_candidates: 64}";
const char* const kOfBreaks =
    "{budget_tokens: 16, sink_tokens: 3, recent_tokens: 4, candidate_factor: 2, window_tokens: 5, pool_tokens: 3, sentence_tokens: 6}";
const char* const kClosing =
    "{budget_tokens: 16, sink_tokens: 3, recent_tokens: 4, candidate_factor: 2, window_tokens: 5, closing_ids: \"3 1\"}";

const ContractRuns kEdges{{1, 7}, {15, 7}, {64, 7}, {65, 7}, {150, 7}};

// Counts that follow from lengths.
const std::vector<Contract> kPlain{
    {"lserve", "{page_tokens: 16, logical_tokens: 4, budget_tokens: 48, group: max}", true, kEdges, {}, {{150, 9}}},
    {"token_select", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 20, min_cosine: 2}", true, kEdges, {}, {{150, 9}}},
    {"recycled", "{budget_tokens: 40, every_steps: 3, schedule: fixed}", true, kEdges, {}, {{150, 9}}},
    {"infllm2", kInfllm2, true, kEdges, {}, {{150, 9}}},
    {"hybrid_sparse", "{budget_tokens: 40}", true, kEdges, {}, {{150, 9}}},
    {"retrieval_chunks", "{budget_tokens: 40}", true, kEdges, {}, {{150, 9}}},
    {"hip", "{top_tokens: 24, sink_tokens: 3, recent_tokens: 9, dense_layers: 2}", true, kEdges, {}, {{150, 9}}},
    {"mpcache", "{large_tokens: 8, small_tokens: 4, shared_layers: 1}", true, kEdges, {}, {{150, 9}}},
    {"window_choice", "{window_tokens: 8, budget_tokens: 20}", true, {{90, 5}, {1, 9}}, {}, {{65, 4}}},
    {"quest", "{page_tokens: 8, budget_tokens: 32}", false, {{65, 12}}, {}, {{65, 12}}},
    {"quest", "{page_tokens: 8, budget_tokens: 32, group: union}", false, {{65, 12}}},
    {"quest", "{page_tokens: 1, budget_tokens: 1, min_pages: 1}", false, {{1, 4}}},
    {"window_sinks", "{sink_tokens: 2, recent_tokens: 7}", false, {{5, 9}}, {}, {{30, 3}}},
    {"top_k_oracle", "{budget_tokens: 12}", false, {{9, 9}}, {}, {{30, 3}}}};

const std::vector<Contract> kDataDependent{
    {"squeezed", "{clusters_frac: 0.1}", false, kEdges, {{150, 9}}, {}, true},
    {"act_qkv", kActQkv, false, kEdges, {{150, 9}}, {}, true},
    {"moba", "{chunk_tokens: 8, top_chunks: 4}", false, kEdges, {{150, 9}}, {}, true},
    {"quest", "{page_tokens: 8, budget_tokens: 32, group: union}", false, kEdges, {{150, 9}}, {}, true},
    {"lserve", "{page_tokens: 16, logical_tokens: 8, budget_tokens: 48}", false, kEdges, {{150, 9}}, {}, true},
    {"recycled", "{budget_tokens: 40, every_steps: 3, min_cosine: 0.1}", false, kEdges, {{150, 9}}, {}, true},
    {"token_select", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 20, min_cosine: 0.1}", false, kEdges, {{150, 9}}, {}, true},
    {"twilight", "{of: all, mass_frac: 0.7}", false, {{65, 5}, {1, 9}}, {{65, 4}}},
    {"twilight", "{of: {quest: {page_tokens: 8, budget_tokens: 32, group: union}}, mass_frac: 0.7}", false, {{65, 5}, {1, 9}}, {{65, 4}}}};

const std::vector<Contract> kTiers{
    {"infinigen", "{}", false, {{65, 5}}},
    {"infinigen", "{skew: false}", false, {{1, 5}}},
    {"infinigen", "{alpha: 1}", false, {}, {{65, 3}}},
    {"infinigen", "{alpha: 1000}", true, {}, {}, {{65, 4}}},  // the cap decides: the count follows from the length
    {"shadow_kv",
     "{chunk_tokens: 4, budget_tokens: 12, outlier_chunks: 3, local_chunks: 2}",
     true,
     {{65, 5}, {1, 3}, {3, 3}, {4, 3}, {5, 3}, {12, 3}, {13, 3}},
     {{65, 4}}},
    {"spe_cache", "{}", true},
    {"spe_cache", "{top_tokens: 5, residual_tokens: 6, group_tokens: 4}", true, {{33, 5}, {1, 12}}, {{65, 6}}},
    {"a2ats", "{}", true},
    {"a2ats", "{sink_tokens: 3, local_tokens: 8, top_frac: 0.1}", true, {{65, 5}, {1, 14}}, {{65, 4}}},
    {"pq_cache", "{}", true},
    {"pq_cache", "{sink_tokens: 3, read_frac: 0.3, centers: 16}", true, {{65, 5}, {1, 24}}, {{65, 4}}},
    {"rekv", "{}", true},
    {"rekv", "{frame_tokens: 4, top_frames: 3, question_tokens: 8}", true, {{60, 5}, {1, 5}}, {{65, 4}}},
    {"k_cache", "{}", true},
    {"k_cache", "{top_tokens: 5}", false, {{33, 5}}},
    {"k_cache", "{top_tokens: 1}", false, {{1, 5}}},
    {"k_cache", "{top_tokens: 6}", false, {}, {{40, 3}}},
    {"alisa", "{}", true, {{50, 2}}, {{65, 4}, {1, 4}}},
    {"leo_am", "{}", true, {{200, 5}, {1, 9}}, {{200, 9}}},
    {"retrieval_attention", "{}", true},
    {"retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5}", true, {{33, 5}}, {{65, 4}}},
    {"retrieval_attention", "{sink_tokens: 0, recent_tokens: 1, top_tokens: 1}", false, {{1, 5}}},
    {"retrieval_attention", kGraphSearch, true, {{333, 5}, {1, 30}}, {{300, 4}}},
    {"spar_f", "{}", true, {{33, 5}, {1, 9}}, {{65, 5}}},
    {"lsh_sampling", "{sink_tokens: 2, local_tokens: 8, bits: 4, tables: 10}", false, {{90, 5}, {1, 9}}, {{65, 4}}},
    {"sentence", "{}", true},
    {"sentence", kOfBreaks, false, {{60, 9}, {1, 25}}, {{65, 9}}},
    {"sentence", kClosing, false, {{60, 9}, {1, 25}}, {{65, 9}}}};

std::string name_of(const testing::TestParamInfo<Contract>& info) { return info.param.part + "_" + std::to_string(info.index); }
INSTANTIATE_TEST_SUITE_P(Plain, SelectorContract, testing::ValuesIn(kPlain), name_of);
INSTANTIATE_TEST_SUITE_P(DataDependent, SelectorContract, testing::ValuesIn(kDataDependent), name_of);
INSTANTIATE_TEST_SUITE_P(Tiers, SelectorContract, testing::ValuesIn(kTiers), name_of);

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
