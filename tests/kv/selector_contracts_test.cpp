// What every selector holds: a budget of the whole row, order and repetition of its choice, and its calls on shapes.
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

const ContractRuns kEdges{{1, 7}, {15, 7}, {64, 7}, {65, 7}, {150, 7}};

// Counts that follow from lengths.
const std::vector<Contract> kPlain{
    {"lserve", "{page_tokens: 16, logical_tokens: 4, budget_tokens: 48, group: max}", true, kEdges, {}, {{150, 9}}},
    {"token_select", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 20, min_cosine: 2}", true, kEdges, {}, {{150, 9}}},
    {"recycled", "{budget_tokens: 40, every_steps: 3, schedule: fixed}", true, kEdges, {}, {{150, 9}}},
    {"infllm2",
     "{kernel_tokens: 8, stride_tokens: 4, block_tokens: 16, window_tokens: 20, top_blocks: 3, dense_tokens: 9}",
     true,
     kEdges,
     {},
     {{150, 9}}},
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
    {"act_qkv",
     "{chunk_tokens: 8, window_tokens: 9, sink_tokens: 8, recent_tokens: 10, budget_tokens: 50}",
     false,
     kEdges,
     {{150, 9}},
     {},
     true},
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
    {"retrieval_attention",
     "{sink_tokens: 4, recent_tokens: 8, top_tokens: 10, search: hnsw, links: 8, build_candidates: 64, search_candidates: 64}",
     true,
     {{333, 5}, {1, 30}},
     {{300, 4}}},
    {"spar_f", "{}", true, {{33, 5}, {1, 9}}, {{65, 5}}},
    {"lsh_sampling", "{sink_tokens: 2, local_tokens: 8, bits: 4, tables: 10}", false, {{90, 5}, {1, 9}}, {{65, 4}}},
    {"sentence", "{}", true},
    {"sentence",
     "{budget_tokens: 16, sink_tokens: 3, recent_tokens: 4, candidate_factor: 2, window_tokens: 5, pool_tokens: 3, sentence_tokens: 6}",
     false,
     {{60, 9}, {1, 25}},
     {{65, 9}}},
    {"sentence",
     "{budget_tokens: 16, sink_tokens: 3, recent_tokens: 4, candidate_factor: 2, window_tokens: 5, closing_ids: \"3 1\"}",
     false,
     {{60, 9}, {1, 25}},
     {{65, 9}}}};

std::string name_of(const testing::TestParamInfo<Contract>& info) { return info.param.part + "_" + std::to_string(info.index); }
INSTANTIATE_TEST_SUITE_P(Plain, SelectorContract, testing::ValuesIn(kPlain), name_of);
INSTANTIATE_TEST_SUITE_P(DataDependent, SelectorContract, testing::ValuesIn(kDataDependent), name_of);
INSTANTIATE_TEST_SUITE_P(Tiers, SelectorContract, testing::ValuesIn(kTiers), name_of);

}  // namespace
}  // namespace kvlab::test
