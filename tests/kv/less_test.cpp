// LESS: dropped tokens are added to a state that attention reads beside the rows.

#include "policies/kv/recipe/trained_tensors.h"
#include "tests/kv/disposal_fixture.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/trained_fixture.h"

namespace kvlab::test {
namespace {

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
