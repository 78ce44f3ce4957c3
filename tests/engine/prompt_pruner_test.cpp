// Prompts that lose tokens between layers of the engine's model.
#include "policies/kv/prompt_pruner/prompt_pruner.h"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "engine/model/record.h"
#include "policies/kv/prompt_rewriter/prompt_rewriter.h"
#include "policies/kv/prompt_rewriter/question_cosine/question_cosine.h"
#include "policies/kv/prompt_rewriter/quota_select_op.h"
#include "sim/kv_cost/shape_run.h"
#include "tests/engine/cache_steps.h"
#include "tests/error_of.h"
#include "tests/plain_softmax.h"
#include "tests/recipes_in.h"

namespace kvlab {
namespace {

using ::testing::HasSubstr;

constexpr std::int32_t kPrunedPrompt = 600;

const std::vector<std::string>& pruned_recipes() {
  static const std::vector<std::string> texts{
      "{recipe: promptdistill, prompt_pruner: {prompt_distill: {stages: 0.375=150 0.75=0.1}}}",
      "{recipe: pyramidinfer, prompt_pruner: {pyramid_infer: {ratio: 0.6}}, trigger: {recent_groups: {group_tokens: 2}}, "
      "scorer: {recent_votes: {group_tokens: 2}}, allocator: {group_share: {group_tokens: 2}}}",
      "{recipe: sliminfer, prompt_pruner: {slim_infer: {recent_tokens: 32, unit_tokens: 8, units_per_block: 2}}}"};
  return texts;
}

EngineSequence pruned_sequence(std::int32_t prompt, std::int32_t index = 0) {
  return sequence_of(index, some_ids(prompt + 8, 3 + index), prompt);
}

// Stages that keep all tokens, and a ratio of 1, change no bit of any logit.
TEST(PrunedPrompts, PruningNothingIsFull) {
  CacheRun full(load_recipe("full"), pruned_sequence(kPrunedPrompt));
  std::vector<std::vector<float>> expected{full.run(kPrunedPrompt)};
  for (int i = 0; i < 3; ++i) expected.push_back(full.run(1));
  for (const char* text :
       {"{recipe: promptdistill, prompt_pruner: {prompt_distill: {stages: 0.3=1 0.5=4000}}}",
        "{recipe: pyramidinfer, prompt_pruner: {pyramid_infer: {ratio: 1}}}",
        "{recipe: sliminfer, prompt_pruner: {slim_infer: {stages: 0.3=1}}}", "{recipe: pyramidinfer, prompt_pruner: none}"}) {
    CacheRun pruned(recipe_of(text), pruned_sequence(kPrunedPrompt));
    EXPECT_EQ(pruned.run(kPrunedPrompt), expected[0]) << text;
    for (std::size_t i = 1; i < expected.size(); ++i) EXPECT_EQ(pruned.run(1), expected[i]) << text;
  }
}

// Positions ascend, each layer's are among those of the layer before, and their number is the policy's; both ends stay.
TEST(PrunedPrompts, LayersHoldSubsetsInOrder) {
  for (const std::string& text : pruned_recipes()) {
    SCOPED_TRACE(text);
    CacheRun run(recipe_of(text), pruned_sequence(kPrunedPrompt));
    PolicyCache& cache = run.cache;
    run.run(kPrunedPrompt);
    const SeqStep prompt{0, 0, kPrunedPrompt, kPrunedPrompt, -1};
    const std::int32_t heads = probe().config().kv_heads, layers = probe().config().layers;
    std::vector<std::vector<std::int32_t>> held = cache.positions(run.s);
    std::int64_t pages = 0;
    for (std::int32_t l = 0; l < layers; ++l) {
      const std::vector<std::int32_t>& row = held[static_cast<std::size_t>(l * heads)];
      EXPECT_EQ(std::ssize(row), cache.policy().step_tokens(prompt, l)) << "layer " << l;
      EXPECT_TRUE(std::is_sorted(row.begin(), row.end()) && std::set(row.begin(), row.end()).size() == row.size()) << "layer " << l;
      EXPECT_EQ(row.back(), kPrunedPrompt - 1);
      for (std::int32_t h = 1; h < heads; ++h) EXPECT_EQ(held[static_cast<std::size_t>(l * heads + h)], row);
      if (l > 0) {
        const std::vector<std::int32_t>& before = held[static_cast<std::size_t>((l - 1) * heads)];
        EXPECT_TRUE(std::includes(before.begin(), before.end(), row.begin(), row.end())) << "layer " << l;
      }
      pages += heads * ((std::ssize(row) + 15) / 16);
    }
    EXPECT_LT(held.back().size(), held.front().size() / 2);
    EXPECT_EQ(cache.pages().used_pages(), pages);
    cache.release(run.s);
    EXPECT_EQ(cache.pages().used_pages(), 0);
  }
}

// All tokens pass all layers, and each sees only those that the pruned cache holds in the layer: for these the result is the same.
class MaskedAttention final : public AttentionHost {
 public:
  explicit MaskedAttention(std::vector<std::vector<std::int32_t>> visible) : visible_(std::move(visible)) {}
  void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) override {
    const ModelConfig& c = probe().config();
    const std::int64_t d = c.head_dim, group = c.q_heads / c.kv_heads;
    const std::vector<std::int32_t>& seen = visible_[static_cast<std::size_t>(layer)];
    for (std::int64_t t = 0; t < kPrunedPrompt; ++t)
      for (std::int64_t h = 0; h < c.q_heads; ++h)
        attend_one(q + (t * c.q_heads + h) * d, k + h / group * d, v + h / group * d, seen, t, out + (t * c.q_heads + h) * d);
  }

