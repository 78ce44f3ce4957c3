#include <set>

#include "tests/kv/disposal_fixture.h"
#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

// The effect of a disposal on a batch: every second token of head 0 stays, the newest half of head 1.
struct Outcome {
  std::vector<OpCall> log;
  TierBytes resident;
  std::int64_t read_bytes = 0, read_tokens = 0, stored_bytes = 0;
  std::vector<float> numbers;  // K and V of what is left, with data
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

void cut(Disposal& disposal, RandomLayer& layer) {
  const bool data = layer.store.has_data();
  std::vector<std::vector<std::int32_t>> rows(static_cast<std::size_t>(layer.store.num_rows()));
  for (std::int32_t r = 0; r < layer.store.num_rows(); ++r)
    for (std::int32_t i = 0; i < layer.store.len(r); ++i)
      if (r % 2 == 0 ? i % 2 == 0 : 2 * i >= layer.store.len(r)) nth(rows, r).push_back(i);
  const KeptLists lists(rows);
  const Ops::Frame frame(layer.ops);
  LayerStep step = layer.prompt_step(8);
  disposal.observe(step);
  std::vector<float> scores(data ? static_cast<std::size_t>(step.kv.total()) : 0, 1.0F);
  disposal.rank(step, data ? scores.data() : nullptr);
  disposal.dispose(step, data ? lists.kept() : lists.shapes());
  for (std::int32_t r = 0; r < layer.store.num_rows() && disposal.shrinks(); ++r) layer.store.shrink(r, nth(lists.count, r));
}

Outcome run(const NamedPart& c, RandomLayer& layer) {
  auto disposal = make_part<DisposalRegistry>(c.name, c.parameters);
  disposal->bind(0);
  cut(*disposal, layer);
  cut(*disposal, layer);
  const auto format = make_part<FormatRegistry>("native");
  const Ops::Frame frame(layer.ops);
  LayerStep step = layer.prompt_step(8);
  std::vector<Segment> segments(1);
  segments[0].kv = step.kv;
  disposal->add_segments(step, segments);
  Outcome o;
  for (const Segment& s : segments) {
    o.read_bytes += s.read_bytes;
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) o.read_tokens += s.tokens(r);
  }
  o.log = layer.ops.log();
  o.resident = disposal->resident(layer.model, 0, layer.seqs, step.kv, *format, {1000});
  o.stored_bytes = disposal->take_traffic(layer.model, *format).stored_bytes;
  for (std::int32_t r = 0; r < step.kv.num_rows && layer.store.has_data(); ++r)
    for (std::int32_t i = 0; i < step.kv.len[r]; ++i)
      for (const float* x : {step.kv.key(r, i), step.kv.value(r, i)}) o.numbers.insert(o.numbers.end(), x, x + step.kv.head_dim);
  return o;
}

class DisposalLog : public ::testing::TestWithParam<NamedPart> {};

TEST_P(DisposalLog, IsTheSameWithAndWithoutData) {
  for (const std::int32_t group : {1, 3, 4, 8})
    for (const std::int32_t n : {0, 1, 63, 64, 65}) {
      RandomLayer with({1, 2 * group, 2, 16, 24}, 2, n, 3, 1), without({1, 2 * group, 2, 16, 24}, 2, n, 3, 1, false);
      Outcome a = run(GetParam(), with);
      const Outcome b = run(GetParam(), without);
      EXPECT_FALSE(a.log.empty());
      a.numbers.clear();
      EXPECT_TRUE(a == b) << n << " tokens, group " << group;
    }
}

TEST_P(DisposalLog, GivesNumbersAndTheSameTwice) {
  RandomLayer a({1, 8, 2, 16, 24}, 2, 65, 3, 1), b({1, 8, 2, 16, 24}, 2, 65, 3, 1);
  const Outcome first = run(GetParam(), a);
  EXPECT_TRUE(std::none_of(first.numbers.begin(), first.numbers.end(), [](float x) { return !std::isfinite(x); }));
  EXPECT_TRUE(first == run(GetParam(), b));
}

// A batch fares like its sequences alone.
TEST_P(DisposalLog, SequencesDoNotMix) {
  RandomLayer both({1, 8, 2, 16, 24}, 2, 65, 3, 1), first({1, 8, 2, 16, 24}, 1, 65, 3, 1);
  const std::vector<float> of_both = run(GetParam(), both).numbers, alone = run(GetParam(), first).numbers;
  EXPECT_EQ(std::vector<float>(of_both.begin(), of_both.begin() + static_cast<std::ptrdiff_t>(alone.size())), alone);
}

