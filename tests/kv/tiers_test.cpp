#include "serving/op_sums.h"
#include "sim/kv_cost/step_ops.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

// A selector that brings units of `unit_tokens` tokens between what it always reads: [0, head) and [tail(n), n).
struct Tiered {
  std::string part, parameters;
  std::int32_t unit_tokens, sides, head;  // sides: 2 where keys and values come, 1 for one of them
  std::function<std::int32_t(std::int32_t)> tail;
  std::int64_t most_units;  // per row and step
  std::int32_t stays = 0;   // newest tokens of the prompt of 100 that are on the GPU before the first step
};

// Budgets of query heads that choose apart hold for each of the four heads of a group.
const std::vector<Tiered> kTiered = {
    {"infinigen", "{alpha: 2, max_frac: 0.2}", 1, 2, 0, [](auto n) { return n - 1; }, 0},
    {"alisa", "{budget_frac: 0.2}", 1, 2, 0, [](auto n) { return std::min(n - 1, n - std::max(1, std::max(1, n / 5) / 2)); }, 0, 10},
    {"k_cache", "{top_tokens: 6}", 1, 1, 0, [](auto n) { return n - 1; }, 24},
    {"retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5}", 1, 2, 4, [](auto n) { return n - 8; }, 20, 8},
    {"retrieval_attention", "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5, search: hnsw}", 1, 2, 4, [](auto n) { return n - 8; }, 20,
     8},
    {"a2ats", "{sink_tokens: 3, local_tokens: 8, top_frac: 0.1}", 1, 2, 3, [](auto n) { return n - 8; }, 4 * 12, 8},
    {"pq_cache", "{sink_tokens: 4, read_frac: 0.2}", 1, 2, 4, [](auto n) { return n - 9; }, 9, 9},
    {"lsh_sampling", "{sink_tokens: 4, local_tokens: 8, bits: 4, tables: 8}", 1, 2, 4, [](auto) { return 92; }, 88, 8},
    {"spe_cache", "{top_tokens: 5, residual_tokens: 6, group_tokens: 4}", 1, 2, 0, [](auto n) { return (n - 6) / 4 * 4; }, 5},
    {"leo_am", "{leaf_tokens: 4, root_tokens: 32}", 4, 2, 0, [](auto n) { return (n - 1) / 4 * 4; }, 3},
};

std::vector<std::int32_t> chosen_of(const std::vector<std::int32_t>& row, std::int32_t head, std::int32_t tail) {
  std::vector<std::int32_t> chosen;
  for (const std::int32_t i : row)
    if (i >= head && i < tail) chosen.push_back(i);
  return chosen;
}

TEST(Tiers, TrafficIsWhatTheTokensReadTell) {
  for (const Tiered& a : kTiered) {
    auto part = make_part<SelectorRegistry>(a.part, a.parameters);
    Decode d({4, 8, 2, 8, 16}, 2, 100, 3, true, part->num_words());
    d.prefill(*part);
    std::vector<Ints> last(4, range(100 - a.stays, 100));
    for (std::int32_t t = 0; t < 9; ++t) {
      const auto rows = d.decode(*part);
      const std::int32_t tail = a.tail(d.tokens());
      const std::int64_t most = a.most_units > 0 ? a.most_units : d.tokens() / 5;
      std::int64_t asked = 0, fetched = 0;
      for (std::size_t r = 0; r < 4; ++r) {
        const std::vector<std::int32_t> chosen = chosen_of(rows[r], a.head, tail);
        asked += static_cast<std::int64_t>(chosen.size()) / a.unit_tokens;
        fetched += newcomers(chosen, last[r]) / a.unit_tokens;
        EXPECT_LE(static_cast<std::int64_t>(chosen.size()) / a.unit_tokens, most) << a.part;
        last[r] = rows[r];
      }
      const Traffic traffic = part->take_traffic();
      EXPECT_EQ(traffic.asked_units, asked) << a.part << " step " << t;
      EXPECT_EQ(traffic.hit_units, asked - fetched) << a.part << " step " << t;
      EXPECT_EQ(traffic.fetched_bytes, fetched * a.unit_tokens * a.sides * 8 * 2) << a.part << " step " << t;
      EXPECT_GT(asked, 0) << a.part;
      EXPECT_EQ(part->take_traffic().asked_units, 0) << a.part << ": each is counted once";
    }
  }
}

