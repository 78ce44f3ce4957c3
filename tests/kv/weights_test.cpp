#include "policies/kv/allocator/counts.h"
#include "policies/kv/policy/policy.h"
#include "policies/kv/recipe/trained_tensors.h"
#include "tests/has_all.h"
#include "tests/kv/disposal_fixture.h"
#include "tests/kv/host_fixture.h"
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
    for (std::int32_t i = 0; i < step.kv.len[r]; ++i)
      EXPECT_NEAR(nth(scores, step.kv.first[r] + i), -dot(step.kv.key(r, i), &nth(filters, (2 + r % 2) * 8), 8), 1e-5);
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

using Places = std::vector<std::pair<int, int>>;
Places places(const HeadLabels& labels) {
  Places all;
  for (const TableEntry& e : labels.retrieval_heads()) all.emplace_back(e.layer, e.head);
  return all;
}

TEST_F(WeightFile, RetrievalHeadsByGates) {
  const auto weights = TrainedTensors::open(text("g.tsv", "0.5 0.9\n0.5 0.1\n0.5 0.95\n"));
  EXPECT_EQ(places(HeadLabels(weights, HeadLabel::kGates, 0.5, 0)), (Places{{0, 0}, {0, 1}, {2, 1}}));  // the first of equal values
  EXPECT_EQ(places(HeadLabels(weights, HeadLabel::kGates, 0.17, 0)), (Places{{2, 1}}));
  EXPECT_TRUE(HeadLabels(weights, HeadLabel::kGates, 0, 0).are_given());
  EXPECT_EQ(places(HeadLabels(weights, HeadLabel::kGates, 1, 0)).size(), 6U);
}