INSTANTIATE_TEST_SUITE_P(All, DisposalLog,
                         ::testing::Values(NamedPart{"drop", "{}"}, NamedPart{"merge_nearest", "{}"},
                                           NamedPart{"merge_nearest", "{merges: values, weight: norm_share, threshold: fixed, vote: own}"},
                                           NamedPart{"merge_nearest", "{combine: pivot, weight: one, threshold: none}"},
                                           NamedPart{"merge_position", "{}"},
                                           NamedPart{"merge_nearest", "{merges: values, weight: attention_share, threshold: none}"},
                                           NamedPart{"merge_nearest", "{threshold: none, merges: values}"}, NamedPart{"merge_runs", "{}"},
                                           NamedPart{"merge_runs", "{order: runs_first}"}, NamedPart{"merge_window", "{}"},
                                           NamedPart{"merge_window", "{mass: per_query}"}, NamedPart{"compensation", "{}"},
                                           NamedPart{"offload", "{}"}, NamedPart{"low_precision", "{}"},
                                           NamedPart{"low_precision", "{balance: false, bits: 4, group_channels: 5}"}));

// Offloading is dropping, as far as the GPU knows; every byte is on one tier.
TEST(Offload, LeavesWhatDropLeavesAndCountsTheRest) {
  RandomLayer a({1, 8, 2, 16, 24}, 2, 65, 3, 1), b({1, 8, 2, 16, 24}, 2, 65, 3, 1);
  const Outcome offload = run({"offload", "{}"}, a), drop = run({"drop", "{}"}, b);
  EXPECT_EQ(offload.numbers, drop.numbers);
  std::int64_t held = 0;
  for (std::int32_t r = 0; r < 4; ++r) held += a.store.len(r);
  EXPECT_EQ(std::tuple(offload.resident.gpu, offload.resident.host), std::tuple(1000, (4 * 65 - held) * 2 * 16 * 2));
  EXPECT_EQ(offload.stored_bytes, offload.resident.host);
}

// Nothing but tokens alike: a few directions, so that merging has something to find.
ReplayResult replayed_alike(const Recipe& recipe) {
  static const Sampled alike = with_reference(
      synthetic_trace("layers: 4, q_heads: 8, kv_heads: 2, head_dim: 32, prompt_tokens: 160, decode_tokens: 24, chunk_tokens: 64"));
  return alike.replayed(recipe);
}

class DisposalRecipe : public ::testing::TestWithParam<std::string> {
 protected:
  static Recipe recipe(std::int32_t budget) { return load_recipe(GetParam(), GetParam() == "minicache" ? 0 : budget); }
};

TEST_P(DisposalRecipe, ReplaysWithASmallBudget) {
  const ReplayResult r = replayed_alike(recipe(48));
  EXPECT_GT(r.mean.output_rel_err, 0);
  EXPECT_LT(r.mean.output_rel_err, 2);
  EXPECT_LT(r.resident_bytes_frac, 1);
  EXPECT_EQ(r.host_bytes_frac > 0, GetParam() == "h2o_offload");
}

TEST(MiniCache, IsExactWhereAllIsRetained) {
  const ReplayResult r = replayed_alike(recipe_of("{recipe: minicache, disposal: {layer_pairs: {retain_frac: 1}}}"));
  EXPECT_EQ(std::tuple(r.mean.output_rel_err, r.mean.topk_recall), std::tuple(0, 1));
}

