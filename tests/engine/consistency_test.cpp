// The engine, replay and (through replay: tests/kv/recipe_properties_test.cpp) the cost host do the same things for every recipe.
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/backend/engine_model.h"
#include "sim/replay/replay.h"
#include "tests/engine/probe.h"
#include "tests/recipes_in.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

constexpr std::int32_t kPrompt = 330;

// With a budget that it has to cut to.
Recipe cut_recipe(const std::string& name) {
  const Recipe recipe = load_recipe(name);
  if (!why_no_budget(recipe).empty()) return recipe;
  try {
    PolicyCache fits(probe(), load_recipe(name, 136), {});
    EngineSequence sequence;
    sequence.prompt_tokens = kPrompt;
    sequence.question_begin = kPrompt - 20;
    fits.start(sequence);
    fits.policy().refuse_small_budget({0, 0, kPrompt, kPrompt, -1});
    return load_recipe(name, 136);
  } catch (const InputError&) {
    return load_recipe(name, 300);  // it always keeps more
  }
}

class Consistency : public testing::TestWithParam<std::string> {};

TEST_P(Consistency, ReplayOfWhatTheEngineSawDoesWhatItDid) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  const Recipe recipe = cut_recipe(GetParam());
  for (const std::int32_t chunk : {0, 128}) {
    if (chunk == 0 && short_run()) continue;
    RecordOptions options;
    options.chunk_tokens = chunk;
    options.decode_tokens = 6;
    options.pre_rope = options.hidden = options.w_o = options.w_q = true;
    PolicyCache::Options cache;
    cache.kv_bytes = 2;
    cache.packs = chunk == 0;
    PolicyRecord engine;
    try {
      engine = record_with_policy(probe_engine(), text_ids(kPrompt), options, recipe, cache, kPrompt - 20);
    } catch (const InputError& e) {
      if (chunk > 0 && std::string(e.what()).find("before its pass") != std::string::npos) continue;  // cuts inside the prompt
      throw;
    }
    Ops ops(Ops::Backend::kCpu);
    const ReplayResult replayed = replay(engine.trace, full_attention(engine.trace), recipe, {.ops = &ops});
    EXPECT_EQ(engine.kept, replayed.kept) << "chunks of " << chunk;
    EXPECT_EQ(engine.resident, replayed.resident) << "chunks of " << chunk;
    ASSERT_EQ(engine.log.size(), ops.log().size()) << "chunks of " << chunk;
    for (std::size_t i = 0; i < engine.log.size(); ++i) ASSERT_EQ(engine.log[i], ops.log()[i]) << engine.log[i].op << " at " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Consistency, testing::ValuesIn(recipes_in({"engine", "replay"})),
                         [](const testing::TestParamInfo<std::string>& info) { return info.param; });

// In the model's own format the pool holds what the recipe says is resident, up to what is left of each row's last page.
TEST(Consistency, PagesHoldWhatIsCounted) {
  const ModelConfig& c = probe().config();
  for (const char* name : {"full", "snapkv", "streaming", "adakv"}) {
    PolicyCache cache(probe(), load_recipe(name, name == std::string("full") ? 0 : 100), {});
    EngineSequence s;
    s.ids = text_ids(301);
    s.prompt_tokens = 300;
    cache.start(s);
    cache.adopt(s, run_prompt(probe(), std::span(s.ids).first(300), cache.policy().needs(), {}));
    std::int64_t tokens = 0, pages = 0;
    for (const auto& row : cache.positions(s))
      tokens += static_cast<std::int64_t>(row.size()), pages += (static_cast<std::int64_t>(row.size()) + 15) / 16;
    EXPECT_EQ(cache.pages().used_pages(), pages) << name;
    const std::int64_t per_token = 2 * 4 * c.head_dim, beside = cache.resident(s).gpu - tokens * per_token;
    EXPECT_GE(beside, 0) << name;
    EXPECT_LE(beside, 4 * tokens * (cache.policy().num_words() + 1)) << name;  // positions and statistics
    EXPECT_LT(std::string(name) == "full" ? 0 : pages, 8 * 2 * 19) << name;    // 300 tokens take 19 pages of each head
    cache.release(s);
    EXPECT_EQ(cache.pages().used_pages(), 0) << name;
  }
}

}  // namespace
}  // namespace kvlab