// Nothing is lost between the tiers: with summaries left out, K and V of all tokens are in some tier, most of them not on the GPU.
TEST(Tiers, BytesOfAllTiersAreAllBytes) {
  constexpr std::int64_t kHeld = 2LL * 1000 * 2 * 64 * 2;
  const std::pair<std::string, std::string> parts[] = {{"infinigen", "{}"},
                                                       {"alisa", "{}"},
                                                       {"k_cache", "{top_tokens: 40}"},
                                                       {"retrieval_attention", "{sink_tokens: 8, recent_tokens: 64}"},
                                                       {"a2ats", "{}"},
                                                       {"pq_cache", "{}"},
                                                       {"spe_cache", "{}"},
                                                       {"shadow_kv", "{keys: fetched, budget_tokens: 200, outlier_chunks: 8}"},
                                                       {"sentence", "{budget_tokens: 128}"},
                                                       {"rekv", "{frame_tokens: 8, top_frames: 8, local_tokens: 100}"},
                                                       {"leo_am", "{disk_bits: 16}"}};
  for (const auto& [name, parameters] : parts) {
    auto part = make_part<SelectorRegistry>(name, parameters);
    KvStore store({4, 8, 2, 64, 16}, 1, 0, false);
    store.append(0, nullptr, nullptr, 1000, 0);
    const ModelShape model{4, 8, 2, 64, 16};
    const TierBytes bytes = part->resident_in_layer(2, model, store.rows(), {kHeld, 0, 0});
    const std::int64_t beside = bytes.gpu + bytes.host + bytes.disk - kHeld;
    EXPECT_GE(beside, 0) << name;
    EXPECT_LE(beside, kHeld * 3 / 10) << name;  // partial keys, codes, means and bounds
    EXPECT_GT(bytes.host + bytes.disk, kHeld / 3) << name;
    if (name == "alisa" || name == "k_cache" || name == "retrieval_attention") {
      EXPECT_EQ(beside, 0) << name;
    }
  }
}

// One sequence takes this of each tier, with `held` bytes as K and V.
TEST(Tiers, BytesByHand) {
  struct Case {
    const char *part, *parameters;
    ModelShape model;
    std::int32_t tokens;
    std::int64_t held;
    TierBytes expected;
  };
  const char *const kFrames = "{frame_tokens: 10, first_frames: 1, top_frames: 4, local_tokens: 50}",
                    *const kNearest = "{sink_tokens: 4, recent_tokens: 8, top_tokens: 5}";
  const Case cases[] = {
      // 72 of 1000 tokens, 12 bits for 936 of them, 1000 / 16 centers of 8 channels.
      {"a2ats", "{}", {4, 2, 1, 8, 16}, 1000, 32000, {72 * 32 + 1404 + 62 * 16, 928 * 32, 0}},
      // 32 + 48 + 48 of 1000 tokens, 2 bytes for 920 of them, 64 centers of 8 channels.
      {"pq_cache", "{}", {4, 2, 1, 8, 16}, 1000, 32000, {128 * 32 + 1840 + 64 * 16, 872 * 32, 0}},
      {"rekv", kFrames, {4, 2, 1, 8, 16}, 1000, 32000, {100 * 32 + 100 * 8 * 2, 900 * 32, 0}},
      {"retrieval_attention", kNearest, {4, 8, 2, 8, 16}, 103, 2 * 103 * 32, {2 * 12 * 32, 2 * 91 * 32, 0}},
      {"spar_f", "{}", {4, 2, 1, 8, 16}, 0, 3200, {0, 8 * 4, 4800}},    // on flash, keys twice
      {"fetch_all", "{}", {8, 4, 2, 8, 16}, 50, 3200, {800, 3200, 0}},  // two layers are on the GPU
      {"fetch_all", "{from: disk}", {8, 4, 2, 8, 16}, 50, 3200, {800, 0, 3200}},
      // Beside the cache: bounds of pages, and attention to 7 blocks of 16 tokens in each row.
      {"hybrid_sparse", "{}", {4, 4, 2, 8, 16}, 100, 0, {2 * 34 * 2 * 8 * 2, 0, 0}},
      {"attention_predictor", "{}", {4, 8, 2, 32, 64}, 100, 0, {2 * 64 * 7 * 4, 0, 0}},
  };
  for (const Case& c : cases) {
    KvStore store(c.model, 1, 0, false);
    store.append(0, nullptr, nullptr, c.tokens, 0);
    EXPECT_EQ(make_part<SelectorRegistry>(c.part, c.parameters)->resident(c.model, store.rows(), {c.held, 0, 0}), c.expected)
        << c.part << c.parameters;
  }
}

TEST(Tiers, AnEmptyRowTakesNoBytes) {
  for (const Tiered& a : kTiered) {
    auto part = make_part<SelectorRegistry>(a.part, a.parameters);
    KvStore store({4, 8, 2, 64, 16}, 1, 0, false);
    const TierBytes bytes = part->resident_in_layer(2, {4, 8, 2, 64, 16}, store.rows(), {});
    EXPECT_EQ(bytes.host + bytes.disk, 0) << a.part;
  }
}

