// The engine, replay and (through replay: tests/kv/recipe_properties_test.cpp) the cost host do the same things for every recipe.

#include <cstdio>
#include <numeric>

#include "engine/model/record.h"
#include "sim/replay/replay.h"
#include "tests/engine/cache_steps.h"
#include "tests/error_of.h"
#include "tests/held_bounds.h"
#include "tests/plain_softmax.h"
#include "traces/bytes.h"

namespace kvlab::test {
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

// A replay of what the engine saw does what it did.
void expect_replayed(const PolicyRecord& engine, const Recipe& recipe) {
  Ops ops(Ops::Backend::kCpu);
  const ReplayResult replayed = replay(engine.trace, full_attention(engine.trace), recipe, {.ops = &ops});
  EXPECT_EQ(std::tuple(engine.kept, engine.resident), std::tuple(replayed.kept, replayed.resident));
  ASSERT_EQ(engine.log.size(), ops.log().size());
  for (std::size_t i = 0; i < engine.log.size(); ++i) ASSERT_EQ(engine.log[i], ops.log()[i]) << engine.log[i].op << " at " << i;
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
    SCOPED_TRACE("chunks of " + std::to_string(chunk));
    expect_replayed(engine, recipe);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, Consistency, testing::ValuesIn(recipes_in({"engine", "replay"})),
                         [](const auto& info) { return info.param; });

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

// Prompts in the engine under prefill selectors: what later layers and decode steps see of them.

constexpr std::int32_t kTokens = 300;

AttentionTrace recorded(const std::string& recipe, std::int32_t chunk) {
  RecordOptions options;
  options.chunk_tokens = chunk;
  options.decode_tokens = 2;
  return record_with_policy(probe_engine(), text_ids(kTokens), options, recipe_of(recipe), {}, kTokens - 20).trace;
}

// The largest difference of the last layer's keys, relative to the largest key.
double apart(const AttentionTrace& a, const AttentionTrace& b) {
  const std::vector<float>&x = a.layers.back().k, &y = b.layers.back().k;
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    most = std::max<double>(most, std::abs(x[i] - y[i]));
    largest = std::max<double>(largest, std::abs(x[i]));
  }
  return most / largest;
}

TEST(PrefillSelector, AllBlocksAreTheModelsOwnAttention) {
  for (const std::int32_t chunk : {0, 77}) {
    const AttentionTrace full = recorded("{recipe: full}", chunk);
    const AttentionTrace all = recorded("{recipe: full, prefill_selector: {block_topk: {top_blocks: 64, block_tokens: 32}}}", chunk);
    EXPECT_EQ(full.ids, all.ids) << chunk;
    EXPECT_LE(apart(full, all), 1e-4) << chunk;  // eight layers of sums in another order
  }
}

TEST(PrefillSelector, FewBlocksChangeLaterLayers) {
  const AttentionTrace full = recorded("{recipe: full}", 0);
  const AttentionTrace few =
      recorded("{recipe: full, prefill_selector: {a_shape: {sink_tokens: 16, recent_tokens: 16, block_tokens: 16}}}", 0);
  const std::vector<float>&x = few.layers.front().k, &y = full.layers.front().k;
  const std::ptrdiff_t prompt = std::ptrdiff_t{kTokens} * full.kv_heads * full.head_dim;  // tokens emitted later may differ
  EXPECT_TRUE(std::equal(x.begin(), x.begin() + prompt, y.begin())) << "before any attention";
  EXPECT_GT(apart(full, few), 0.01);
}

// The engine's logits with evictions in place are those with compaction, up to the order of sums.

struct Decoded {
  std::vector<std::vector<float>> logits;  // [steps]
  std::vector<std::vector<std::int32_t>> held;
};

Decoded decode_with(const std::string& recipe) {
  constexpr std::int32_t kPrompt = 90, kTokens = 150;
  CacheRun run(recipe_of(recipe), sequence_of(0, some_ids(kTokens, 3), kPrompt));
  Decoded all;
  for (std::int32_t end = 45; end <= kTokens; end = end < kPrompt ? kPrompt : end + 1)
    all.logits.push_back(run.run(end - run.s.seen_tokens));
  all.held = run.cache.positions(run.s);
  run.cache.release(run.s);
  return all;
}

TEST(EngineInPlace, LogitsAreThoseOfCompaction) {
  for (const auto& [recipe, disposal] : {std::pair{"streaming, budget_tokens: 40", "drop"},
                                         {"streaming, budget_tokens: 100", "drop"},
                                         {"h2o, budget_tokens: 40", "drop"},
                                         {"tova, budget_tokens: 40", "drop"},
                                         {"d2o, budget_tokens: 40", "merge_nearest"},
                                         {"h2o_offload, budget_tokens: 40", "offload"}}) {
    const std::string own = std::string("{recipe: ") + recipe;
    const Decoded in_place = decode_with(own + "}");
    const Decoded compacted =
        decode_with(own + ", disposal: {" + disposal + ": {in_place: false" +
                    (disposal == std::string("merge_nearest") ? ", threshold: running_mean, new_share_frac: 0.5" : "") + "}}}");
    EXPECT_EQ(in_place.held, compacted.held) << recipe;
    ASSERT_EQ(in_place.logits.size(), compacted.logits.size());
    for (std::size_t t = 0; t < in_place.logits.size(); ++t)
      for (std::size_t i = 0; i < in_place.logits[t].size(); ++i)
        ASSERT_NEAR(in_place.logits[t][i], compacted.logits[t][i], 1e-3 * (1 + std::abs(compacted.logits[t][i])))
            << recipe << " step " << t;
  }
}

