// Evictions of a few tokens in a decode step: what they cost, and that they keep what compaction keeps.
#include "policies/kv/policy/policy.h"
#include "sim/kv_cost/step_ops.h"
#include "tests/kv/host_fixture.h"
#include "tests/kv/kv_fixture.h"

namespace kvlab::test {
namespace {

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