TEST(FetchAll, BringsEveryOlderTokenInEachStep) {
  for (const char* from : {"cpu_memory", "disk"}) {
    Prefilled d({4, 4, 2, 8, 16}, 3, 50, "fetch_all", std::string("{from: ") + from + "}");
    EXPECT_EQ(d.part->take_traffic().fetched_bytes, 0);
    for (std::int32_t t = 0; t < 2; ++t) {
      for (const auto& row : d.decode()) EXPECT_EQ(std::ssize(row), d.tokens());
      const Traffic traffic = d.part->take_traffic();
      EXPECT_EQ(traffic.fetched_bytes, 6LL * (50 + t) * 2 * 8 * 2) << from << " step " << t;
      EXPECT_EQ(traffic.disk_bytes, from == std::string("disk") ? traffic.fetched_bytes : 0);
      EXPECT_EQ(traffic.hit_units, 0);
    }
  }
}

// Layers whose transfers hide beside computation wait each for its own; without that, all transfers of a step are one sum.
TEST(OpSums, TransfersBesideComputationStayApart) {
  const auto ops_of = [](FetchBeside beside) {
    std::vector<PolicyOp> ops;
    add_calls(ops, {kFetch, 0, 0, 0, 100, 0}, 3, beside);
    add_calls(ops, {kFetch, 0, 0, 0, 700, 0}, 2, beside);
    add_calls(ops, {kFetch, 0, 0, 0, 100, 0}, 1, beside);
    add_calls(ops, {kReadDisk, 0, 0, 0, 40, 0}, 2, beside);
    add_calls(ops, {kReadDisk, 0, 0, 0, 0, 0}, 2, beside);
    return ops;
  };
  const std::vector<PolicyOp> sums = ops_of(FetchBeside::kNothing), apart = ops_of(FetchBeside::kLayerBefore);
  ASSERT_EQ(sums.size(), 2U);
  EXPECT_EQ(std::pair(sums[0].launches, sums[0].bytes), std::pair(6L, 1800L));
  EXPECT_TRUE(sums[0].over_host_link && !sums[0].from_disk && sums[1].from_disk && !sums[1].over_host_link);
  ASSERT_EQ(apart.size(), 3U);
  EXPECT_EQ(std::pair(apart[0].launches, apart[0].bytes), std::pair(4L, 400L));
  EXPECT_EQ(std::pair(apart[1].bytes, apart[1].beside), std::pair(1400L, FetchBeside::kLayerBefore));
}

// Selectors make their summaries of keys, by which they rank pages, chunks and tokens, from the keys as computed. For every format, the
// same queries choose the same tokens.

// Tokens read in each decode step, layer by layer and row by row.
std::vector<std::vector<std::int32_t>> chosen_tokens(const AttentionTrace& trace, const Recipe& recipe) {
  PolicyWalk walk(trace, recipe, 7);
  std::vector<std::vector<std::int32_t>> chosen;
  walk.run([&](const PolicyStep& step, std::int32_t l) {
    walk.policy.before_attention(step, l, walk.segments);
    const Segment& rows = walk.segments.front();
    for (std::int32_t r = 0; r < walk.model.kv_heads && step.seqs.front().decoding(); ++r)
      if (rows.index == nullptr)
        chosen.emplace_back();
      else
        chosen.emplace_back(rows.index + rows.index_first[r], rows.index + rows.index_first[r + 1]);
  });
  return chosen;
}

class ExactSummaries : public testing::TestWithParam<const char*> {};