// Recipes with `positions: renumbered` in a running model.

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
  std::vector<double> p(logits.begin(), logits.end());
  return (plain_softmax(p) - double{logits[static_cast<std::size_t>(token)]}) / std::log(2.0);
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
  expect_replayed(engine, recipe);
}

INSTANTIATE_TEST_SUITE_P(Recipes, RenumberedInEngine, testing::ValuesIn(recipes_in({"engine", "replay"})),
                         [](const auto& info) { return info.param; });

TEST(Renumbered, IsRefusedWhereTheModelHasWindowsOrKeysOf16BitsAreTurnedInDecode) {
  ModelConfig windows = small_config(2);
  windows.windows = {0, 128};
  const Recipe streaming = load_recipe("streaming_renumbered"), finch = load_recipe("finch");
  EXPECT_EQ(error_of([&] { refuse_renumbering(streaming, windows); }),
            "recipe 'streaming_renumbered' cannot run: keys cannot be renumbered, because layer 1 of the model attends to a window of its "
            "own; write 'positions: original'");
  EXPECT_EQ(error_of([&] { refuse_renumbering(streaming, small_config(2)); }), "no error");
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

// Compares the memory that the engine holds under every recipe with the bound that the recipe declares.

constexpr std::int32_t kBoundDecoded = 3, kLongBound = 4000;

const Transformer& tiny_model() {
  static const std::unique_ptr<EngineModel> model = [] {
    ModelConfig c = small_config(4);
    c.q_heads = 2, c.kv_heads = 1, c.vocab_size = 256, c.max_tokens = 2 * kLongBound;
    return make_random_model("cpu", c);
  }();
  return *model->transformer();
}

std::vector<std::int32_t> bound_ids(std::int32_t n) {
  std::vector<std::int32_t> ids;
  for (std::int32_t i = 0; i < n; ++i) ids.push_back((i * i * 7 + i * 13 + i / 9) % 256);
  return ids;
}

// All that recipes observe of a prompt; `pass`: an extra pass, "" for none.
const PromptTensors& bound_prompt(std::int32_t tokens, const std::string& pass) {
  static std::map<std::pair<std::int32_t, std::string>, PromptTensors> made;
  const auto [at, is_new] = made.try_emplace({tokens, pass});
  if (is_new) {
    Needs all;
    all.step_queries = all.pre_rope_queries = all.pre_rope_keys = all.hidden = true;
    std::vector<std::string> passes;
    if (!pass.empty()) passes.push_back(pass);
    RecordOptions options;
    options.hidden = true;
    at->second = run_prompt(tiny_model(), bound_ids(tokens), all, passes, options);
  }
  return at->second;
}

std::int64_t tokens_in_rows(const EngineSequence& s) {
  std::int64_t held = 0;
  for (const KvStore::Sequence& layer : s.rows) held = std::accumulate(layer.len.begin(), layer.len.end(), held);
  return held;
}

// False: the recipe refuses the case before anything runs.
bool expect_held_bounds(const Recipe& recipe, std::int32_t prompt) {
  std::unique_ptr<PolicyCache> cache;
  EngineSequence s = sequence_of(0, bound_ids(prompt + kBoundDecoded), prompt);
  try {
    cache = std::make_unique<PolicyCache>(tiny_model(), recipe, PolicyCache::Options{});
    s.question_begin = cache->policy().needs().assumed_question(prompt);
    cache->start(s);
  } catch (const InputError&) {
    return false;
  }
  for (std::int32_t decoded = 0; decoded <= kBoundDecoded; ++decoded) {
    const SeqStep step{0, s.seen_tokens, decoded == 0 ? prompt : 1, prompt, s.question_begin};
    if (decoded == 0 && recipe.computes_whole_prompts())
      cache->adopt(s, bound_prompt(prompt, cache->policy().needs().pass));
    else
      run_step(*cache, {{&s, step.new_tokens}}, tiny_model());
    EXPECT_LE(tokens_in_rows(s), cache->policy().most_tokens(step)) << "after " << s.seen_tokens << " tokens";
  }
  cache->release(s);
  return true;
}

class EngineHeldBounds : public testing::TestWithParam<std::string> {};

// Prompts of 4,000 tokens take a second where attention is observed: every fourth recipe has one of them, with one of its budgets.
TEST_P(EngineHeldBounds, RowsHoldNoMoreThanTheRecipeSays) {
  if (left_out_of_bounds(GetParam())) GTEST_SKIP() << kLeftOut;
  const std::size_t index = recipe_index(GetParam());
  const auto cases = bound_cases(GetParam());
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (const std::int32_t prompt : kBoundPrompts) {
      const bool is_picked = index % 4 == 0 && index / 4 % cases.size() == i;
      if (prompt == kLongBound && !full_run() && !is_picked) continue;
      SCOPED_TRACE(GetParam() + " " + cases[i].first + ", prompt of " + std::to_string(prompt));
      if (!expect_held_bounds(cases[i].second, prompt) || HasFailure()) break;
    }
}

INSTANTIATE_TEST_SUITE_P(Recipes, EngineHeldBounds, testing::ValuesIn(recipes_in({"engine"})), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace kvlab::test
