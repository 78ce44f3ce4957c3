#include "policies/kv/allocator/counts.h"
#include "policies/kv/policy/policy.h"
#include "policies/kv/recipe/trained_tensors.h"
#include "tests/has_all.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/trained_fixture.h"
#include "tests/test_files.h"

namespace kvlab::test {
namespace {

// Trained and calibrated tensors that recipes name, and head labels.

class WeightFile : public testing::Test {
 protected:
  [[nodiscard]] std::string text(const std::string& name, const std::string& content) const { return folder_.write(name, content); }
  using Tensors = std::vector<std::pair<std::string, std::vector<std::int64_t>>>;
  // Values 0, 1, 2, ... of each tensor unless `values` has others.
  std::string tensors(const Tensors& shapes, const std::map<std::string, std::vector<float>>& values = {}) const {
    TrainedFile file;
    for (const auto& [name, shape] : shapes) {
      std::vector<float> x(static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>())));
      std::iota(x.begin(), x.end(), 0.0F);
      file.add(name, shape, values.contains(name) ? values.at(name) : x);
    }
    return file.file();
  }

  TempFolder folder_;
};

AttentionTrace weights_trace(std::vector<std::int32_t> chunk_ends = {}) {
  AttentionTrace trace = synthetic_trace("layers: 3, q_heads: 8, kv_heads: 2, head_dim: 32, prompt_tokens: 200, decode_tokens: 4");
  if (!chunk_ends.empty()) trace.chunk_ends = std::move(chunk_ends);
  return trace;
}

TEST_F(WeightFile, APublishedTableOfGates) {
  const auto gates = TrainedTensors::open(text("full_attention_heads.tsv", "0.25\t1.5\n-1e-3\t0.75\n"));
  EXPECT_EQ(gates->shape("gates"), (std::vector<std::int64_t>{2, 2}));
  const std::span<const float> values = gates->floats("gates");
  EXPECT_EQ(std::vector<float>(values.begin(), values.end()), (std::vector<float>{0.25F, 1.0F, 0.0F, 0.75F}));
  const auto error = [&](const std::string& content) { return error_of([&] { TrainedTensors::open(text("t.tsv", content)); }); };
  EXPECT_THAT(error("1 0\n1\n"), HasSubstr("t.tsv:2: 1 numbers, expected 2"));
  EXPECT_THAT(error("1 0\n1 x\n"), HasSubstr("t.tsv:2: not a number: 'x'"));
  EXPECT_THAT(error("1 nan\n"), HasSubstr("not a number"));
  EXPECT_THAT(error(""), HasSubstr("is empty"));
  EXPECT_THAT(error("1 0\n\n1 1\n"), HasSubstr("t.tsv:2: 0 numbers"));
}

