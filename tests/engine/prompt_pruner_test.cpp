// Prompts that lose tokens between layers of the engine's model.
#include "policies/kv/prompt_pruner/prompt_pruner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "sim/kv_cost/shape_run.h"
#include "tests/engine/cache_steps.h"
#include "tests/error_of.h"
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
    std::vector<double> sums(static_cast<std::size_t>(d), 0);
    double total = 0;
    for (const std::int32_t i : seen) {
      if (i > t) break;
      double z = 0;
      for (std::int64_t c = 0; c < d; ++c) z += double{q[c]} * k[i * stride + c];
      const double p = std::exp(z / std::sqrt(static_cast<double>(d)));
      total += p;
      for (std::int64_t c = 0; c < d; ++c) sums[static_cast<std::size_t>(c)] += p * v[i * stride + c];
    }
    for (std::int64_t c = 0; c < d; ++c) out[c] = total > 0 ? static_cast<float>(sums[static_cast<std::size_t>(c)] / total) : 0.0F;
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
    std::vector<std::int32_t> positions(kPrunedPrompt);
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<float> expected = probe().logits(probe().forward({std::span(run.s.ids).first(kPrunedPrompt), positions}, masked));
    double most = 0;
    for (const std::int32_t t : last) most = std::max(most, logits_apart(logits_of(logits, t), logits_of(expected, t)));
    EXPECT_LE(most, 5e-4) << text;  // logits are of order 10, and sums are taken in another order
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
    EXPECT_LE(logits_apart(logits_of(together, 299), last_logits(first)), 2e-4) << text;
    EXPECT_LE(logits_apart(logits_of(together, 300), last_logits(decoded)), 2e-4) << text;
    EXPECT_LE(logits_apart(logits_of(together, 780), last_logits(third)), 2e-4) << text;
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

}  // namespace
}  // namespace kvlab