// A step on shapes needs no history where the recipe acts in every step.
TEST_P(DisposalRecipe, FreshStateEqualsTheSteppedOne) {
  constexpr ModelShape kShape{4, 8, 2, 64, 128};
  ShapeRun stepped(recipe(128), kShape), fresh(recipe(128), kShape);
  ShapeRun::Seq seq{0, 300, 300, {}, {}};
  for (std::int32_t t = 0; t < 25; ++t) {
    const ShapeRun::Result a = stepped.step(std::span(&seq, 1));
    fresh.forget();
    const ShapeRun::Result b = fresh.step(std::span(&seq, 1));
    EXPECT_EQ(std::tie(a.calls, a.held, a.before, a.after), std::tie(b.calls, b.held, b.before, b.after)) << "step " << t;
    seq.seen_tokens += seq.new_tokens, seq.new_tokens = 1, seq.held = a.held;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, DisposalRecipe,
                         ::testing::Values("d2o", "d2o_values", "snapkv_d2o", "cam", "kvmerger", "kvmerger_mean", "h2o_attention_merge",
                                           "look_m_averaged", "look_m_pivotal", "look_m_weighted", "elastic_cache", "minicache", "mikv",
                                           "razor_compensation", "merge_values", "h2o_offload"),
                         [](const auto& info) { return info.param; });

// In decode one token goes for each new one in every layer, so that the rows stay as the prompt's end left them; the share of the newest
// mean in the running threshold decides what merges.
TEST(D2o, MergesByARunningThresholdInEveryStep) {
  std::vector<double> errors;
  for (const std::string share : {"0", "0.5", "1"}) {
    const auto run = [&](const std::string& trigger) {
      return replayed_alike(recipe_of("{recipe: d2o, budget_tokens: 48, trigger: " + trigger +
                                      ", disposal: {merge_nearest: {threshold: running_mean, new_share_frac: " + share + "}}}"));
    };
    const ReplayResult all = run("every_step"), at_end = run("prefill_end");  // which keeps all 24 decoded tokens
    errors.push_back(all.mean.output_rel_err);
    std::size_t held = 0;
    for (std::size_t r = 0; r < all.kept.size(); ++r) {
      EXPECT_EQ(all.kept[r].size(), at_end.kept[r].size() - 24) << "row " << r;
      held += all.kept[r].size();
    }
    EXPECT_LE(held, all.kept.size() * 48);
  }
  EXPECT_EQ(std::set(errors.begin(), errors.end()).size(), 3U);
}

// A prompt within the budget is shared out in the step that exceeds it, and held from then on.
TEST(D2o, SharesOutInDecodeWhereThePromptFits) {
  const ReplayResult r = replayed_alike(load_recipe("d2o", 170));
  std::size_t held = 0;
  for (const auto& row : r.kept) held += row.size();
  EXPECT_EQ(held, r.kept.size() * 170);
}

// Triggers that let rows grow between cuts have no use for counts that stay.
TEST(D2o, RefusesTriggersThatLetRowsGrow) {
  for (const std::string trigger : {"every_n", "when_full", "page_full", "{every_step: {share_of: sequence}}"})
    EXPECT_THROW(recipe_of("{recipe: d2o, trigger: " + trigger + "}"), InputError) << trigger;
  for (const std::string trigger : {"every_step", "prefill_end", "{every_step: {from: decode_only}}"})
    EXPECT_NO_THROW(recipe_of("{recipe: d2o, trigger: " + trigger + "}")) << trigger;
}

// The tokens in CPU memory are those that left the GPU, and attention is that of deleting them.
TEST(H2oOffload, AttendsAsH2oAndLosesNoByte) {
  const ReplayResult kept = replayed_alike(load_recipe("h2o_offload", 48)), plain = replayed_alike(load_recipe("h2o", 48));
  EXPECT_EQ(kept.mean.output_rel_err, plain.mean.output_rel_err);
  EXPECT_EQ(kept.mean.attention_mass, plain.mean.attention_mass);
  const std::int64_t token = 2 * 32 * 2, rows = 4 * 2;
  for (std::size_t i = 2; i < kept.resident.size(); ++i) {
    const std::int64_t n = i == 2 ? 160 : 158 + static_cast<std::int64_t>(i);
    EXPECT_EQ(std::tuple(kept.resident[i].host, kept.resident[i].gpu), std::tuple(rows * (n - 48) * token, plain.resident[i].gpu)) << i;
  }
  EXPECT_EQ(kept.traffic.stored_bytes, 24 * rows * token);  // one token out per row and decode step
}

// MiKV reads everything: more bits are better, and both beat deleting.
TEST(MiKv, MoreBitsAreBetter) {
  const auto error = [](std::int32_t bits) {
    const ReplayResult r = replayed_alike(recipe_of("{recipe: mikv, disposal: {low_precision: {bits: " + std::to_string(bits) + "}}}"));
    EXPECT_NEAR(r.mean.attention_mass, 1, 1e-5);
    return r.mean.output_rel_err;
  };
  EXPECT_LT(error(4), error(2));
  EXPECT_LT(error(8), error(4) / 4);
  EXPECT_LT(error(4), replayed_alike(load_recipe("h2o")).mean.output_rel_err);
}

// Four layers of one sequence, driven step by step; the last two are a pair.
struct Layers {
  explicit Layers(const std::string& parameters, std::int32_t prompt_tokens)
      : prompt(prompt_tokens), disposal(make_part<DisposalRegistry>("layer_pairs", parameters)) {
    for (std::int32_t l = 0; l < 4; ++l) stores.emplace_back(model, 1, 0, true);
  }
  void step(std::int32_t tokens) {
    const SeqStep seq{0, seen, tokens, prompt, -1};
    for (std::int32_t l = 0; l < 4; ++l) {
      KvStore& store = nth(stores, l);
      const auto n = static_cast<std::size_t>(tokens * model.kv_heads * model.head_dim);
      const auto k = RandomLayer::normals(n, 1, 100 * seen + l), v = RandomLayer::normals(n, 2, 100 * seen + l);
      store.append(0, k.data(), v.data(), tokens, seen);
      written.push_back(k[0]);
      const Ops::Frame frame(ops);
      LayerStep view{ops, model, l, {&seq, 1}, store.rows(), {}, 7};
      disposal->observe(view);
    }
    last = seq;
    seen += tokens;
  }
  // Tokens of KV head 0 whose keys have one direction in the pair.
  std::int32_t shared() {
    std::int32_t count = 0;
    for (std::int32_t i = 0; i < seen; ++i) {
      const float *const x = stores[2].rows().key(0, i), *const y = stores[3].rows().key(0, i);
      const double product = dot(x, y, model.head_dim);
      count += product * product > 0.99999 * dot(x, x, model.head_dim) * dot(y, y, model.head_dim) ? 1 : 0;
    }
    return count;
  }
  std::int64_t bytes(std::int32_t layer) {
    const auto format = make_part<FormatRegistry>("native");
    const KvRows kv = nth(stores, layer).rows();
    std::int64_t native = 0;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) native += format->row_bytes(model, layer, kv.len[r]);
    return disposal->resident(model, layer, {&last, 1}, kv, *format, {native}).gpu;
  }

  ModelShape model{4, 4, 2, 64, 16};
  std::int32_t prompt, seen = 0;
  std::unique_ptr<Disposal> disposal;
  std::vector<KvStore> stores;
  std::vector<float> written;
  Ops ops{Ops::Backend::kCpu};
  SeqStep last;
};

