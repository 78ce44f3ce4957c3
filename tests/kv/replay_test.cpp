#include "sim/replay/replay.h"

#include "policies/kv/policy/policy.h"
#include "sim/kv_cost/step_ops.h"
#include "tests/has_all.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

AttentionTrace small_trace() {
  return synthetic_trace("layers: 3, q_heads: 8, kv_heads: 2, head_dim: 32, prompt_tokens: 200, decode_tokens: 6");
}
AttentionTrace long_answer() {
  return synthetic_trace("layers: 2, q_heads: 4, kv_heads: 2, head_dim: 32, prompt_tokens: 60, decode_tokens: 41", 7);
}

ReplayResult replayed(const Recipe& recipe, const AttentionTrace& trace = small_trace(), ReplayOptions options = {}) {
  return replay(trace, full_attention(trace), recipe, options);
}

TEST(Replay, FullCacheAgreesToTheLastBit) {
  const ReplayResult full = replayed(load_recipe("full"));
  EXPECT_NEAR(full.mean.attention_mass, 1, 1e-5);
  EXPECT_EQ(std::tuple(full.mean.output_rel_err, full.mean.topk_recall, full.resident_bytes_frac), std::tuple(0, 1, 1));
  EXPECT_EQ(full.kept_tokens, 200);
}

TEST(Replay, SnapKvKeepsItsBudgetAndMostOfTheMass) {
  const ReplayResult cut = replayed(load_recipe("snapkv", 64));
  EXPECT_EQ(std::tuple(cut.kept_tokens, cut.budget_tokens), std::tuple(64, 64));
  EXPECT_GT(cut.mean.attention_mass, 0.5);
  EXPECT_LT(cut.mean.attention_mass, 1);
  EXPECT_GT(cut.mean.output_rel_err, 0);
  EXPECT_EQ(replayed(load_recipe("snapkv", 200)).mean.output_rel_err, 0);
}

// Parts that change nothing themselves ask for more of the prompt's last queries than the scorer does.
TEST(Replay, APartWithALargerWindowLeavesTheOthersTheirOwn) {
  const auto kept = [](const std::string& text) { return replayed(recipe_of(text)).kept; };
  EXPECT_EQ(kept("{recipe: pyramidkv, budget_tokens: 64, format: {think: {ratio: 0, window_tokens: 100}}}"),
            kept("{recipe: pyramidkv, budget_tokens: 64}"));
  EXPECT_EQ(kept("{recipe: snapkv, budget_tokens: 64, selector: {squeezed: {drop_frac: 0}}}"), kept("{recipe: snapkv, budget_tokens: 64}"));
}

// kvpress 0.5.5, DecodingPress(KnormPress(), compression_interval, target_size), on recorded keys: at every interval-th decode step each KV
// head keeps the target_size tokens whose keys are shortest, once there are more.
std::vector<KeptAtStep> decoding_press_knorm(const AttentionTrace& trace, std::int32_t interval, std::int32_t target_size) {
  std::vector<std::vector<std::int32_t>> rows(static_cast<std::size_t>(trace.num_layers * trace.kv_heads),
                                              std::vector<std::int32_t>(static_cast<std::size_t>(trace.prompt_tokens)));
  for (auto& row : rows) std::iota(row.begin(), row.end(), 0);
  std::vector<KeptAtStep> kept;
  for (std::int32_t step = 1; step <= trace.num_tokens - trace.prompt_tokens; ++step) {
    for (auto& row : rows) row.push_back(trace.prompt_tokens + step - 1);
    if (step % interval != 0 || std::ssize(rows.front()) <= target_size) continue;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto heads = static_cast<std::size_t>(trace.kv_heads), d = static_cast<std::size_t>(trace.head_dim);
      const auto norm = [&](std::int32_t token) {
        const float* const key = trace.layers[i / heads].k.data() + (static_cast<std::size_t>(token) * heads + i % heads) * d;
        return std::inner_product(key, key + d, key, 0.0);
      };
      std::sort(rows[i].begin(), rows[i].end(), [&](std::int32_t a, std::int32_t b) { return norm(a) < norm(b); });
      rows[i].resize(static_cast<std::size_t>(target_size));
      std::sort(rows[i].begin(), rows[i].end());
    }
    kept.push_back({step, rows});
  }
  return kept;
}