TEST_P(ExactSummaries, ChooseTheSameTokensWhateverTheFormat) {
  const std::string recipe = std::string("{recipe: full, selector: {") + GetParam() + "}";
  for (const std::int32_t chunk : {90, 0}) {
    const AttentionTrace trace = sample({.decode = 40, .chunk = chunk});  // pages fill while their older tokens are encoded
    const auto exact = chosen_tokens(trace, recipe_of(recipe + "}"));
    EXPECT_TRUE(std::any_of(exact.begin(), exact.end(), [](const auto& row) { return !row.empty() && std::ssize(row) < 120; }));
    for (const char* format :
         {"kivi: {bits: 2, group_tokens: 4, residual_tokens: 4}", "low_rank_keys: {rank: 2}", "cast: {type: fp8_e4m3}"}) {
      // A format that encodes inside the prompt leaves no exact keys of earlier chunks to what is built at the prompt's end.
      if (chunk > 0 && std::string(format).starts_with("cast")) continue;
      EXPECT_TRUE(chosen_tokens(trace, recipe_of(recipe + ", format: {" + format + "}}")) == exact) << format << ", chunks of " << chunk;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Selectors, ExactSummaries,
    testing::Values("quest: {page_tokens: 8, budget_tokens: 40, dense_layers: 0}",
                    "lserve: {page_tokens: 16, logical_tokens: 8, budget_tokens: 64}",
                    "infllm2: {kernel_tokens: 8, stride_tokens: 4, block_tokens: 8, window_tokens: 8, top_blocks: 6, dense_tokens: 40}",
                    "act_qkv: {chunk_tokens: 8, budget_tokens: 80, sink_tokens: 8, recent_tokens: 8}",
                    "hybrid_sparse: {page_tokens: 4, budget_tokens: 60}", "leo_am: {leaf_tokens: 4}",
                    "moba: {chunk_tokens: 8, top_chunks: 4}", "mpcache: {large_tokens: 16, small_tokens: 8, dense_layers: 0}",
                    "shadow_kv: {chunk_tokens: 4, budget_tokens: 24, outlier_chunks: 4, local_chunks: 2}", "infinigen: {dense_layers: 0}",
                    "retrieval_chunks: {chunk_tokens: 8, budget_tokens: 48}", "rekv: {frame_tokens: 8, top_frames: 6, question_tokens: 16}",
                    "window_choice: {window_tokens: 8, budget_tokens: 40}",
                    "lsh_sampling: {bits: 4, tables: 10, sink_tokens: 2, local_tokens: 8, dense_every: 0}", "squeezed: {}",
                    "twilight: {of: all, mass_frac: 0.8, unpruned_layers: 0}"),
    [](const auto& info) {
      const std::string text = info.param;
      return text.substr(0, text.find(':'));
    });

// The tokens that the decode steps of a sample attend to, rows of one step and layer after the other; the cache keeps all of them.
std::vector<std::vector<std::int32_t>> attended_rows(const AttentionTrace& trace, const std::string& recipe) {
  PolicyWalk walk(trace, recipe_of(recipe));
  std::vector<std::vector<std::int32_t>> rows;
  walk.run([&](const PolicyStep& step, std::int32_t l) {
    const KvStore& store = nth(walk.stores, l);
    for (std::int32_t r = 0; r < walk.model.kv_heads; ++r) EXPECT_EQ(store.len(r), step.seqs.front().end());
    if (!step.seqs.front().decoding()) return;
    walk.policy.before_attention(step, l, walk.segments);
    const Segment& s = walk.segments.front();
    for (std::int32_t r = 0; r < walk.model.kv_heads; ++r) rows.emplace_back(s.index + s.index_first[r], s.index + s.index_first[r + 1]);
  });
  for (const KvStore& store : walk.stores)
    for (std::int32_t r = 0; r < walk.model.kv_heads; ++r) EXPECT_EQ(store.len(r), trace.num_tokens);
  return rows;
}

// The draft's cache has the tokens that SnapKV with the same window and pool keeps, then all decoded ones.
TEST(WindowChoice, AttendsToTheTokensThatSnapKvKeeps) {
  const AttentionTrace trace = sample({});
  const std::string scorer = "scorer: {window_attention: {window_tokens: 16, pool: avg, pool_tokens: 5}}";
  const auto kept = replay_listed("{recipe: snapkv, budget_tokens: 60, " + scorer + "}", trace).kept_of_prompt;
  const auto rows = attended_rows(trace, "{recipe: magicdec_cache, selector: {window_choice: {window_tokens: 16}}, budget_tokens: 60}");
  ASSERT_EQ(rows.size(), kept.size() * static_cast<std::size_t>(trace.num_tokens - trace.prompt_tokens));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::int32_t> expected = kept[i % kept.size()];
    for (std::size_t t = 0; t <= i / kept.size(); ++t) expected.push_back(trace.prompt_tokens + static_cast<std::int32_t>(t));
    EXPECT_EQ(rows[i], expected);
  }
}

TEST(WindowChoice, ACopyInAdditionToTheCache) {
  Prefilled d({4, 4, 2, 8, 16}, 1, 100, "window_choice", "{window_tokens: 8, budget_tokens: 40}", {.window = 8});
  EXPECT_EQ(d.part->resident(d.model, d.store.rows(), {2 * 100 * 32, 0, 0}), (TierBytes{2 * 100 * 32 + 2 * 40 * 32, 0, 0}));
  for (const auto& row : d.decode()) EXPECT_EQ(row.size(), 41U);
}

}  // namespace
}  // namespace kvlab::test
