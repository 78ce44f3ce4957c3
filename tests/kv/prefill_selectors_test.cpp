#include <fstream>

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/select/mark_blocks/mark_blocks.h"
#include "policies/kv/prefill_selector/head_patterns.h"
#include "policies/kv/prefill_selector/prefill_selector.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/selector_fixture.h"

namespace kvlab::test {
namespace {

// A prompt's queries, keys and values of one layer, and its attention with and without a prefill selector.
struct PromptLayer {
  ModelShape model{1, 4, 2, 16, 64, 2, 1e4};
  std::int32_t tokens;
  std::vector<float> q, k, v;

  explicit PromptLayer(std::int32_t n, std::uint64_t stream = 1) : tokens(n) {
    const auto rows = static_cast<std::size_t>(n) * 16;
    q = sample_normals(rows * 4, 10 * stream), k = sample_normals(rows * 2, 10 * stream + 1), v = sample_normals(rows * 2, 10 * stream + 2);
    for (float& x : q) x *= 2;  // attention that is not even
  }
  [[nodiscard]] std::int64_t width() const { return 64; }

  // Attention over all tokens.
  [[nodiscard]] std::vector<float> dense() const {
    std::vector<float> out(q.size());
    AttentionPrefill op;
    op.q = q.data(), op.k = k.data(), op.v = v.data(), op.out = out.data();
    op.new_tokens = tokens, op.q_heads = 4, op.kv_heads = 2, op.head_dim = 16, op.scale = 0.25F;
    std::vector<float> scratch(static_cast<std::size_t>(scratch_floats(op)));
    op.scratch = scratch.data();
    run_cpu(op);
    return out;
  }
  // A selector's attention; chunks end at `ends`, then at the prompt's end.
  std::vector<float> sparse(PrefillSelector& selector, std::vector<std::int32_t> ends = {}) const {
    Ops ops(Ops::Backend::kCpu);
    std::vector<float> out(q.size());
    ends.push_back(tokens);
    std::int32_t begin = 0;
    for (const std::int32_t end : ends) {
      const Ops::Frame frame(ops);
      const std::int64_t at = begin * width();
      selector.attend({ops, model, 0, {0, begin, end - begin, tokens, -1}, q.data() + at, k.data(), v.data(), out.data() + at});
      begin = end;
    }
    return out;
  }
};

std::unique_ptr<PrefillSelector> prefill_part(const std::string& name, const std::string& parameters = "{}") {
  return make_part<PrefillSelectorRegistry>(name, parameters);
}

struct NamedSelector {
  std::string label, name, parameters;
};

// Small budgets, so that something is left out.
std::vector<NamedSelector> small_selectors() {
  return {{"a_shape", "a_shape", "{sink_tokens: 8, recent_tokens: 16, block_tokens: 16}"},
          {"vertical_slash", "vertical_slash",
           "{columns: 12, diagonals: 24, first_columns: 4, near_diagonals: 8, window_queries: 16, block_tokens: 16}"},
          {"block_topk", "block_topk", "{top_blocks: 4, block_tokens: 16}"},
          {"xattention", "xattention", "{stride_tokens: 4, threshold: 0.5, block_tokens: 16}"},
          {"flex_prefill", "flex_prefill", "{gamma: 0.5, min_budget_tokens: 16, block_tokens: 16}"},
          {"minference", "minference", "{columns: 12, diagonals: 24, block_tokens: 16, heads: '0.1=stream_llm:8:16 0.2=block_sparse:4:0'}"},
          {"token_votes", "token_votes", "{chunk_tokens: 48, sink_tokens: 8, recent_tokens: 16, top_tokens: 24}"},
          {"probed_tokens", "probed_tokens", "{mass_frac: 0.6, recent_tokens: 130, probe_frac: 0.1}"},
          {"delta", "delta", "{stride_tokens: 8, of: {a_shape: {sink_tokens: 8, recent_tokens: 16, block_tokens: 16}}}"}};
}

// The same with budgets of at least the prompt.
std::vector<NamedSelector> whole_selectors() {
  return {{"a_shape_sinks", "a_shape", "{sink_tokens: 4096}"},
          {"a_shape_recent", "a_shape", "{sink_tokens: 0, recent_tokens: 4096}"},
          {"columns", "vertical_slash", "{columns: 4096, diagonals: 1}"},
          {"diagonals", "vertical_slash", "{columns: 0, diagonals: 4096}"},
          {"block_topk", "block_topk", "{top_blocks: 4096, block_tokens: 16}"},
          {"xattention", "xattention", "{threshold: 1, block_tokens: 32, stride_tokens: 8}"},
          {"flex_prefill", "flex_prefill", "{min_budget_tokens: 4096, block_tokens: 32}"},
          {"minference", "minference", "{heads: '0.0=stream_llm:4096:64 0.1=block_sparse:4096:0 0.2=vertical_and_slash:4096:1'}"},
          {"token_votes", "token_votes", "{chunk_tokens: 48, top_tokens: 4096}"},
          {"probed_tokens", "probed_tokens", "{mass_frac: 1, recent_tokens: 4096}"},
          {"delta", "delta", "{of: {a_shape: {sink_tokens: 4096}}, stride_tokens: 16}"},
          {"delta_every_row", "delta", "{of: {a_shape: {sink_tokens: 8, recent_tokens: 16, block_tokens: 16}}, stride_tokens: 1}"}};
}

class SmallBudget : public testing::TestWithParam<NamedSelector> {
 protected:
  PromptLayer layer{333};
  std::unique_ptr<PrefillSelector> part = prefill_part(GetParam().name, GetParam().parameters);
};
class WholeBudget : public SmallBudget {};

TEST_P(WholeBudget, EqualsDenseAttention) {
  const std::vector<float> dense = layer.dense();
  for (const std::vector<std::int32_t>& ends : std::vector<std::vector<std::int32_t>>{{}, {128, 256}, {37, 90, 200}})
    EXPECT_LE(most_apart(layer.sparse(*part, ends), dense), 1e-5) << ends.size() << " chunks before the last";
}

// Values do not take part in any choice: a later one changes no earlier output, a query's own one changes its output.
TEST_P(SmallBudget, LaterTokensAreNotSeen) {
  const std::vector<float> before = layer.sparse(*part, {100});
  constexpr std::size_t kChanged = 210;
  for (std::size_t i = kChanged * 32; i < (kChanged + 1) * 32; ++i) layer.v[i] += 100;
  const std::vector<float> after = layer.sparse(*part, {100});
  EXPECT_EQ(most_apart(before.data(), after.data(), kChanged * 64), 0);
  for (std::size_t c = kChanged * 64; c < (kChanged + 1) * 64; c += 16) EXPECT_NE(before[c], after[c]) << c;
}

TEST_P(SmallBudget, LeavesTokensOut) { EXPECT_GT(most_apart(layer.sparse(*part), layer.dense()), 1e-3); }

// On shapes the calls are those on data with the recorded counts; without counts those that the part states.
TEST_P(SmallBudget, CostsWhatRuns) {
  Ops data(Ops::Backend::kCpu), shapes(Ops::Backend::kShapes);
  RecordedCounts recorded;
  data.take_counts_from(&recorded);
  std::vector<float> out(layer.q.size());
  part->attend({data, layer.model, 0, {0, 0, 333, 333, -1}, layer.q.data(), layer.k.data(), layer.v.data(), out.data()});
  ScriptedCounts script(recorded.entries());
  shapes.take_counts_from(&script);
  part->attend({shapes, layer.model, 0, {0, 0, 333, 333, -1}});
  expect_same_calls(shapes.log(), data.log());
  EXPECT_TRUE(script.used_up());
}

INSTANTIATE_TEST_SUITE_P(PrefillSelectors, WholeBudget, testing::ValuesIn(whole_selectors()),
                         [](const auto& info) { return info.param.label; });
INSTANTIATE_TEST_SUITE_P(PrefillSelectors, SmallBudget, testing::ValuesIn(small_selectors()),
                         [](const auto& info) { return info.param.label; });

// A chunk's end changes nothing where lists follow from positions; where the chunk's last queries choose, it does.
TEST(PrefillSelectors, ChunksMatterToThoseThatAsk) {
  const PromptLayer layer(333);
  const auto fixed = prefill_part("a_shape", "{sink_tokens: 8, recent_tokens: 16, block_tokens: 16}");
  EXPECT_LE(most_apart(layer.sparse(*fixed), layer.sparse(*fixed, {37, 150})), 1e-5);
  const auto pooled = prefill_part("block_topk", "{top_blocks: 4, block_tokens: 16}");
  EXPECT_LE(most_apart(layer.sparse(*pooled), layer.sparse(*pooled, {160})), 1e-5);  // whole blocks
  const auto asks = prefill_part("vertical_slash", "{columns: 12, diagonals: 24, first_columns: 4, near_diagonals: 8, block_tokens: 16}");
  const std::vector<float> whole = layer.sparse(*asks), chunked = layer.sparse(*asks, {160});
  EXPECT_GT(most_apart(whole.data(), chunked.data(), 160 * 64), 1e-3);
}

// Every causal pair on a chosen column or diagonal is attended to: marks against sums in double precision.
TEST(PrefillSelectors, MarksCoverColumnsAndDiagonals) {
  const PromptLayer layer(150);
  Ops ops(Ops::Backend::kCpu);
  const PromptChunk chunk{ops, layer.model, 0, {0, 40, 110, 150, -1}, layer.q.data() + std::ptrdiff_t{40} * 64, layer.k.data()};
  const PromptBlocks prompt = chunk.blocks(16);
  std::vector<std::int32_t> marks(static_cast<std::size_t>(prompt.num_lists() * prompt.mark_words())),
      column_marks(static_cast<std::size_t>(4 * prompt.column_words()));
  const std::vector<std::int32_t> columns{3, 0, 5, 2}, diagonals{4, 0, 1, 6};
  MarkBlocks op{prompt, MarkBlocks::Kind::kVerticalSlash, marks.data(), column_marks.data(), columns.data(), diagonals.data()};
  op.window_queries = 8, op.first_columns = op.near_diagonals = 0;
  run_cpu(op);
  for (std::int64_t h = 0; h < 4; ++h) {
    std::vector<double> of_column(150), of_diagonal(150);
    for (std::int64_t i = 102; i < 110; ++i) {
      std::vector<double> row;
      for (std::int64_t j = 0; j <= 40 + i; ++j) row.push_back(dot(prompt.query(i, h), prompt.key(j, h), 16) / 4);
      row = softmax(row);
      for (std::size_t j = 0; j < row.size(); ++j) of_column[j] += row[j], of_diagonal[row.size() - 1 - j] += row[j];
    }
    std::int64_t marked_columns = 0;
    for (std::int64_t c = 0; c < 150; ++c) marked_columns += is_marked(column_marks.data() + h * prompt.column_words(), c) ? 1 : 0;
    EXPECT_EQ(marked_columns, nth(columns, h));
    for (const std::int32_t c : best(of_column, static_cast<std::size_t>(nth(columns, h))))
      EXPECT_TRUE(is_marked(column_marks.data() + h * prompt.column_words(), c)) << h << " column " << c;
    for (const std::int32_t o : best(of_diagonal, static_cast<std::size_t>(nth(diagonals, h))))
      for (std::int64_t position = std::max(40, o); position < 150; ++position) {
        const std::int64_t list = h * prompt.num_query_blocks() + position / 16 - prompt.first_block();
        EXPECT_TRUE(is_marked(marks.data() + list * prompt.mark_words(), (position - o) / 16)) << h << " distance " << o;
      }
  }
  const std::int64_t second = prompt.num_query_blocks() * prompt.mark_words();
  EXPECT_TRUE(std::all_of(marks.begin() + second, marks.begin() + 2 * second, [](std::int32_t w) { return w == 0; }));
}

// XAttention, threshold 0: the forced blocks alone, the first and the own one. Attention over these two is the a_shape's of no newer ones.
TEST(PrefillSelectors, ForcedBlocksStay) {
  const PromptLayer layer(100);
  const auto forced = prefill_part("xattention", "{stride_tokens: 4, threshold: 0, block_tokens: 16}");
  Ops ops(Ops::Backend::kCpu);
  RecordedCounts counts;
  ops.take_counts_from(&counts);
  std::vector<float> out(layer.q.size());
  forced->attend({ops, layer.model, 0, {0, 0, 100, 100, -1}, layer.q.data(), layer.k.data(), layer.v.data(), out.data()});
  ASSERT_EQ(counts.entries().size(), 1U);
  for (std::size_t i = 0; i < 28; ++i) EXPECT_EQ(counts.entries()[0].counts[i], i % 7 == 0 ? 1 : 2) << i;
}

// Attention of query i of the layer in head h over these keys, in double precision.
std::vector<double> over_keys(const PromptLayer& layer, std::int32_t i, std::int32_t h, const std::vector<std::int32_t>& keys) {
  std::vector<double> out(16, 0);
  double sum = 0;
  for (const std::int32_t j : keys) {
    const double p = std::exp(dot(&nth(layer.q, (i * 4 + h) * 16), &nth(layer.k, (j * 2 + h / 2) * 16), 16) / 4);
    sum += p;
    for (std::int32_t c = 0; c < 16; ++c) nth(out, c) += p * nth(layer.v, (j * 2 + h / 2) * 16 + c);
  }
  for (double& x : out) x /= sum;
  return out;
}

// The queries that have an output are the tokens that others attend to, per KV head, and the newest are among them.
TEST(PrefillSelectors, ImportantTokensAttendToOneAnother) {
  const PromptLayer layer(200);
  const auto part = prefill_part("probed_tokens", "{mass_frac: 0.7, recent_tokens: 10, probe_frac: 0.1}");
  const std::vector<float> out = layer.sparse(*part);
  for (std::int32_t h = 0; h < 4; ++h) {
    std::vector<std::int32_t> chosen;
    for (std::int32_t i = 0; i < 200; ++i) {
      const float* const row = out.data() + (i * 4 + h) * 16;
      if (std::all_of(row, row + 16, [](float x) { return x == 0; })) continue;
      chosen.push_back(i);
      const std::vector<double> expected = over_keys(layer, i, h, chosen);
      for (std::int32_t c = 0; c < 16; ++c) EXPECT_NEAR(row[c], nth(expected, c), 1e-4) << h << " " << i;
    }
    EXPECT_GT(chosen.size(), 50U) << h;
    EXPECT_LT(chosen.size(), 180U) << h;
    for (std::int32_t i = 190; i < 200; ++i) EXPECT_TRUE(std::binary_search(chosen.begin(), chosen.end(), i)) << h << " " << i;
  }
}

// The last chunk, tokens 150 to 199: it sees itself, 5 first tokens, 10 before it, and the 20 of 5 to 139 with the largest sum over heads
// of the softmax of its mean query.
TEST(PrefillSelectors, HeadsElectTokensForAChunk) {
  const PromptLayer layer(200);
  const auto part = prefill_part("token_votes", "{chunk_tokens: 50, sink_tokens: 5, recent_tokens: 10, top_tokens: 20}");
  const std::vector<float> out = layer.sparse(*part);
  std::vector<double> votes(135, 0);
  for (std::int32_t h = 0; h < 4; ++h) {
    std::vector<double> z(135, 0);
    for (std::int32_t j = 5; j < 140; ++j)
      for (std::int32_t i = 150; i < 200; ++i)
        nth(z, j - 5) += dot(&nth(layer.q, (i * 4 + h) * 16), &nth(layer.k, (j * 2 + h / 2) * 16), 16) / 50 / 4;
    const std::vector<double> p = softmax(z);
    for (std::size_t j = 0; j < p.size(); ++j) votes[j] += p[j];
  }
  Ints keys = range(0, 5);
  for (const std::int32_t j : best(votes, 20)) keys.push_back(5 + j);
  for (std::int32_t i = 140; i < 150; ++i) keys.push_back(i);
  for (std::int32_t i = 150; i < 200; ++i) {
    keys.push_back(i);
    for (std::int32_t h = 0; h < 4; ++h) {
      const std::vector<double> expected = over_keys(layer, i, h, keys);
      for (std::int32_t c = 0; c < 16; ++c) EXPECT_NEAR(nth(out, (i * 4 + h) * 16 + c), nth(expected, c), 1e-4) << h << " " << i;
    }
  }
}

TEST(PrefillSelectors, PatternFiles) {
  const HeadPatterns inline_ones = parse_head_patterns("0.1=stream_llm:100:800 3.7=block_sparse:100:0");
  EXPECT_EQ(inline_ones.size(), 2U);
  EXPECT_EQ(inline_ones.at({0, 1}).kind, HeadPattern::Kind::kAShape);
  EXPECT_EQ(inline_ones.at({3, 7}).first, 100);
  const std::string file = testing::TempDir() + "/patterns.json";
  std::ofstream(file)
      << R"([{"0": ["vertical_and_slash", 30, 800, 0.1], "5": ["stream_llm", 100, 750, 1]}, {"2": ["block_sparse", 100, 0, 2]}])";
  const PatternTable table = read_head_patterns(file);
  const HeadPatterns& patterns = table.patterns;
  EXPECT_EQ(table.layers, 2);
  EXPECT_EQ(patterns.size(), 3U);
  EXPECT_EQ(patterns.at({0, 5}).second, 750);
  EXPECT_EQ(patterns.at({1, 2}).kind, HeadPattern::Kind::kBlocks);
  std::ofstream(file) << R"([{"0": ["diagonal", 30, 800, 0.1]}])";
  EXPECT_THROW(read_head_patterns(file), InputError);
  EXPECT_EQ(parse_head_patterns(head_patterns_inline(patterns)).size(), 3U);
  EXPECT_THROW(parse_head_patterns("0=stream_llm:1:2"), InputError);
  EXPECT_THROW(parse_head_patterns("0.1=stream_llm:1:0"), InputError);
}

// A file has all layers of its model, and all heads or some.
TEST(PrefillSelectors, PatternsOfAnotherModelAreRefused) {
  const std::string file = testing::TempDir() + "/other_patterns.json";
  const auto refused = [&](const std::string& json) {
    std::ofstream(file) << json;
    return prefill_part("minference", "{file: " + file + "}")->refuses({2, 4, 2, 16, 64, 2, 1e4});
  };
  const HeadPattern pattern;
  const auto text = [&](std::size_t layers, std::int32_t heads) {
    return head_patterns_text(std::vector(layers * static_cast<std::size_t>(heads), std::pair(pattern, 0.5)), heads);
  };
  EXPECT_EQ(refused(text(2, 4)), "");
  EXPECT_EQ(refused(R"([{"1": ["stream_llm", 1, 2, 0]}, {}])"), "");
  EXPECT_NE(refused(text(1, 4)).find("another model: of 1 layers of 4 query heads, and the model has 2"), std::string::npos);
  EXPECT_NE(refused(text(3, 4)).find("another model"), std::string::npos);
  EXPECT_NE(refused(text(2, 2)).find("another model"), std::string::npos);
}

}  // namespace
}  // namespace kvlab::test