// Steps 8, 16, ...: a target below the prompt cuts at the first of them, one of 73 at step 16 (76 tokens), then every 8 steps.
TEST(KeptSteps, AreThoseOfDecodingPress) {
  const AttentionTrace trace = long_answer();
  for (const std::int32_t target : {24, 60, 73}) {
    const Recipe recipe = recipe_of("{recipe: kvpress_knorm, budget_tokens: " + std::to_string(target) +
                                    ", trigger: {every_n: {steps: 8, from: decode_only}}}");
    const ReplayResult r = replayed(recipe, trace, {.lists_kept_steps = true});
    const std::vector<KeptAtStep> expected = decoding_press_knorm(trace, 8, target);
    ASSERT_EQ(r.kept_of_steps.size(), expected.size()) << target;
    EXPECT_EQ(expected.size(), target == 73 ? 4U : 5U);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(r.kept_of_steps[i].step, expected[i].step) << target;
      EXPECT_EQ(r.kept_of_steps[i].rows, expected[i].rows) << target << ", step " << expected[i].step;
    }
    EXPECT_TRUE(r.kept_of_prompt.empty());
  }
}

TEST(KeptSteps, AreListedWhereAskedForAndWhereTokensLeft) {
  const auto steps_of = [](const char* text, bool lists) {
    return replayed(recipe_of(text), long_answer(), {.lists_kept_steps = lists}).kept_of_steps.size();
  };
  EXPECT_EQ(steps_of("{recipe: h2o, budget_tokens: 32}", true), 41U) << "every step drops one";
  EXPECT_EQ(steps_of("{recipe: h2o, budget_tokens: 32}", false), 0U);
  EXPECT_EQ(steps_of("{recipe: snapkv, budget_tokens: 32}", true), 0U) << "the prompt's cut is not one of decode";
  EXPECT_EQ(steps_of("{recipe: full}", true), 0U);
}

// Steps of (attention on needles, what is kept of it).
bool finds(std::vector<std::pair<double, double>> steps) {
  std::vector<Fidelity> all(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) all[i].needle_mass = steps[i].first, all[i].needle_mass_kept = steps[i].second;
  return finds_needles(all);
}

TEST(FindsNeedles, IsAsWeakAsTheWeakestStepThatLooks) {
  EXPECT_TRUE(finds({}));
  EXPECT_TRUE(finds({{0, 0}, {0, 0}}));
  EXPECT_TRUE(finds({{0.2, 0.2}, {0.2, 0.1}}));
  EXPECT_FALSE(finds({{0.2, 0.2}, {0.2, 0.09}, {0.2, 0.2}}));
  EXPECT_TRUE(finds({{0.2, 0.2}, {0.09, 0}})) << "the second step hardly looks there";
  EXPECT_FALSE(finds({{0.2, 0.2}, {0.1, 0.04}}));
}

// The prompt's needles are in the budget of one and not of the other.
TEST(FindsNeedles, OfAReplay) {
  AttentionTrace trace = small_trace();
  trace.needles = {{100, 104}};
  EXPECT_TRUE(finds_needles(replayed(load_recipe("full"), trace).by_step));
  EXPECT_FALSE(finds_needles(replayed(load_recipe("streaming", 40), trace).by_step));
  EXPECT_TRUE(finds_needles(replayed(load_recipe("streaming", 150), trace).by_step));
}

// A trace of one layer whose queries were turned by a model's rotary positions.
AttentionTrace turned_trace(const RopeForm& rope, const std::string& scaling) {
  AttentionTrace trace = small_trace();
  trace.rope_base = rope.base, trace.rope_scaling = scaling;
  for (LayerTensors& layer : trace.layers) {
    layer.pre_q = layer.q;
    layer.q = turned(layer.pre_q, rope, range(0, trace.num_tokens), trace.q_heads, trace.head_dim);
  }
  return trace;
}

