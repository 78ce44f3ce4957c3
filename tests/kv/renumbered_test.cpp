// Recipes with `positions: renumbered`: keys are turned to new places (read_positions of policies/kv/recipe/recipe.h).
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/model/layer/layer.h"
#include "kernels/storage/turn_keys_op.h"
#include "policies/kv/policy/policy.h"
#include "tests/error_of.h"
#include "tests/has_all.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"
#include "tests/recipes_in.h"
#include "tests/short_run.h"

namespace kvlab::test {
namespace {

using Kind = RopeScaling::Kind;
const RopeForm kLlama3{5e5, {.kind = Kind::kLlama3, .factor = 8, .original_tokens = 64, .low_freq_factor = 1, .high_freq_factor = 4}};
const RopeForm kYarn{1e4, {.kind = Kind::kYarn, .factor = 4, .original_tokens = 64, .attention_factor = yarn_attention_factor(4, 0, 0)}};
const RopeForm kLinear{1e4, {.kind = Kind::kLinear, .factor = 4}};
const std::vector<RopeForm> kForms{kLlama3, kYarn, kLinear, {1e4}};

// x [positions, heads, head_dim] with the model's own rotation.
std::vector<float> turned(std::vector<float> x, const RopeForm& rope, const std::vector<std::int32_t>& positions, std::int32_t heads,
                          std::int32_t head_dim) {
  std::vector<float> cos(positions.size() * static_cast<std::size_t>(head_dim / 2)), sin = cos;
  Rotary(rope, head_dim).fill(positions, cos.data(), sin.data());
  run_cpu(Rope{x.data(), x.data(), cos.data(), sin.data(), nullptr, nullptr, std::ssize(positions), heads, head_dim});
  return x;
}

std::vector<std::int32_t> range(std::int32_t begin, std::int32_t end) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

double most_apart(const float* a, const float* b, std::int32_t n) {
  double most = 0;
  for (std::int32_t c = 0; c < n; ++c) most = std::max(most, std::abs(double{a[c]} - double{b[c]}));
  return most;
}

// Two rows of 300 keys that the model turned to positions 700 to 999, and lists that drop different tokens of each.
class TurnedRows {
 public:
  static constexpr std::int32_t kTokens = 300, kEnd = 1000, kDim = 64;
  explicit TurnedRows(const RopeForm& rope)
      : rope_(rope),
        pre_(sample_normals(static_cast<std::size_t>(kTokens) * 2 * kDim, 1)),
        store_({1, 2, 2, kDim, 0, 2, rope}, 1, 0, true),
        frequencies_(Rotary(rope, kDim).frequencies(kEnd)) {
    const std::vector<float> k = turned(pre_, rope, range(kEnd - kTokens, kEnd), 2, kDim), v = sample_normals(k.size(), 2);
    store_.append(0, k.data(), v.data(), kTokens, kEnd - kTokens);
    for (std::int32_t r = 0; r < 2; ++r) {
      for (std::int32_t i = 0; i < kTokens; ++i)
        if (i < 4 || i * 7 % 11 < 4 + r || i > 250 + 20 * r) index.push_back(i);
      first.push_back(std::ssize(index));
    }
  }
  KvRows rows() { return store_.rows(); }
  Places places() { return {first.data(), index.data(), &kEnd_, frequencies_.data()}; }
  // The key of token i as the model would turn it at a place.
  std::vector<float> at_place(std::int32_t row, std::int32_t i, std::int32_t place) const {
    const float* const key = pre_.data() + (i * 2 + row) * kDim;
    return turned({key, key + kDim}, rope_, {place}, 1, kDim);
  }
  // Calls f(row, entry, token, entries).
  void for_each_listed(const std::function<void(std::int32_t, std::int32_t, std::int32_t, std::int32_t)>& f) const {
    for (std::int32_t r = 0; r < 2; ++r) {
      const auto m = static_cast<std::int32_t>(first[static_cast<std::size_t>(r) + 1] - nth(first, r));
      for (std::int32_t j = 0; j < m; ++j) f(r, j, nth(index, nth(first, r) + j), m);
    }
  }
  // The listed keys at the front of their rows, as compaction leaves them.
  void compact() {
    const KvRows kv = rows();
    for_each_listed([&](std::int32_t r, std::int32_t j, std::int32_t i, std::int32_t) { std::copy_n(kv.key(r, i), kDim, kv.key(r, j)); });
  }
  std::vector<std::int64_t> first{0};
  std::vector<std::int32_t> index;