TEST_F(WeightFile, TensorsAreCheckedByNameAndShape) {
  const auto weights = TrainedTensors::open(tensors({{"a", {2, 3}}, {"b", {4}}}));
  EXPECT_EQ(weights->names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(weights->floats("b")[3], 3);
  EXPECT_EQ(weights->refuses("a", {2, 3}, ""), "");
  EXPECT_EQ(weights->refuses("a", {-1, 3}, ""), "");
  EXPECT_THAT(weights->refuses("a", {2, 4}, "layers, heads"), HasSubstr("has shape [2, 3], the model needs [2, 4] (layers, heads)"));
  EXPECT_NE(weights->refuses("b", {4, 1}, ""), "");
  EXPECT_THAT(error_of([&] { weights->require("c"); }), HasSubstr("has no tensor 'c'; it has a, b"));
}

// Minus the product with the published direction, of every sequence and KV head of the layer.
TEST_F(WeightFile, QFiltersByHand) {
  const ModelShape shape{2, 4, 2, 8};
  const std::vector<float> filters = RandomLayer::normals(2 * 2 * 8, 3, 1);
  RandomLayer layer(shape, 2, 30, 9);
  auto scorer = make_part<ScorerRegistry>("query_direction");
  EXPECT_EQ(scorer->needs().window_queries, 128);
  scorer->set_weights(TrainedTensors::open(tensors({{"q_filters", {2, 2, 8}}}, {{"q_filters", filters}})));
  EXPECT_EQ(scorer->needs().window_queries, 0);
  EXPECT_EQ(scorer->refuses(shape), "");
  LayerStep step = layer.prompt_step(1);
  step.layer = 1;
  const std::vector<float> scores = scored(*scorer, step);
  for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
    for (std::int32_t i = 0; i < step.kv.len[r]; ++i) {
      EXPECT_NEAR(nth(scores, step.kv.first[r] + i), -dot(step.kv.key(r, i), &nth(filters, (2 + r % 2) * 8), 8), 1e-5);
    }
}

TEST_F(WeightFile, QFiltersRefuseAnotherModel) {
  const std::string path = tensors({{"q_filters", {4, 2, 32}}});
  EXPECT_THAT(error_of([&] { replay_listed("{recipe: q_filters, budget_tokens: 40, weights: " + path + "}", weights_trace()); }),
              has_all({"recipe 'q_filters' cannot run: tensor 'q_filters' of ", "has shape [4, 2, 32], the model needs [3, 2, 32]"}));
}

TEST_F(WeightFile, ErrorsSayWhatToType) {
  const auto error = [&](const std::string& recipe) { return error_of([&] { recipe_of(recipe); }); };
  EXPECT_THAT(error("{recipe: q_filters, weights: none.safetensors}"),
              has_all({"<kv_policy>:1:", "'none.safetensors': no such file; to be had: tensor q_filters"}));
  const std::string other = tensors({{"gates", {3, 2}}});
  EXPECT_THAT(error("{recipe: snapkv, weights: " + other + "}"), HasSubstr("no part of recipe 'snapkv' takes weights"));
  EXPECT_THAT(error("{recipe: q_filters, weights: " + other + "}"), HasSubstr("has no tensor 'q_filters'; it has gates"));
  EXPECT_THAT(error("{recipe: razor, weights: " + other + "}"), HasSubstr("has no tensor 'kv_induction'"));
  EXPECT_THAT(error("{recipe: duo, allocator: {head_split: {retrieval_heads: 0.1}}, weights: " + other + "}"),
              HasSubstr("exclude each other"));
  EXPECT_EQ(error("{recipe: duo, weights: " + other + "}"), "no error");
  EXPECT_EQ(error("{recipe: snapkv, allocator: {ada: {layers: head_split}}, weights: " + other + "}"), "no error") << "ada passes them on";
}

std::vector<std::pair<int, int>> places(const HeadLabels& labels) {
  std::vector<std::pair<int, int>> all;
  for (const TableEntry& e : labels.retrieval_heads()) all.emplace_back(e.layer, e.head);
  return all;
}

TEST_F(WeightFile, RetrievalHeadsByGates) {
  const auto weights = TrainedTensors::open(text("g.tsv", "0.5 0.9\n0.5 0.1\n0.5 0.95\n"));
  using Places = std::vector<std::pair<int, int>>;
  EXPECT_EQ(places(HeadLabels(weights, HeadLabel::kGates, 0.5, 0)), (Places{{0, 0}, {0, 1}, {2, 1}}));  // the first of equal values
  EXPECT_EQ(places(HeadLabels(weights, HeadLabel::kGates, 0.17, 0)), (Places{{2, 1}}));
  EXPECT_TRUE(HeadLabels(weights, HeadLabel::kGates, 0, 0).are_given());
  EXPECT_EQ(places(HeadLabels(weights, HeadLabel::kGates, 1, 0)).size(), 6U);
}

TEST_F(WeightFile, RetrievalHeadsByInductionAndEcho) {
  const auto weights =
      TrainedTensors::open(tensors({{"kv_induction", {2, 5}}, {"kv_echo", {2, 5}}},
                                   {{"kv_induction", {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}}, {"kv_echo", {0, 0, 0, 0, 0, 0, 0, 1, 5, 2}}}));
  EXPECT_EQ(places(HeadLabels(weights, HeadLabel::kInduction, 0.3, 0.1)), (std::vector<std::pair<int, int>>{{0, 0}, {0, 1}, {1, 3}}));
}

// Heads that keep the whole prompt.
std::vector<std::size_t> whole_rows(const ReplayResult& result, std::size_t tokens) {
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < result.kept_of_prompt.size(); ++i)
    if (result.kept_of_prompt[i].size() == tokens) rows.push_back(i);
  return rows;
}

// Without a file the heads depend on the tokens seen when the first token must be dropped; with a file they do not.
TEST_F(WeightFile, HeadsOfDuoDoNotDependOnChunks) {
  const std::string recipe = "{recipe: duo, budget_tokens: 80, weights: " + text("g.tsv", "0.5 0.9\n0.4 0.1\n0.7 0.2\n") + "}";
  for (const std::vector<std::int32_t>& chunks : {std::vector<std::int32_t>{}, {100, 200}, {30, 60, 90, 120, 150, 180, 200}}) {
    const ReplayResult result = replay_listed(recipe, weights_trace(chunks));
    EXPECT_EQ(whole_rows(result, 200), (std::vector<std::size_t>{0, 1, 4}));
    for (const std::size_t row : {2U, 3U, 5U}) {
      std::vector<std::int32_t> ends(64);
      std::iota(ends.begin(), ends.end(), 0);
      for (std::int32_t i = 184; i < 200; ++i) ends.push_back(i);
      EXPECT_EQ(result.kept_of_prompt[row], ends) << row;
    }
  }
}