TEST(TraceRope, ScalingIsReadAndCheckedAgainstTheQueries) {
  using Kind = RopeScaling::Kind;
  const RopeForm yarn{1e4, {.kind = Kind::kYarn, .factor = 4, .original_tokens = 32, .attention_factor = yarn_attention_factor(4, 0, 0)}};
  const RopeForm llama3{1e4, {.kind = Kind::kLlama3, .factor = 8, .original_tokens = 64, .low_freq_factor = 1, .high_freq_factor = 4}};
  const std::string yarn_text = R"({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32})";
  const std::string llama3_text =
      R"({"type": "llama3", "factor": 8, "original_max_position_embeddings": 64, "low_freq_factor": 1, "high_freq_factor": 4})";
  const auto refusal = [](const AttentionTrace& trace) {
    return error_of([&] { replayed(load_recipe("expected_attention", 64), trace); });
  };
  EXPECT_EQ(refusal(turned_trace(yarn, yarn_text)), "no error");
  EXPECT_EQ(refusal(turned_trace(llama3, llama3_text)), "no error");
  EXPECT_EQ(refusal(turned_trace({1e4}, "none")), "no error");
  EXPECT_NE(refusal(turned_trace(llama3, "none")).find("rope_scaling none: they differ by"), std::string::npos);
  EXPECT_NE(refusal(turned_trace({1e4}, yarn_text)).find("they differ by"), std::string::npos);
  EXPECT_THAT(refusal(turned_trace(yarn, R"({"rope_type": "yarn", "factor": 4})")), HasSubstr("has no 'original_max_position_embeddings'"));
  EXPECT_NE(refusal(turned_trace(yarn, R"({"rope_type": "longrope", "factor": 4})")).find("is not supported"), std::string::npos);
}

// The oracle, which knows the queries to come: a bound for scorers.

const std::vector<SampleShape> kSamples{
    {2, 4, 2, 32, 200, 12, 0, 1}, {2, 4, 2, 32, 200, 12, 70, 2}, {1, 8, 1, 64, 260, 9, 0, 3}, {3, 3, 3, 48, 130, 16, 0, 4}};

double mass(const Sampled& s, const std::string& name, std::int32_t budget) {
  return s.replayed(load_recipe(name, budget)).mean.attention_mass;
}

// Recipes that once, when the prompt is complete, keep the best tokens of each row.
std::vector<std::string> prefill_end_scorers() {
  std::vector<std::string> names;
  for (const std::string& name : recipe_names()) {
    const Recipe r = load_recipe(name);
    if (r.trigger == "prefill_end" && r.allocator == "uniform" && r.disposal == "drop" && r.format == "native" && r.selector == "all" &&
        r.has_budget)
      names.push_back(name);
  }
  return names;
}

TEST(Oracle, AtEqualBudgetNoScorerKeepsMoreAttention) {
  const std::vector<std::string> names = prefill_end_scorers();
  EXPECT_GT(names.size(), 25U);
  for (const SampleShape& s : kSamples)
    for (const std::int32_t budget : {40, 80, 120}) {
      const double best = mass(sampled(s), "oracle", budget);
      for (const std::string& name : names)
        EXPECT_LE(mass(sampled(s), name, budget), best + 1e-6) << name << ", " << budget << " tokens, sample of " << s.prompt;
    }
}

// Nested sets of tokens: scores that do not depend on the budget.
TEST(TopKScorers, LargerBudgetsKeepNoLessAttention) {
  for (const char* name : {"oracle", "snapkv", "knorm", "keydiff", "tova", "observed_attention", "expected_attention", "leverage",
                           "noncausal_attention", "streaming", "kvpress_knorm", "kvpress_snapkv"})
    for (const SampleShape& shape : kSamples) {
      const Sampled& s = sampled(shape);
      double before = 0;
      for (const std::int32_t budget : {34, 50, 77, 110, 128, 129, 190, 260}) {
        const Recipe recipe = recipe_of(fmt::format("{{recipe: {}, trigger: prefill_end, budget_tokens: {}}}", name, budget));
        const double kept = s.replayed(recipe).mean.attention_mass;
        EXPECT_GE(kept, before - 1e-6) << name << " at " << budget;
        before = kept;
      }
    }
}

// Evictions of a few tokens in a decode step: what they cost, and that they keep what compaction keeps.

constexpr ModelShape kLlama{32, 32, 8, 128, 4096, 2};
constexpr std::int64_t kLlamaRows = 32 * 8;
// Of one layer and KV head: K and V of a token read and written, with the index of a move (kernels/storage/compact/compact.h), position
// read and written, and the place in the list of those that go.
constexpr std::int64_t kMoved = 4 * 128 * 2 + 4 + 8 + 4;

struct Work {
  std::int64_t bytes = 0, calls = 0;
};
// Work that the policy adds to a decode step of Llama-3.1-8B for a sequence of 8192 prompt tokens with `held` tokens in each row.
Work decode_work(const std::string& recipe, const std::vector<std::int32_t>& held) {
  StepOps ops(recipe_of("{recipe: " + recipe + "}"), kLlama);
  const StepOps::Seq seq{8199, 1, 8192, held, {}};
  const LayerCalls calls = ops.decode(std::span(&seq, 1));
  Work work;
  for (std::int32_t l = 0; l < kLlama.num_layers; ++l)
    for (const OpCall& c : calls.of_layer(l))
      if (c.op != "attend") work.bytes += c.bytes, ++work.calls;
  return work;
}