 private:
  RopeForm rope_;
  std::vector<float> pre_;
  KvStore store_;
  std::vector<float> frequencies_;
  std::int32_t kEnd_ = kEnd;
};

TEST(RenumberKeys, GivesTheKeysThatTheModelWouldGiveAtTheNewPlaces) {
  for (const RopeForm& rope : kForms) {
    TurnedRows keys(rope);
    keys.compact();
    const KvRows kv = keys.rows();
    run_cpu(TurnKeys{kv, keys.places()});
    std::int32_t moved = 0;
    keys.for_each_listed([&](std::int32_t r, std::int32_t j, std::int32_t i, std::int32_t m) {
      const std::vector<float> expected = keys.at_place(r, i, TurnedRows::kEnd - m + j);
      const std::vector<float> original = keys.at_place(r, i, TurnedRows::kEnd - TurnedRows::kTokens + i);
      moved += most_apart(kv.key(r, j), original.data(), 64) > 0.1 ? 1 : 0;
      ASSERT_LE(most_apart(kv.key(r, j), expected.data(), 64), 5e-6) << "row " << r << " token " << i;
    });
    EXPECT_GT(moved, 100);
  }
}

TEST(PlaceSelected, TurnsCopiesAndLeavesTheRows) {
  TurnedRows keys(kLlama3);
  const KvRows kv = keys.rows();
  const auto all_keys = [&] {
    std::vector<float> all;
    for (std::int32_t r = 0; r < 2; ++r)
      for (std::int32_t i = 0; i < TurnedRows::kTokens; ++i) all.insert(all.end(), kv.key(r, i), kv.key(r, i) + 64);
    return all;
  };
  const std::vector<float> before = all_keys();
  KvStore other({1, 2, 2, 64, 0, 2, kLlama3}, 1, 0, true);
  other.append(0, before.data(), before.data(), TurnedRows::kTokens, 0);
  const KvRows out = other.rows();
  run_cpu(TurnKeys{kv, keys.places(), true, out});
  ASSERT_EQ(all_keys(), before);
  keys.for_each_listed([&](std::int32_t r, std::int32_t j, std::int32_t i, std::int32_t m) {
    const std::vector<float> expected = keys.at_place(r, i, TurnedRows::kEnd - m + j);
    ASSERT_LE(most_apart(out.key(r, j), expected.data(), 64), 5e-6);
    ASSERT_EQ(most_apart(out.value(r, j), kv.value(r, i), 64), 0);
    ASSERT_EQ(out.position[out.slot(r, j)], 700 + i);
  });
}

// A sample whose queries and keys the model turned with kLlama3.
AttentionTrace llama3_sample(const SampleShape& s) {
  AttentionTrace trace = sample(s);
  trace.rope_base = kLlama3.base;
  trace.rope_scaling =
      R"({"type": "llama3", "factor": 8, "original_max_position_embeddings": 64, "low_freq_factor": 1, "high_freq_factor": 4})";
  const std::vector<std::int32_t> all = range(0, trace.num_tokens);
  for (LayerTensors& l : trace.layers) {
    l.q = turned(l.pre_q, kLlama3, all, trace.q_heads, trace.head_dim);
    l.k = turned(l.pre_k, kLlama3, all, trace.kv_heads, trace.head_dim);
  }
  return trace;
}

// Output of one query head over tokens with these positions, from tensors before RoPE: the keys are turned to `places`.
std::vector<double> attention_at_places(const AttentionTrace& t, const LayerTensors& layer, std::int32_t token, std::int32_t head,
                                        const std::vector<std::int32_t>& positions, const std::vector<std::int32_t>& places,
                                        std::int32_t query_place) {
  const std::int32_t d = t.head_dim, group = t.q_heads / t.kv_heads, m = static_cast<std::int32_t>(positions.size());
  const RopeForm rope = shape_of(t, 2).rope;
  const auto line = [&](const std::vector<float>& x, std::int32_t at) {
    return std::vector<float>(x.begin() + std::ptrdiff_t{at} * d, x.begin() + (std::ptrdiff_t{at} + 1) * d);
  };
  const std::vector<float> q = turned(line(layer.pre_q, token * t.q_heads + head), rope, {query_place}, 1, d);
  std::vector<double> out(static_cast<std::size_t>(d), 0.0);
  double sum = 0;
  for (std::int32_t j = 0; j < m; ++j) {
    const std::int32_t at = nth(positions, j) * t.kv_heads + head / group;
    const std::vector<float> k = turned(line(layer.pre_k, at), rope, {nth(places, j)}, 1, d), v = line(layer.v, at);
    const double logit = std::inner_product(q.begin(), q.end(), k.begin(), 0.0),
                 weight = std::exp(logit / std::sqrt(static_cast<double>(d)));
    sum += weight;
    for (std::size_t c = 0; c < v.size(); ++c) out[c] += weight * double{v[c]};
  }
  for (double& x : out) x /= sum;
  return out;
}

// Runs a recipe over a sample. `look(step's token, layer, segments, output)` after each decode step's attention.
using Look = std::function<void(std::int32_t, std::int32_t, const std::vector<Segment>&, const float*)>;
void walk(const AttentionTrace& t, const Recipe& recipe, const Look& look) {
  PolicyWalk policy(t, recipe);
  policy.run([&](const PolicyStep& step, std::int32_t l) {
    if (!step.seqs.front().decoding()) return;
    const float* const out = policy.attend(step, l);
    look(step.seqs.front().seen_tokens, l, policy.segments, out);
  });
}

// Cuts once, cuts in every chunk and step, and tokens chosen again in every step: attention is that of a model over the kept tokens' keys
// before RoPE at places 0, 1, ..., and the query at the last place.
TEST(Renumbered, IsAttentionOverPlacesInTheCache) {
  const AttentionTrace trace = llama3_sample({.layers = 2, .prompt = 260, .decode = 24});
  for (const char* text :
       {"{recipe: kvpress_key_rerotation}", "{recipe: finch}", "{recipe: streaming_renumbered, budget_tokens: 60}",
        "{recipe: citrus, budget_tokens: 150}", "{recipe: h2o, budget_tokens: 50, positions: renumbered}",
        "{recipe: adakv, budget_tokens: 100, positions: renumbered}", "{recipe: cake, budget_tokens: 100, positions: renumbered}",
        "{recipe: exact_topk, budget_tokens: 40, positions: renumbered}"}) {
    std::int32_t cut = 0;
    double moved = 0;  // how far outputs are from those at the original positions
    walk(trace, recipe_of(text), [&](std::int32_t token, std::int32_t l, const std::vector<Segment>& segments, const float* out) {
      ASSERT_EQ(segments.size(), 1U);
      ASSERT_EQ(segments.front().index_first, nullptr);
      const LayerTensors& layer = nth(trace.layers, l);
      const auto rows = positions_of(segments.front().kv);
      for (std::int32_t head = 0; head < trace.q_heads; ++head) {
        const auto& positions = nth(rows, head / (trace.q_heads / trace.kv_heads));
        cut += std::ssize(positions) < token + 1 ? 1 : 0;
        const auto size = static_cast<std::int32_t>(positions.size());
        const std::vector<double> expected = attention_at_places(trace, layer, token, head, positions, range(0, size), size - 1);
        const std::vector<double> original = attention_at_places(trace, layer, token, head, positions, positions, token);
        for (std::size_t c = 0; c < expected.size(); ++c) {
          const double value = double{out[head * trace.head_dim + static_cast<std::int32_t>(c)]};
          ASSERT_NEAR(value, expected[c], 5e-3) << text << " token " << token;
          moved = std::max(moved, std::abs(value - original[c]));
        }
      }
    });
    EXPECT_GT(cut, 100) << text;
    EXPECT_GT(moved, 0.02) << text;
  }
}

std::vector<float> outputs(const AttentionTrace& trace, const std::string& text) {
  std::vector<float> all;
  walk(trace, recipe_of(text), [&](std::int32_t, std::int32_t, const std::vector<Segment>&, const float* out) {
    all.insert(all.end(), out, out + trace.q_heads * trace.head_dim);
  });
  return all;
}

TEST(Renumbered, ChangesNothingUntilATokenIsDropped) {
  const AttentionTrace trace = llama3_sample({.layers = 2});
  const std::vector<float> plain = outputs(trace, "{recipe: full}");
  for (const char* name : {"streaming_renumbered", "h2o", "snapkv", "exact_topk"}) {
    const std::string begin = std::string("{recipe: ") + name + ", budget_tokens: ";
    EXPECT_EQ(outputs(trace, begin + "400, positions: renumbered}"), plain) << name;
    EXPECT_NE(outputs(trace, begin + "60, positions: renumbered}"), outputs(trace, begin + "60, positions: original}")) << name;
  }
}

// Without RoPE there is nothing to turn. Attention over copies may add up in another order.
TEST(Renumbered, ChangesNothingWithoutRope) {
  const AttentionTrace trace = sample({.layers = 2});
  for (const char* name : {"streaming", "exact_topk"}) {
    const std::string begin = std::string("{recipe: ") + name + ", budget_tokens: 60, positions: ";
    const std::vector<float> with = outputs(trace, begin + "renumbered}"), without = outputs(trace, begin + "original}");
    ASSERT_EQ(with.size(), without.size());
    EXPECT_LE(most_apart(with.data(), without.data(), static_cast<std::int32_t>(with.size())), 1e-4) << name;
  }
}

TEST(Renumbered, IsRefusedWithAReason) {
  const auto why = [](const std::string& text) { return error_of([&] { recipe_of(text); }); };
  const std::string end = "; write 'positions: original'";
  const auto expect = [&](const std::string& name, const std::string& more, const std::string& reason) {
    EXPECT_THAT(why("{recipe: " + name + ", positions: renumbered" + more + "}"),
                testing::EndsWith(": recipe '" + name + "' cannot run: keys cannot be renumbered, because " + reason + end));
  };
  expect("full", "", "no token is dropped or left out");
  expect("kivi2", "", "no token is dropped or left out");
  expect("snapkv_kivi2", "", "format 'kivi' encodes keys at their old places");
  expect("razor_compensation", "", "disposal 'compensation' keeps keys outside the cache");
  expect("mikv", "", "disposal 'low_precision' keeps keys outside the cache");
  expect("spe_cache", "", "selector 'spe_cache' keeps keys outside the cache");
  expect("snapkv", ", selector: a2ats", "selector 'a2ats' turns keys back by their original positions");
  expect("snapkv", ", trigger: every_step",
         "scorer 'window_attention' asks with queries from before earlier cuts of trigger 'every_step' (trigger 'prefill_end' cuts once)");
  EXPECT_THAT(why("{recipe: h2o, positions: renumberd}"), HasSubstr("'positions': unknown value 'renumberd'; did you mean 'renumbered'?"));
  const RopeForm dynamic{1e4, {.kind = Kind::kDynamic, .factor = 4, .original_tokens = 64}};
  const Recipe h2o = recipe_of("{recipe: h2o, positions: renumbered}");
  const auto build = [&] { const KvPolicy policy(h2o, {1, 2, 2, 64, 0, 2, dynamic}); };
  EXPECT_EQ(
      error_of(build),
      "recipe 'h2o' cannot run: keys cannot be renumbered, because the model's RoPE scaling 'dynamic' changes angles with the length" +
          end);
}

// Each recipe runs with renumbered keys, and is charged in simulations for the operations that replay executes, or is refused with the
// reason.
class RenumberedRecipe : public testing::TestWithParam<std::string> {};

TEST_P(RenumberedRecipe, RunsOrSaysWhyNot) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  const Recipe own = shipped_recipe(GetParam());
  if (!own.runs_in("replay")) GTEST_SKIP() << "does not run in replay";
  static AttentionTrace trace = [] {
    AttentionTrace t = llama3_sample({.prompt = 420, .decode = 6});
    for (const std::string& name : recipe_names())
      if (const auto& scorer = shipped_recipe(name).make_scorer; scorer && !scorer()->needs().pass.empty())
        add_pass(t, scorer()->needs().pass);
    return t;
  }();
  static const AttentionReference reference = full_attention(trace);
  const auto text = [&](const std::string& more) { return "{recipe: " + GetParam() + ", positions: renumbered" + more + "}"; };
  Recipe recipe;
  try {
    recipe = recipe_of(text(why_no_budget(own).empty() ? ", budget_tokens: 280" : ""));
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("keys cannot be renumbered, because "), std::string::npos) << e.what();
    return;
  }
  EXPECT_TRUE(recipe.renumbers());
  const auto refusal = [&] { return error_of([&] { const KvPolicy policy(recipe, shape_of(trace, 2)); }); };
  if (refusal() != "no error") {  // of the budget, as without
    EXPECT_EQ(refusal().find("renumbered"), std::string::npos) << refusal();
    recipe = recipe_of(text(""));
  }
  if (refusal() != "no error") GTEST_SKIP() << refusal();  // of the sample's sizes, as without
  const ReplayResult result = expect_cost_is_replay(trace, reference, recipe);
  EXPECT_TRUE(std::isfinite(result.mean.output_rel_err));
}

INSTANTIATE_TEST_SUITE_P(Recipes, RenumberedRecipe, testing::ValuesIn(complete_recipes()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvlab::test