 private:
  static void attend_one(const float* q, const float* k, const float* v, const std::vector<std::int32_t>& seen, std::int64_t t,
                         float* out) {
    const std::int64_t d = probe().config().head_dim, stride = probe().config().kv_heads * d;
    std::vector<double> sums(static_cast<std::size_t>(d), 0), p;
    for (const std::int32_t i : seen)
      if (i <= t) p.push_back(plain_dot(q, k + i * stride, d) / std::sqrt(static_cast<double>(d)));
    plain_softmax(p);
    for (std::size_t i = 0; i < p.size(); ++i)
      for (std::int64_t c = 0; c < d; ++c) sums[static_cast<std::size_t>(c)] += p[i] * v[seen[i] * stride + c];
    std::copy(sums.begin(), sums.end(), out);
  }
  std::vector<std::vector<std::int32_t>> visible_;
};

TEST(PrunedPrompts, TokensThatGoOnSeeOneAnotherAlone) {
  for (const std::string& text : pruned_recipes()) {
    CacheRun run(recipe_of(text), pruned_sequence(kPrunedPrompt));
    const std::vector<float> logits = run.run(kPrunedPrompt);
    std::vector<std::vector<std::int32_t>> visible;
    const std::vector<std::vector<std::int32_t>> held = run.cache.positions(run.s);
    for (std::size_t r = 0; r < held.size(); r += static_cast<std::size_t>(probe().config().kv_heads)) visible.push_back(held[r]);
    const std::vector<std::int32_t> last = visible.back();
    MaskedAttention masked(std::move(visible));
    const std::vector<std::int32_t> positions = consecutive(0, kPrunedPrompt);
    const std::vector<float> expected = probe().logits(probe().forward({std::span(run.s.ids).first(kPrunedPrompt), positions}, masked));
    for (const std::int32_t t : last)  // logits are of order 10, and sums are taken in another order
      EXPECT_LE(largest_difference(logits_of(logits, t), logits_of(expected, t)), 5e-4) << text;
  }
}

// A prompt and its first tokens: the calls, the bytes and the rows of the cost host are those of the engine.
TEST(PrunedPrompts, CostHostDoesTheSame) {
  for (const std::string& text : pruned_recipes()) {
    SCOPED_TRACE(text);
    PolicyCache cache(probe(), recipe_of(text), {.kv_bytes = 2});
    cache.ops().keep_log(true);
    ShapeRun shapes(recipe_of(text), cache.shape());
    EngineSequence a = pruned_sequence(kPrunedPrompt), b = pruned_sequence(333, 1), brief = pruned_sequence(20, 2);
    for (EngineSequence* s : {&a, &b, &brief}) cache.start(*s);
    std::vector<ShapeRun::Seq> batch{{0, kPrunedPrompt, kPrunedPrompt, {}, {}}, {0, 333, 333, {}, {}}, {0, 20, 20, {}, {}}};
    for (int step = 0; step < 4; ++step) {
      cache.ops().clear_log();
      run_step(cache, {{&a, batch[0].new_tokens}, {&b, batch[1].new_tokens}, {&brief, batch[2].new_tokens}});
      const ShapeRun::Result result = shapes.step(batch);
      EXPECT_EQ(cache.ops().log(), result.calls) << "step " << step;
      EXPECT_FALSE(result.calls.empty());
      TierBytes resident;
      for (EngineSequence* s : {&a, &b, &brief}) resident += cache.resident(*s);
      EXPECT_EQ(resident, result.after) << "step " << step;
      const std::size_t rows = result.held.size() / batch.size();
      for (std::size_t s = 0; s < batch.size(); ++s) {
        batch[s].held.assign(result.held.begin() + static_cast<std::ptrdiff_t>(s * rows),
                             result.held.begin() + static_cast<std::ptrdiff_t>((s + 1) * rows));
        batch[s].seen_tokens += batch[s].new_tokens, batch[s].new_tokens = 1;
      }
    }
  }
}

// In decode the group before the recent tokens loses some, once; tokens before and after it stay.
TEST(PrunedPrompts, PyramidInferCutsOldGroups) {
  const std::string text =
      "{recipe: pyramidinfer, trigger: {recent_groups: {group_tokens: 4}}, scorer: {recent_votes: {group_tokens: 4}}, "
      "allocator: {group_share: {group_tokens: 4}}}";
  constexpr std::int32_t kPrompt = 40, kRecent = 9;
  CacheRun run(recipe_of(text), pruned_sequence(kPrompt));
  run.run(kPrompt);
  for (std::int32_t decoded = 1; decoded <= 8; ++decoded) {
    const std::vector<std::vector<std::int32_t>> before = run.cache.positions(run.s);
    run.run(1);
    const std::vector<std::vector<std::int32_t>> after = run.cache.positions(run.s);
    const std::int32_t group = kPrompt + decoded - kRecent - 4;
    for (std::size_t r = 0; r < after.size(); ++r) {
      std::vector<std::int32_t> all = before[r], lost;
      all.push_back(kPrompt + decoded - 1);
      std::set_difference(all.begin(), all.end(), after[r].begin(), after[r].end(), std::back_inserter(lost));
      EXPECT_EQ(lost.empty(), decoded % 4 != 0) << decoded << " row " << r;
      for (const std::int32_t position : lost) EXPECT_TRUE(position >= group && position < group + 4) << decoded << " " << position;
    }
  }
}

// A sequence that decodes between two prompts of one step: each has the logits that it has alone.
TEST(PrunedPrompts, BatchesArePrunedOneByOne) {
  for (const std::string& text : pruned_recipes()) {
    PolicyCache cache(probe(), recipe_of(text), {}), alone(probe(), recipe_of(text), {});
    std::vector<EngineSequence> batch, apart;
    for (const std::int32_t i : {0, 1, 2})
      batch.push_back(pruned_sequence(300 + 90 * i, i)), apart.push_back(pruned_sequence(300 + 90 * i, i));
    for (EngineSequence& s : batch) cache.start(s);
    for (EngineSequence& s : apart) alone.start(s);
    run_step(cache, {{&batch[1], 390}});
    const std::vector<float> together = run_step(cache, {{&batch[0], 300}, {&batch[1], 1}, {&batch[2], 480}});
    const std::vector<float> first = run_step(alone, {{&apart[0], 300}});
    run_step(alone, {{&apart[1], 390}});
    const std::vector<float> decoded = run_step(alone, {{&apart[1], 1}}), third = run_step(alone, {{&apart[2], 480}});
    EXPECT_LE(largest_difference(logits_of(together, 299), last_logits(first)), 2e-4) << text;
    EXPECT_LE(largest_difference(logits_of(together, 300), last_logits(decoded)), 2e-4) << text;
    EXPECT_LE(largest_difference(logits_of(together, 780), last_logits(third)), 2e-4) << text;
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(cache.positions(batch[i]), alone.positions(apart[i])) << text;
  }
}

TEST(PrunedPrompts, ErrorsSayWhatToDo) {
  CacheRun run(load_recipe("pyramidinfer"), pruned_sequence(kPrunedPrompt));
  const KvPolicy& policy = run.cache.policy();
  EXPECT_THAT(
      error_of([&] { run.run(100); }),
      HasSubstr("recipe 'pyramidinfer' prunes prompts and takes each in one piece, but a step has tokens 0 to 100 of a prompt of 600"));
  EXPECT_THAT(error_of([&] { require_recipe("cuda", policy.recipe(), policy.needs()); }),
              HasSubstr("recipe 'pyramidinfer' prunes prompts between layers; it runs only with backend cpu"));
  ModelConfig windows = probe().config();
  windows.windows.assign(static_cast<std::size_t>(windows.layers), 64);
  EXPECT_THAT(error_of([&] { refuse_pruning(policy.recipe(), windows); }), HasSubstr("write 'prompt_pruner: none'"));
}

// Prompts of the engine's model that are replaced by some of their tokens.

constexpr std::int32_t kRewrittenPrompt = 600, kAsked = 30, kStay = 150, kEnds = 10;

const char* const kIlreText =
    "{recipe: ilre, prompt_rewriter: {ilre: {depth_frac: 0.25, tokens: 150, first_tokens: 10, last_tokens: 10, pool_widths: 1 9 33}}}";
const char* const kReformText =
    "{recipe: full, prompt_rewriter: {reform: {vectors: 3.k.1 2.q.5 3.v.0, tokens: 150, first_tokens: 10, last_tokens: 10, pool_width: "
    "9}}}";

EngineSequence asked_sequence(std::int32_t prompt = kRewrittenPrompt, std::int32_t index = 0) {
  EngineSequence s = sequence_of(index, some_ids(prompt + 8, 3 + index), prompt);
  s.question_begin = prompt - kAsked;
  return s;
}

AttentionTrace recorded_prompt(const EngineSequence& s) {
  RecordOptions options;
  options.pre_rope = true;
  return record(probe(), std::span(s.ids).first(kRewrittenPrompt), options);
}

std::vector<std::int32_t> kept_tokens(const std::vector<float>& scores, const std::vector<std::int32_t>& widths) {
  std::vector<std::int32_t> index(kStay);
  run_cpu(QuotaSelect{kRewrittenPrompt, kEnds, kRewrittenPrompt - kEnds - kAsked, kStay, widths.data(),
                      static_cast<std::int32_t>(widths.size()), scores.data(), index.data()});
  return index;
}

// By the definition: attention of the question's queries in layer 2, mean over heads and queries.
std::vector<std::int32_t> ilre_tokens(const EngineSequence& s) {
  const AttentionTrace trace = recorded_prompt(s);
  std::vector<double> sums(kRewrittenPrompt, 0);
  for (std::int32_t t = kRewrittenPrompt - kAsked; t < kRewrittenPrompt; ++t)
    for (std::int32_t h = 0; h < 8; ++h) {
      std::vector<double> p;
      for (std::int32_t i = 0; i <= t; ++i)
        p.push_back(plain_dot(trace.layers[2].q.data() + (t * 8 + h) * 64, trace.layers[2].k.data() + (i * 2 + h / 4) * 64, 64) / 8);
      plain_softmax(p);
      for (std::size_t i = 0; i < p.size(); ++i) sums[i] += p[i] / (8 * kAsked);
    }
  return kept_tokens({sums.begin(), sums.end()}, {1, 9, 33});
}

std::vector<std::int32_t> reform_tokens(const EngineSequence& s) {
  const AttentionTrace trace = recorded_prompt(s);
  const auto head = [](const std::vector<float>& all, std::int32_t heads, std::int32_t h) {
    std::vector<float> some;
    for (std::int32_t t = 0; t < kRewrittenPrompt; ++t) {
      const auto at = all.begin() + (t * heads + h) * 64;
      some.insert(some.end(), at, at + 64);
    }
    return some;
  };
  const std::vector<float> a = head(trace.layers[3].pre_k, 2, 1), b = head(trace.layers[2].pre_q, 8, 5), c = head(trace.layers[3].v, 2, 0);
  const std::vector<const float*> vectors{a.data(), b.data(), c.data()};
  std::vector<float> scores(kRewrittenPrompt);
  run_cpu(QuestionCosine{kRewrittenPrompt, kRewrittenPrompt - kAsked, 64, vectors, scores.data()});
  return kept_tokens(scores, {9});
}

// A budget of the prompt or more changes no bit of any logit.
TEST(RewrittenPrompts, ALargeBudgetIsFull) {
  CacheRun full(load_recipe("full"), asked_sequence());
  std::vector<std::vector<float>> expected{full.run(kRewrittenPrompt)};
  for (int i = 0; i < 2; ++i) expected.push_back(full.run(1));
  for (const char* text : {"{recipe: ilre}", "{recipe: full, prompt_rewriter: {reform: {vectors: 3.k.1, tokens: 600}}}"}) {
    CacheRun rewritten(recipe_of(text), asked_sequence());
    EXPECT_EQ(rewritten.run(kRewrittenPrompt), expected[0]) << text;
    for (std::size_t i = 1; i < expected.size(); ++i) EXPECT_EQ(rewritten.run(1), expected[i]) << text;
  }
}

// The model computes the chosen tokens alone, as a prompt of their own; decode continues from there.
TEST(RewrittenPrompts, AreAFreshPrefillOfTheChosenTokens) {
  for (const bool reform : {false, true}) {
    CacheRun rewritten(recipe_of(reform ? kReformText : kIlreText), asked_sequence());
    const EngineSequence& s = rewritten.s;
    const std::vector<std::int32_t> chosen = reform ? reform_tokens(s) : ilre_tokens(s);
    ASSERT_EQ(chosen.back(), kRewrittenPrompt - 1);
    EngineSequence fresh;
    fresh.prompt_tokens = kStay;
    for (const std::int32_t i : chosen) fresh.ids.push_back(s.ids[static_cast<std::size_t>(i)]);
    fresh.ids.insert(fresh.ids.end(), s.ids.begin() + kRewrittenPrompt, s.ids.end());
    CacheRun full(load_recipe("full"), std::move(fresh));
    EXPECT_LE(largest_difference(last_logits(rewritten.run(kRewrittenPrompt)), last_logits(full.run(kStay))), 2e-3);
    for (int i = 0; i < 3; ++i) EXPECT_LE(largest_difference(rewritten.run(1), full.run(1)), 2e-3) << "step " << i;
    EXPECT_EQ(rewritten.cache.pages().used_pages(), full.cache.pages().used_pages());
    for (const KvStore::Sequence& layer : s.rows)
      for (const std::int32_t len : layer.len) EXPECT_EQ(len, kStay + 3);
  }
}

// Chunks of 128 that see 40 tokens before them find other tokens than a scan of the whole prompt, and as many.
TEST(RewrittenPrompts, TheScansCacheIsCut) {
  const Recipe cut = recipe_of(
      "{recipe: ilre, prompt_rewriter: {ilre: {depth_frac: 0.375, tokens: 150, first_tokens: 10, last_tokens: 10, chunk_tokens: 128, "
      "sinks_tokens: 8, window_tokens: 32}}}");
  CacheRun run(cut, asked_sequence());
  const std::vector<float> logits = run.run(kRewrittenPrompt);
  EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float z) { return std::isfinite(z); }));
  EXPECT_EQ(run.s.rows.front().len.front(), kStay);
}