// One token's K and V over all layers is 0.13 MB, which are read and written. Nothing of the other 1,024 is touched.
TEST(InPlace, StreamingMovesOneToken) {
  const Work work = decode_work("streaming, budget_tokens: 1024", {1024});
  EXPECT_EQ(work.bytes, kLlamaRows * (kMoved + 4)) << "and a position";
  EXPECT_EQ(work.calls, 32);
  EXPECT_LT(work.bytes, 2.2 * 131072);
  EXPECT_EQ(decode_work("streaming, budget_tokens: 4096", {4096}).bytes, work.bytes) << "whatever the window";
  EXPECT_EQ(decode_work("sliding_window, budget_tokens: 512", {512}).bytes, work.bytes);
}

// fill_scores and reduce_heads write, or read and write, a score per token; attention_stats reads K and the queries of the group; one pass
// over the scores finds the token that goes.
TEST(InPlace, TovaReadsKeysOnceAndMovesOneToken) {
  const std::int64_t n = 1025, queries = 4 * 128 * 2;
  const Work work = decode_work("tova, budget_tokens: 1024", {1024});
  EXPECT_EQ(work.bytes, kLlamaRows * (4 * n + n * 128 * 2 + queries + 4 * n + 12 * n + 4 * n + kMoved));
}

// token_stats reads K and reads and writes the sums; token_scores reads sums and positions and writes; protect as kernels count it.
TEST(InPlace, H2oReadsKeysOnceAndMovesOneToken) {
  const std::int64_t n = 1025, queries = 4 * 128 * 2, sums = 8;
  const Work work = decode_work("h2o, budget_tokens: 1024", {1024});
  const Work compacted = decode_work("h2o, budget_tokens: 1024, disposal: {drop: {in_place: false}}", {1024});
  EXPECT_EQ(work.bytes, kLlamaRows * (n * 128 * 2 + queries + 8 * n + (4 + 4 + 4) * n + 8 * n + 4 * n + kMoved + sums));
  EXPECT_EQ(compacted.bytes - work.bytes, kLlamaRows * (1024 * (kMoved + sums) - (kMoved + sums))) << "K and V of all others";
}

// Streaming heads lose one token each, and heads that retrieve none.
TEST(InPlace, StreamingHeadsOfDuoAttentionAreRings) {
  std::vector<std::int32_t> held;
  for (std::int64_t r = 0; r < kLlamaRows; ++r) held.push_back(r % 2 == 0 ? 8199 : 320);
  EXPECT_EQ(decode_work("duo, budget_tokens: 320", held).bytes, kLlamaRows / 2 * (kMoved + 4));
}

TEST(InPlace, SaysWhyRowsAreCompacted) {
  const auto why = [](const std::string& recipe) { return why_compacts(recipe_of("{recipe: " + recipe + "}")); };
  const std::string in_order = " takes tokens in the order of their positions";
  for (const char* recipe : {"streaming", "h2o", "tova", "keyformer", "duo", "razor", "roco", "vatp", "corm", "d2o", "h2o_offload",
                             "scope_slide", "attendre_lfa", "paged_eviction", "snapkv", "full"})
    EXPECT_EQ(why(recipe), "") << recipe;
  EXPECT_EQ(why("h2o, disposal: {drop: {in_place: false}}"), "disposal 'drop' has 'in_place: false'");
  EXPECT_EQ(why("cam"), "disposal 'merge_window'" + in_order);
  EXPECT_EQ(why("lagkv"), "trigger 'lagged' drops many tokens at once");
  EXPECT_EQ(why("paged_eviction, trigger: {page_full: {page_tokens: 8}}"), "scorer 'value_key_norm'" + in_order);
  EXPECT_EQ(why("h2o, format: kivi"), "format 'kivi' stores tokens in groups or in the order of their positions");
  EXPECT_EQ(why("h2o, selector: quest"), "selector 'quest'" + in_order);
  EXPECT_EQ(why("h2o, scorer: {chunks: {of: accumulated_attention}}"), "scorer 'chunks'" + in_order);
  EXPECT_EQ(why("tova, allocator: {head_split: {retrieval_heads: 0.1}}"), "scorer 'last_query_attention'" + in_order);
  EXPECT_EQ(why("streaming_renumbered"), "keys are renumbered in the order of their positions");
}