TEST_F(WeightFile, RazorKeepsLabelledHeads) {
  const std::string path = tensors({{"kv_induction", {3, 2}}, {"kv_echo", {3, 2}}}, {{"kv_induction", {0, 0, 5, 0, 0, 0}}});
  for (const std::string recipe : {"razor", "razor_compensation"}) {
    const ReplayResult result = replay_listed("{recipe: " + recipe + ", budget_tokens: 30, weights: " + path + "}", weights_trace());
    EXPECT_EQ(whole_rows(result, 200), (std::vector<std::size_t>{2})) << recipe;
  }
}

TEST_F(WeightFile, CompressKvReadsLabelledHeads) {
  std::vector<float> semantic(24, 0.0F);
  for (const std::size_t at : {1U, 6U, 8U, 11U, 20U, 23U}) semantic[at] = 1 + static_cast<float>(at);
  const std::string path = tensors({{"semantic", {3, 8}}}, {{"semantic", semantic}});
  const std::string parts = "heads_per_layer: 2, window_tokens: 8, pool: avg, pool_tokens: 5";
  const AttentionTrace trace = weights_trace();
  const auto kept = [&](const std::string& more) {
    return replay_listed("{recipe: compresskv, budget_tokens: 60" + more + "}", trace).kept_of_prompt;
  };
  const auto labelled = kept(", scorer: {retrieval_head_window: {" + parts + "}}, weights: " + path);
  EXPECT_EQ(labelled, kept(", scorer: {retrieval_head_window: {" + parts + ", heads: 0.1 0.6 1.0 1.3 2.4 2.7}}"));
  EXPECT_NE(labelled, kept(""));
}

// LU-KV: shares per head from curves found offline.

// A recipe with curves that drop half of every head, but for the line of 60 %.
std::string with_curves(std::int64_t heads, const std::vector<float>& at_60, const std::string& budget) {
  std::vector<float> dropped(static_cast<std::size_t>(99 * 3 * heads), 0.5F);
  std::copy(at_60.begin(), at_60.end(), dropped.begin() + 59 * 3 * heads);
  TrainedFile curves;
  curves.add("prune_ratios", {99, 3, heads}, dropped);
  return "{recipe: lukv, weights: " + curves.file() + ", " + budget + "}";
}
const std::vector<float> kAt60{0.302F, 0.894F, 0.75F, 0.25F, 1.0F, 0.2F};

// 60 % of 200 tokens are dropped: heads keep 139.6 and 21.2 in layer 0, together 161, and the larger remainder rounds up. A head that would
// keep nothing keeps one token. The budget may be a share or tokens.
TEST(UtilityCurves, HeadsKeepTheLinesShares) {
  const AttentionTrace trace = sample({});  // 3 layers, 2 KV heads
  const std::vector<std::size_t> expected{140, 21, 50, 150, 1, 160};
  for (const char* budget : {"compression_ratio: 0.6", "budget_frac: 0.4", "budget_tokens: 80"}) {
    const auto kept = replay_listed(with_curves(2, kAt60, budget), trace).kept_of_prompt;
    ASSERT_EQ(kept.size(), 6U);
    for (std::size_t r = 0; r < 6; ++r) {
      EXPECT_EQ(kept[r].size(), expected[r]) << budget << ", row " << r;
      if (expected[r] < 5) continue;
      for (std::int32_t t = 0; t < 4; ++t) EXPECT_EQ(nth(kept[r], t), t);
      EXPECT_EQ(kept[r].back(), 199);
    }
  }
  for (const auto& row : replay_listed(with_curves(2, kAt60, "compression_ratio: 0.61"), trace).kept_of_prompt) EXPECT_EQ(row.size(), 100U);
}

TEST(UtilityCurves, CostsWhatItComputes) {
  const AttentionTrace trace = sample({});
  expect_cost_is_replay(trace, recipe_of(with_curves(2, kAt60, "compression_ratio: 0.6")));
}

TEST(UtilityCurves, RefusesCurvesOfAnotherModel) {
  const AttentionTrace trace = sample({});
  const std::string why = error_of([&] { replay_listed(with_curves(4, {}, "budget_frac: 0.4"), trace); });
  EXPECT_TRUE(why.find("'prune_ratios'") != std::string::npos && why.find("[99, 3, 2]") != std::string::npos) << why;

  EXPECT_TRUE(error_of([&] { replay_listed("{recipe: lukv}", trace); }).starts_with("recipe 'lukv' cannot run: it needs trained tensors"));
  EXPECT_TRUE(needs_weights("lukv"));
}

}  // namespace
}  // namespace kvlab::test