// Two prompts, one of which stays whole, and a decoding sequence: each as if it were alone.
TEST(RewrittenPrompts, SequencesOfABatchStayApart) {
  const Recipe recipe = recipe_of(kIlreText);
  PolicyCache cache(probe(), recipe, {}), alone(probe(), recipe, {});
  EngineSequence a = asked_sequence(), b = asked_sequence(120, 1), c = asked_sequence(100, 2);
  cache.start(a), cache.start(b), cache.start(c);
  run_step(cache, {{&c, 100}});
  const std::vector<float> together = run_step(cache, {{&b, 120}, {&a, kRewrittenPrompt}, {&c, 1}});
  EngineSequence other_a = asked_sequence(), other_b = asked_sequence(120, 1), other_c = asked_sequence(100, 2);
  alone.start(other_a), alone.start(other_b), alone.start(other_c);
  EXPECT_LE(largest_difference(logits_of(together, 120, kRewrittenPrompt), run_step(alone, {{&other_a, kRewrittenPrompt}})), 2e-4);
  EXPECT_LE(largest_difference(logits_of(together, 0, 120), run_step(alone, {{&other_b, 120}})), 2e-4);
  run_step(alone, {{&other_c, 100}});
  EXPECT_LE(largest_difference(logits_of(together, 720), run_step(alone, {{&other_c, 1}})), 2e-4);
}

TEST(RewrittenPrompts, NeedTheirQuestion) {
  PolicyCache cache(probe(), recipe_of(kIlreText), {});
  EngineSequence s = sequence_of(0, some_ids(60, 3), 50);
  EXPECT_THAT(error_of([&] { cache.start(s); }), HasSubstr("needs to know where the question begins"));
  EXPECT_THAT(error_of([&] { refuse_cpu_only(cache.policy().recipe(), cache.policy().needs()); }),
              HasSubstr("recipe 'ilre' rewrites prompts; it runs only with backend cpu"));
}

}  // namespace
}  // namespace kvlab