// Names of recipes whose evictions in decode are in place, with the disposal that they have.
std::vector<std::string> recipes_in_place() {
  std::vector<std::string> names = recipes_in({"replay"});
  std::erase_if(names, [](const std::string& name) {
    const Recipe& r = shipped_recipe(name);
    return !r.make_scorer || !r.make_trigger()->in_decode() || !r.make_disposal()->shrinks() || !why_compacts(r).empty();
  });
  for (const auto& [name, text] : unequal_shares())
    if (const Recipe r = recipe_of(text); why_compacts(r).empty() && r.make_trigger()->in_decode()) names.push_back("shares_" + name);
  return names;
}

Recipe compacting(Recipe recipe) {
  const std::string& disposal = recipe.disposal;
  // The recipe's own parameters, and one more.
  for (const auto& [kind, text] : recipe.parts)
    if (kind == "disposal") {
      const std::string parameters = text.find('{') == std::string::npos
                                         ? "{in_place: false}"
                                         : text.substr(text.find(": ") + 2, text.size() - text.find(": ") - 4) + ", in_place: false}";
      recipe.make_disposal = [disposal, parameters] { return make_part<DisposalRegistry>(disposal, parameters); };
    }
  return recipe;
}

class InPlaceOf : public testing::TestWithParam<std::string> {};

// Prompts in one piece and in chunks, below and above the budget: the same tokens in every layer and head at the end, at every step the
// same fidelity but for the order of sums, and the calls that costs are charged for.
TEST_P(InPlaceOf, KeepsWhatCompactionKeeps) {
  for (const auto& [prompt, chunk, budget] : {std::tuple{200, 90, 130}, {200, 0, 160}, {120, 40, 130}, {150, 0, 150}}) {
    AttentionTrace trace = sample({.layers = 4, .prompt = prompt, .decode = 40, .chunk = chunk});
    const Recipe recipe = with_budget(GetParam(), budget);
    if (const std::string pass = KvPolicy(recipe, shape_of(trace, 2)).needs().pass; !pass.empty()) add_pass(trace, pass);
    const AttentionReference reference = full_attention(trace);
    const Recipe moving = compacting(recipe);
    ASSERT_NE(why_compacts(moving), "");
    const ReplayResult in_place = expect_cost_is_replay(trace, reference, recipe), compacted = replay(trace, reference, moving);
    EXPECT_EQ(in_place.kept, compacted.kept) << "prompt " << prompt;
    ASSERT_EQ(in_place.by_step.size(), compacted.by_step.size());
    for (std::size_t t = 0; t < in_place.by_step.size(); ++t) {
      EXPECT_EQ(in_place.by_step[t].attended_tokens, compacted.by_step[t].attended_tokens) << t;
      EXPECT_NEAR(in_place.by_step[t].attention_mass, compacted.by_step[t].attention_mass, 1e-5) << t;
      EXPECT_NEAR(in_place.by_step[t].output_rel_err, compacted.by_step[t].output_rel_err, 1e-4) << t;
    }
    EXPECT_EQ(in_place.resident, compacted.resident);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, InPlaceOf, testing::ValuesIn(recipes_in_place()), [](const auto& info) { return info.param; });

// More than 20 recipes are among them: a part that stops saying that it works in any order would be seen here.
TEST(InPlace, MostRecipesThatEvictInDecodeAreAmongThem) { EXPECT_GE(recipes_in_place().size(), 20U); }

// A row that loses more than a few tokens at once is compacted, as are those in a batch with it, and goes on in place later.
TEST(InPlace, CutsOfManyTokensCompact) {
  const Recipe recipe = recipe_of("{recipe: streaming, budget_tokens: 64, trigger: {every_step: {from: decode_only}}}");
  const AttentionTrace trace = sample({.decode = 80});
  Ops ops(Ops::Backend::kCpu);
  const ReplayResult result = replay(trace, full_attention(trace), recipe, {.ops = &ops});
  std::int64_t compactions = 0, evictions = 0;
  for (const OpCall& c : ops.log()) compactions += c.op == "compact" ? 1 : 0, evictions += c.op == "evict" ? 1 : 0;
  EXPECT_EQ(compactions, trace.num_layers);
  EXPECT_EQ(evictions, 79 * trace.num_layers);
  std::vector<std::int32_t> held{0, 1, 2, 3};
  for (std::int32_t i = 220; i < 280; ++i) held.push_back(i);
  for (const auto& row : result.kept) EXPECT_EQ(row, held);
}

}  // namespace
}  // namespace kvlab::test
