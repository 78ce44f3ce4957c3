// Prompts of the engine's model that are replaced by some of their tokens.
#include "policies/kv/prompt_rewriter/prompt_rewriter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/model/record.h"
#include "policies/kv/prompt_rewriter/question_cosine/question_cosine.h"
#include "policies/kv/prompt_rewriter/quota_select_op.h"
#include "tests/engine/cache_steps.h"
#include "tests/error_of.h"
#include "tests/recipes_in.h"

namespace kvlab {
namespace {

using ::testing::HasSubstr;

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
      for (std::int32_t i = 0; i <= t; ++i) {
        double z = 0;
        for (std::int32_t c = 0; c < 64; ++c)
          z += double{trace.layers[2].q[static_cast<std::size_t>((t * 8 + h) * 64 + c)]} *
               trace.layers[2].k[static_cast<std::size_t>((i * 2 + h / 4) * 64 + c)];
        p.push_back(std::exp(z / 8));
      }
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      for (std::size_t i = 0; i < p.size(); ++i) sums[i] += p[i] / sum / (8 * kAsked);
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
    EXPECT_LE(logits_apart(last_logits(rewritten.run(kRewrittenPrompt)), last_logits(full.run(kStay))), 2e-3);
    for (int i = 0; i < 3; ++i) EXPECT_LE(logits_apart(rewritten.run(1), full.run(1)), 2e-3) << "step " << i;
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
  EXPECT_LE(logits_apart(logits_of(together, 120, kRewrittenPrompt), run_step(alone, {{&other_a, kRewrittenPrompt}})), 2e-4);
  EXPECT_LE(logits_apart(logits_of(together, 0, 120), run_step(alone, {{&other_b, 120}})), 2e-4);
  run_step(alone, {{&other_c, 100}});
  EXPECT_LE(logits_apart(logits_of(together, 720), run_step(alone, {{&other_c, 1}})), 2e-4);
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