TEST(LayerPairs, MergeThePromptWhenItIsComplete) {
  Layers layers("{}", 100);
  layers.step(60);
  EXPECT_EQ(layers.shared(), 0);  // later prompt tokens are computed over what is exact
  EXPECT_EQ(layers.bytes(2), 60 * 2 * 256);
  layers.step(40);
  EXPECT_EQ(layers.shared(), 95);
  for (const std::size_t l : {0U, 1U}) EXPECT_EQ(layers.stores[l].rows().key(0, 0)[0], layers.written[l]);
  // Per row: 5 tokens with both vectors, 95 with two fp16 magnitudes for K and for V.
  EXPECT_EQ(layers.bytes(0), 100 * 2 * 256);
  EXPECT_EQ(layers.bytes(2), 2 * (5 * 256 + 5 * 8 + 95 * 4));
  EXPECT_EQ(layers.bytes(3), 2 * (100 * 256 + 95 * 4));
  const double all = static_cast<double>(layers.bytes(0) + layers.bytes(1) + layers.bytes(2) + layers.bytes(3));
  EXPECT_GT(all / (4 * 100 * 2 * 256), 0.75);
  EXPECT_LT(all / (4 * 100 * 2 * 256), 0.78);
}

TEST(LayerPairs, MergeDecodedTokensInBlocks) {
  Layers layers("{block_tokens: 20}", 100);
  layers.step(100);
  for (std::int32_t t = 1; t <= 45; ++t) {
    layers.step(1);
    EXPECT_EQ(layers.shared(), 95 + t / 20 * 19) << t;
    EXPECT_EQ(layers.bytes(3), 2 * ((100 + t) * 256LL + (95 + t / 20 * 19) * 4)) << t;
  }
  layers.disposal->forget(0);
  EXPECT_EQ(layers.bytes(3), 2 * 145 * 256);
}

TEST(LayerPairs, LastTokensOfThePromptWait) {
  Layers layers("{block_tokens: 20}", 110);
  layers.step(110);
  EXPECT_EQ(layers.shared(), 95);
  for (std::int32_t t = 1; t <= 10; ++t) {
    EXPECT_EQ(layers.bytes(2), 2 * ((109 + t - 95) * 256LL + 5 * 8 + 95 * 4));
    layers.step(1);
  }
  EXPECT_EQ(layers.shared(), 114);
}

TEST(LayerPairs, OddLayersAndShallowOnesStayAlone) {
  for (const auto& [parameters, tokens, shared] : {std::tuple{"{begin_frac: 0.75, block_tokens: 5}", 10, 0},  // layer 3 has no partner
                                                   {"{retain_frac: 1, block_tokens: 5}", 10, 0},
                                                   {"{block_tokens: 1}", 1, 1}}) {
    Layers layers(parameters, tokens);
    layers.step(tokens);
    EXPECT_EQ(layers.shared(), shared) << parameters;
  }
}

TEST(LayerPairs, RefuseToWorkWithEvictionAndEncoding) {
  EXPECT_THROW(recipe_of("{recipe: snapkv, disposal: layer_pairs}"), InputError);
  EXPECT_THROW(recipe_of("{recipe: minicache, format: kivi}"), InputError);
  EXPECT_NO_THROW(recipe_of("{recipe: minicache}"));
}

}  // namespace
}  // namespace kvlab::test
