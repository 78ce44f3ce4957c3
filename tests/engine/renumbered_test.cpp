// Recipes with `positions: renumbered` in a running model.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "engine/backend/engine_model.h"
#include "sim/replay/replay.h"
#include "tests/engine/cache_steps.h"
#include "tests/engine/small_model.h"
#include "tests/error_of.h"
#include "tests/recipes_in.h"
#include "tests/short_run.h"
#include "traces/bytes.h"

namespace kvlab {
namespace {

// Held-out text of the probe as token ids, after its <s>.
std::vector<std::int32_t> held_out(std::size_t first, std::size_t tokens) {
  std::vector<char> text(first + tokens - 1);
  const std::unique_ptr<ByteSource> source = open_bytes(kProbeDir + "/eval/val.txt.gz");
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t read = source->read(text.data() + at, text.size() - at);
    if (read == 0) throw InternalError("the held-out text is shorter");
    at += read;
  }
  std::vector<std::int32_t> ids{256};
  for (std::size_t i = first; i < text.size(); ++i) ids.push_back(static_cast<unsigned char>(text[i]));
  return ids;
}

// -log2 of the probability that the logits [vocabulary] give to a token.
double bits_of(std::span<const float> logits, std::int32_t token) {
  double most = -1e30, sum = 0;
  for (const float x : logits) most = std::max(most, double{x});
  for (const float x : logits) sum += std::exp(double{x} - most);
  return (std::log(sum) + most - double{logits[static_cast<std::size_t>(token)]}) / std::log(2.0);
}

// Bits per byte of the text's tokens in [from, end), fed in chunks over a policy's cache.
double bits_per_byte(const Recipe& recipe, const std::vector<std::int32_t>& ids, std::int32_t from, std::int32_t chunk) {
  const auto n = static_cast<std::int32_t>(ids.size());
  CacheRun run(recipe, sequence_of(0, ids, n));
  const auto vocabulary = static_cast<std::size_t>(probe().config().vocab_size);
  double bits = 0;
  for (std::int32_t begin = 0; begin < n - 1; begin += chunk) {
    const std::int32_t count = std::min(chunk, n - 1 - begin);
    const std::vector<float> logits = run.run(count);
    for (std::int32_t i = 0; i < count; ++i)
      if (begin + i + 1 >= from)
        bits += bits_of(std::span(logits).subspan(static_cast<std::size_t>(i) * vocabulary, vocabulary),
                        ids[static_cast<std::size_t>(begin + i + 1)]);
  }
  run.cache.release(run.s);
  return bits / (n - from);
}

// The figures of docs/accuracy.md, "Beyond the trained length". The probe was trained on 4,096 tokens; of 8,192 the last quarter counts.
TEST(BeyondTheTrainedLength, PlacesInTheCacheKeepTheModelSane) {
  if (short_run()) GTEST_SKIP() << kLeftOut;
  constexpr std::int32_t kTokens = 8192, kCounted = 2048;
  const std::int32_t trained = probe().config().max_tokens;
  const std::vector<std::int32_t> ids = held_out(20000, kTokens), within(ids.end() - trained, ids.end());
  const auto measure = [&](const char* what, const std::string& recipe, const std::vector<std::int32_t>& text) {
    const double bits = bits_per_byte(recipe_of(recipe), text, static_cast<std::int32_t>(text.size()) - kCounted, 64);
    std::printf("%-58s %.2f bits per byte\n", what, bits);
    return bits;
  };
  const std::string streaming = "{recipe: streaming_renumbered, budget_tokens: 1024, positions: ";
  const double fresh = measure("full cache, the last 4,096 tokens alone", "{recipe: full}", within);
  const double full = measure("full cache, all 8,192 tokens", "{recipe: full}", ids);
  const double original = measure("sinks and window of 1,024 tokens, original positions", streaming + "original}", ids);
  const double renumbered = measure("sinks and window of 1,024 tokens, renumbered", streaming + "renumbered}", ids);
  EXPECT_LT(renumbered, 1.1 * fresh);
  EXPECT_GT(original, 1.2 * renumbered);
  EXPECT_GT(full, 3 * renumbered);
}

// The engine renumbers as replay does, which tests/kv/renumbered_test.cpp holds against the model's own rotation.
class RenumberedInEngine : public testing::TestWithParam<std::string> {};

TEST_P(RenumberedInEngine, RunsAsInReplayOrSaysWhyNot) {
  if (left_out_of_short_run(GetParam())) GTEST_SKIP() << kLeftOut;
  constexpr std::int32_t kPrompt = 330;
  Recipe recipe;
  try {
    const std::string budget = why_no_budget(shipped_recipe(GetParam())).empty() ? ", budget_tokens: 300" : "";
    recipe = recipe_of("{recipe: " + GetParam() + ", positions: renumbered" + budget + "}");
  } catch (const InputError& e) {
    EXPECT_NE(std::string(e.what()).find("keys cannot be renumbered, because "), std::string::npos) << e.what();
    return;
  }
  RecordOptions options;
  options.chunk_tokens = 128, options.decode_tokens = 4;
  options.pre_rope = options.hidden = options.w_o = true;
  PolicyRecord engine;
  const auto refusal =
      error_of([&] { engine = record_with_policy(probe_engine(), some_ids(kPrompt, 5), options, recipe, {.kv_bytes = 2}, kPrompt - 20); });
  if (refusal != "no error") {  // of the budget or the chunks, as without
    EXPECT_EQ(refusal.find("renumbered"), std::string::npos) << refusal;
    GTEST_SKIP() << refusal;
  }
  Ops ops(Ops::Backend::kCpu);
  const ReplayResult replayed = replay(engine.trace, full_attention(engine.trace), recipe, {.ops = &ops});
  EXPECT_EQ(std::tuple(engine.kept, engine.resident), std::tuple(replayed.kept, replayed.resident));
  ASSERT_EQ(engine.log.size(), ops.log().size());
  for (std::size_t i = 0; i < engine.log.size(); ++i) ASSERT_EQ(engine.log[i], ops.log()[i]) << engine.log[i].op << " at " << i;
}

INSTANTIATE_TEST_SUITE_P(Recipes, RenumberedInEngine, testing::ValuesIn(recipes_in({"engine", "replay"})),
                         [](const auto& info) { return info.param; });

TEST(Renumbered, IsRefusedWhereTheModelHasWindowsOrKeysOf16BitsAreTurnedInDecode) {
  ModelConfig windows = test::small_config(2);
  windows.windows = {0, 128};
  const Recipe streaming = load_recipe("streaming_renumbered"), finch = load_recipe("finch");
  EXPECT_EQ(error_of([&] { refuse_renumbering(streaming, windows); }),
            "recipe 'streaming_renumbered' cannot run: keys cannot be renumbered, because layer 1 of the model attends to a window of its "
            "own; write 'positions: original'");
  EXPECT_EQ(error_of([&] { refuse_renumbering(streaming, test::small_config(2)); }), "no error");
  EXPECT_EQ(error_of([&] { refuse_renumbering(load_recipe("h2o"), windows); }), "no error");
  const auto on_gpu = [](const Recipe& recipe) {
    return error_of([&] { refuse_cpu_only(recipe, PolicyCache(probe(), recipe, {}).policy().needs()); });
  };
  EXPECT_EQ(
      on_gpu(streaming),
      "recipe 'streaming_renumbered' turns keys again and again in decode (positions: renumbered), and roundings to 16 bits add up; it "
      "runs only with backend cpu");
  EXPECT_EQ(on_gpu(finch), "no error");
}

}  // namespace
}  // namespace kvlab