TEST_F(WeightFile, RetrievalHeadsByInductionAndEcho) {
  const auto weights =
      TrainedTensors::open(tensors({{"kv_induction", {2, 5}}, {"kv_echo", {2, 5}}},
                                   {{"kv_induction", {9, 8, 7, 6, 5, 4, 3, 2, 1, 0}}, {"kv_echo", {0, 0, 0, 0, 0, 0, 0, 1, 5, 2}}}));
  EXPECT_EQ(places(HeadLabels(weights, HeadLabel::kInduction, 0.3, 0.1)), (Places{{0, 0}, {0, 1}, {1, 3}}));
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
      Ints ends = range(0, 64);
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

TEST(UtilityCurves, CostsWhatItComputes) { expect_cost_is_replay(sample({}), recipe_of(with_curves(2, kAt60, "compression_ratio: 0.6"))); }

TEST(UtilityCurves, RefusesCurvesOfAnotherModel) {
  const AttentionTrace trace = sample({});
  const std::string why = error_of([&] { replay_listed(with_curves(4, {}, "budget_frac: 0.4"), trace); });
  EXPECT_TRUE(why.find("'prune_ratios'") != std::string::npos && why.find("[99, 3, 2]") != std::string::npos) << why;
  EXPECT_TRUE(error_of([&] { replay_listed("{recipe: lukv}", trace); }).starts_with("recipe 'lukv' cannot run: it needs trained tensors"));
  EXPECT_TRUE(needs_weights("lukv"));
}

// LESS: dropped tokens are added to a state that attention reads beside the rows.

constexpr std::int64_t kMapWidth = 5, kFeatures = 3;

// Random maps of a model, by tensor.
class LessMaps {
 public:
  LessMaps(const ModelShape& model, std::int32_t layers) : model_(model) {
    const std::int64_t q = model.q_heads, kv = model.kv_heads, d = model.head_dim;
    for (std::int32_t l = 0; l < layers; ++l) {
      const std::string at = key(l, "");
      tensors_.add(at + "kernel_q_mat1", {q, d, kMapWidth}), tensors_.add(at + "kernel_q_mat2", {q, kMapWidth, kFeatures});
      tensors_.add(at + "kernel_k_mat1", {kv, d, kMapWidth}), tensors_.add(at + "kernel_k_mat2", {kv, kMapWidth, kFeatures});
      tensors_.add(at + "interaction_k", {kv, kFeatures, kFeatures}), tensors_.add(at + "scalingD", {1, kv, 1, kFeatures});
      tensors_.add(at + "scalingD2", {1, kv, 1, kFeatures});
    }
  }
  std::vector<float>& of(const std::string& name, std::int32_t layer = 0) { return tensors_.of(key(layer, name)); }
  [[nodiscard]] std::string file() const { return tensors_.file(); }
  [[nodiscard]] std::unique_ptr<Disposal> disposal() const {
    auto part = make_part<DisposalRegistry>("kernel_state");
    part->set_weights(TrainedTensors::open(file()));
    EXPECT_EQ(part->refuses(model_), "");
    return part;
  }
  // phi_q and phi_k of layer 0, in float64.
  [[nodiscard]] std::vector<double> phi_q(std::int32_t head, const float* q) const {
    std::vector<double> phi = two_layers("kernel_q_mat1", "kernel_q_mat2", head, q);
    for (double& x : phi) x = std::fabs(x);
    return phi;
  }
  [[nodiscard]] std::vector<double> phi_k(std::int32_t head, const float* k) const {
    std::vector<double> u = two_layers("kernel_k_mat1", "kernel_k_mat2", head, k), phi;
    for (std::size_t f = 0; f < u.size(); ++f) u[f] *= std::fabs(at("scalingD", head, static_cast<std::int64_t>(f)));
    for (std::int64_t f = 0; f < kFeatures; ++f) {
      double mixed = 0;
      for (std::int64_t g = 0; g < kFeatures; ++g) mixed += nth(u, g) * at("interaction_k", head * kFeatures + g, f);
      phi.push_back(std::fabs(nth(u, f) + mixed * at("scalingD2", head, f)));
    }
    return phi;
  }

 private:
  static std::string key(std::int32_t layer, const std::string& name) { return "layers." + std::to_string(layer) + "." + name; }
  [[nodiscard]] double at(const std::string& name, std::int64_t row, std::int64_t column) const {
    return tensors_.at(key(0, name), row, column);
  }
  [[nodiscard]] std::vector<double> two_layers(const std::string& first, const std::string& second, std::int32_t head,
                                               const float* x) const {
    const auto gelu = [](double z) { return z * 0.5 * (1 + std::erf(z / std::sqrt(2.0))); };
    std::vector<double> middle, out;
    for (std::int64_t m = 0; m < kMapWidth; ++m) {
      double z = 0;
      for (std::int64_t c = 0; c < model_.head_dim; ++c) z += double{x[c]} * at(first, head * model_.head_dim + c, m);
      middle.push_back(gelu(z));
    }
    for (std::int64_t f = 0; f < kFeatures; ++f) {
      double z = 0;
      for (std::int64_t m = 0; m < kMapWidth; ++m) z += nth(middle, m) * at(second, head * kMapWidth + m, f);
      out.push_back(gelu(z));
    }
    return out;
  }
  ModelShape model_;
  TrainedFile tensors_{31};
};

// One output element in float64: the tokens at `held` by exp(q k / sqrt(d)), the others by phi_q phi_k.
double less_by_hand(const RandomLayer& layer, const LessMaps& maps, std::size_t s, std::int32_t t, std::int32_t head, std::int32_t c,
                    const std::vector<std::int32_t>& held) {
  const ModelShape& m = layer.model;
  const std::int32_t n = layer.seqs[s].end(), h = head / m.group();
  const float* const q = layer.q[s].data() + (t * m.q_heads + head) * m.head_dim;
  const std::vector<double> phi_q = maps.phi_q(head, q);
  double top = 0, bottom = 0;
  for (std::int32_t i = 0; i < n; ++i) {
    const float *const k = layer.k[s].data() + (i * m.kv_heads + h) * m.head_dim, *const v = layer.v[s].data() + (k - layer.k[s].data());
    double weight = 0;
    if (std::find(held.begin(), held.end(), i) != held.end()) {
      weight = std::exp(dot(q, k, m.head_dim) / std::sqrt(static_cast<double>(m.head_dim)));
    } else {
      weight = dot(phi_q, maps.phi_k(h, k));
    }
    bottom += weight, top += weight * double{v[c]};
  }
  return top / bottom;
}

// Two cuts one after the other, several sequences and heads, a row that loses nothing, one query and three at once.
TEST(Less, AttendsToTheStateOfAllThatWasDropped) {
  for (const std::int32_t group : {1, 3}) {
    RandomLayer layer({1, 2 * group, 2, 8, 16}, 2, 33, 3);
    const LessMaps maps(layer.model, 1);
    const auto disposal = maps.disposal();
    const Ints all = range(0, 33);
    drop_others(layer, *disposal, KeptLists({{0, 3, 7, 20, 32}, {1, 32}, all, {0, 31, 32}}));
    drop_others(layer, *disposal, KeptLists({{0, 2, 4}, {1}, all, {0, 1, 2}}));
    const std::vector<std::vector<std::int32_t>> held = {{0, 7, 32}, {32}, all, {0, 31, 32}};
    for (const std::int32_t count : {1, 3}) {
      const auto out = attend_with(layer, *disposal, count);
      for (std::size_t s = 0; s < 2; ++s)
        for (std::int32_t t = 0; t < count; ++t)
          for (std::int32_t h = 0; h < 2 * group; ++h)
            for (std::int32_t c = 0; c < 8; ++c)
              EXPECT_NEAR(nth(out[s], (t * 2 * group + h) * 8 + c),
                          less_by_hand(layer, maps, s, 33 - count + t, h, c, held[s * 2 + static_cast<std::size_t>(h / group)]), 1e-5)
                  << group << " " << count;
    }
  }
}

// One dropped token and maps with phi_q phi_k = exp(q k / sqrt(d)) for the query: the output is that of full attention. GELU does not
// change large arguments, so the last map of queries scales phi_q.
TEST(Less, IsFullAttentionWhereTheMapsAreExact) {
  RandomLayer full({1, 1, 1, 8, 16}, 1, 12, 3), cut({1, 1, 1, 8, 16}, 1, 12, 3), plain({1, 1, 1, 8, 16}, 1, 12, 3);
  LessMaps maps(cut.model, 1);
  constexpr std::int32_t kDropped = 4;
  const float *const q = cut.q[0].data() + 11 * 8, *const k = cut.k[0].data() + kDropped * 8;
  const double q_size = dot(q, q, 8), k_size = dot(k, k, 8);
  for (const char* name : {"kernel_q_mat1", "kernel_q_mat2", "kernel_k_mat1", "kernel_k_mat2", "interaction_k"})
    std::fill(maps.of(name).begin(), maps.of(name).end(), 0.0F);
  for (std::size_t c = 0; c < 8; ++c) {
    maps.of("kernel_q_mat1")[c * kMapWidth] = static_cast<float>(10.0 * double{q[c]} / q_size);  // q A1 = 10
    maps.of("kernel_k_mat1")[c * kMapWidth] = static_cast<float>(10.0 * double{k[c]} / k_size);  // k B1 = 10
  }
  constexpr double kKey = 0.001;  // |s1| * 10
  maps.of("kernel_k_mat2")[0] = 1;
  maps.of("scalingD")[0] = static_cast<float>(kKey / 10);
  const double wanted = std::exp(dot(q, k, 8) / std::sqrt(8.0)) / kKey;
  ASSERT_GT(wanted, 10);
  maps.of("kernel_q_mat2")[0] = static_cast<float>(wanted / 10);
  const auto state = maps.disposal(), drop = make_part<DisposalRegistry>("drop");
  const KeptLists others({{0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11}});
  drop_others(cut, *state, others), drop_others(plain, *drop, others);
  const auto exact = attend_with(full, *drop, 1)[0], got = attend_with(cut, *state, 1)[0], without = attend_with(plain, *drop, 1)[0];
  double lost = 0;
  for (std::size_t c = 0; c < 8; ++c) {
    EXPECT_NEAR(got[c], exact[c], 1e-5);
    lost = std::max(lost, std::fabs(double{without[c]} - double{exact[c]}));
  }
  EXPECT_GT(lost, 1e-3);
}

std::string less_with(const std::string& file) { return "{recipe: less, budget_tokens: 40, weights: " + file + "}"; }

// Maps of queries to 0: the state has no weight, so outputs and kept tokens are h2o's.
TEST(Less, WithAStateOfNoWeightIsH2o) {
  const AttentionTrace trace = sample({});
  LessMaps maps(shape_of(trace, 2), 3);
  const ReplayResult h2o = replay_listed("{recipe: h2o, budget_tokens: 40}", trace), random = replay_listed(less_with(maps.file()), trace);
  for (std::int32_t l = 0; l < 3; ++l) std::fill(maps.of("kernel_q_mat2", l).begin(), maps.of("kernel_q_mat2", l).end(), 0.0F);
  const ReplayResult none = replay_listed(less_with(maps.file()), trace);
  EXPECT_EQ(none.kept, h2o.kept);
  EXPECT_EQ(random.kept, h2o.kept);
  EXPECT_NEAR(none.mean.output_rel_err, h2o.mean.output_rel_err, 1e-5);
  EXPECT_GT(std::fabs(random.mean.output_rel_err - h2o.mean.output_rel_err), 1e-2);
}

TEST(Less, CostsWhatItComputes) {
  const AttentionTrace trace = sample({});
  expect_cost_is_replay(trace, recipe_of(less_with(LessMaps(shape_of(trace, 2), 3).file())));
}

// S and z in float32 for each KV head that lost tokens, until the sequence is gone.
TEST(Less, CountsItsState) {
  RandomLayer layer({1, 4, 2, 8, 16}, 2, 33, 3);
  const auto disposal = LessMaps(layer.model, 1).disposal();
  const auto format = make_part<FormatRegistry>("native");
  const Ints all = range(0, 33);
  LayerStep step = layer.prompt_step(1);
  const auto bytes = [&] { return disposal->resident(layer.model, 0, layer.seqs, step.kv, *format, {100}).gpu - 100; };
  disposal->observe(step);
  EXPECT_EQ(bytes(), 0);
  disposal->dispose(step, KeptLists({{0}, {0}, all, {1, 2}}).kept());
  EXPECT_EQ(bytes(), 3 * 4 * kFeatures * (8 + 1));
  disposal->forget(0);
  EXPECT_EQ(bytes(), 4 * kFeatures * (8 + 1));
}

TEST(Less, NeedsWeightsOfItsModelAndTheCpu) {
  const AttentionTrace trace = sample({});
  const ModelShape model = shape_of(trace, 2);
  const auto why = [&](const std::string& recipe) { return error_of([&] { replay_listed(recipe, trace); }); };
  EXPECT_TRUE(needs_weights("less"));
  EXPECT_TRUE(why("{recipe: less, budget_tokens: 40}").starts_with("recipe 'less' cannot run: it needs trained tensors"))
      << why("{recipe: less}");
  const std::string more = why(less_with(LessMaps(model, 4).file())), other = why(less_with(LessMaps({3, 4, 4, 32, 16}, 3).file()));
  EXPECT_NE(more.find("more than the model's 3 layers"), std::string::npos) << more;
  EXPECT_NE(other.find("has shape [4, 32, 5], the model needs [2, 32, 5]"), std::string::npos) << other;
  EXPECT_NE(KvPolicy(recipe_of("{recipe: less, budget_tokens: 40}"), model).needs().cpu_only, "");
}

}  // namespace
}  // namespace kvlab::test
