#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <set>

#include "engine/model/config.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/model/sampling/sampling.h"
#include "tests/engine/cache_steps.h"
#include "tests/error_of.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

std::vector<std::int32_t> prompt(int index, std::size_t tokens) {
  std::vector<std::int32_t> ids = golden_logits().ints(std::to_string(index) + ".ids");
  ids.resize(std::min(tokens, ids.size()));
  return ids;
}

class GoldenPrompt : public testing::TestWithParam<int> {};

// Both sides compute in float32 and add in different orders; logits are of order 10. The largest difference seen is 6e-5.
constexpr float kLogitTolerance = 2e-4F;

TEST_P(GoldenPrompt, LogitsAndGreedyTokensAreTheReferences) {
  if (GetParam() == 2 && short_run()) GTEST_SKIP() << "2,866 tokens take too long with KVLAB_SHORT set";
  const SafetensorsFile golden = golden_logits();
  const std::string at = std::to_string(GetParam()) + ".";
  const std::vector<std::int32_t> ids = golden.ints(at + "ids");
  const std::int32_t vocab = probe().config().vocab_size;
  KvState kv(probe().config());
  std::vector<float> logits = forward_logits(probe(), ids, kv);
  const float worst = largest_difference(logits, golden.floats(at + "logits", {static_cast<std::int64_t>(ids.size()), vocab}));
  RecordProperty("max_difference", std::to_string(worst));
  EXPECT_LE(worst, kLogitTolerance);
  std::vector<std::int32_t> decoded;
  for (int step = 0; step < 64; ++step) {
    decoded.push_back(greedy_token(logits, vocab));
    logits = forward_logits(probe(), {&decoded.back(), 1}, kv);
  }
  EXPECT_EQ(decoded, golden.ints(at + "greedy"));
}

INSTANTIATE_TEST_SUITE_P(Prompts, GoldenPrompt, testing::Values(0, 1, 2));

// Pieces of one and of many tokens, around the attention's blocks of 32 tokens.
TEST(TransformerTest, ChunkedPrefillEqualsUnchunked) {
  const std::vector<std::int32_t> ids = prompt(1, 140);
  KvState whole(probe().config());
  const std::vector<float> expected = forward_logits(probe(), ids, whole);
  for (const std::size_t chunk : {31U, 33U, 128U}) {
    KvState kv(probe().config());
    const std::vector<float> logits = in_chunks(probe(), ids, chunk, kv);
    EXPECT_EQ(kv.tokens, 140);
    EXPECT_LE(largest_difference(logits, expected), kLogitTolerance) << "chunks of " << chunk;
    EXPECT_LE(largest_difference(kv.k[7], whole.k[7]), kLogitTolerance);
  }
}

TEST(TransformerTest, DecodingStepByStepEqualsPrefill) {
  const std::vector<std::int32_t> ids = prompt(0, 40);
  KvState whole(probe().config()), stepped(probe().config());
  const std::vector<float> expected = forward_logits(probe(), ids, whole);
  EXPECT_LE(largest_difference(in_chunks(probe(), ids, 1, stepped), expected), kLogitTolerance);
}

TEST(TransformerTest, ACutStateGoesOnAsIfTheRestHadNeverBeen) {
  const std::vector<std::int32_t> ids = prompt(0, 20);
  KvState kv(probe().config()), fresh(probe().config());
  forward_logits(probe(), std::span(ids).first(10), kv);
  forward_logits(probe(), std::span(ids).first(10), fresh);
  forward_logits(probe(), std::span(ids).last(5), kv);
  kv.truncate(10);
  EXPECT_EQ(kv.k[3], fresh.k[3]);
  EXPECT_EQ(forward_logits(probe(), std::span(ids).subspan(10, 3), kv), forward_logits(probe(), std::span(ids).subspan(10, 3), fresh));
  EXPECT_THROW(kv.truncate(14), InternalError);
}

TEST(TransformerTest, NoTokensDoNothing) {
  KvState kv(probe().config());
  EXPECT_TRUE(forward_logits(probe(), {}, kv).empty());
  EXPECT_EQ(kv.tokens, 0);
}

TEST(TransformerTest, IdsOutsideTheVocabularyAreRefused) {
  KvState kv(probe().config());
  for (const std::int32_t id : {-1, 264}) {
    const std::vector<std::int32_t> ids{256, id};
    EXPECT_EQ(error_of([&] { forward_logits(probe(), ids, kv); }),
              "token 1 has id " + std::to_string(id) + ", outside [0, 264) of model 'probe'");
    EXPECT_EQ(kv.tokens, 0);
  }
}

TEST(GreedyToken, TakesTheLowestOfEqualsInTheLastRow) { EXPECT_EQ(greedy_token(std::vector<float>{9, 0, 0, 1, 4, 4}, 3), 1); }

// Tiny random models of every kind that is supported, with logits by Hugging Face transformers (tests/parity/models/README.md).
const std::string kModels = KVLAB_SOURCE_DIR "/tests/parity/models/";

// Both sides compute in float32 and add in different orders; logits have a standard deviation of 3. The largest difference seen is 3e-5.
constexpr float kParityTolerance = 1e-4F;
// Reading any feature wrong moves the logits by more.
constexpr float kFeatureDifference = 1.0F;

struct GoldenModel {
  explicit GoldenModel(const std::string& name)
      : model(Transformer::load(kModels + name)), golden(SafetensorsFile::open(kModels + name + "/golden.safetensors")) {}
  [[nodiscard]] int prompts() const { return golden.has("1.ids") ? 2 : 1; }
  [[nodiscard]] std::vector<std::int32_t> ids(int i) const { return golden.ints(std::to_string(i) + ".ids"); }
  [[nodiscard]] std::vector<float> logits(int i) const { return golden.floats(std::to_string(i) + ".logits"); }
  // With dynamic scaling, passes of more tokens than the trained length turn keys by frequencies of their own.
  [[nodiscard]] bool goes_in_pieces(int i) const {
    const RopeScaling& s = model.config().rope_scaling;
    return s.kind != RopeScaling::Kind::kDynamic || static_cast<double>(ids(i).size() + greedy(i).size()) <= s.original_tokens;
  }
  [[nodiscard]] std::vector<std::int32_t> greedy(int i) const { return golden.ints(std::to_string(i) + ".greedy"); }

  Transformer model;
  SafetensorsFile golden;
};

std::vector<float> in_chunks(const Transformer& model, std::span<const std::int32_t> ids, std::size_t chunk) {
  KvState kv(model.config());
  return in_chunks(model, ids, chunk, kv);
}

// With a cache, or each token from a pass over everything before it.
std::vector<std::int32_t> decode_greedily(const Transformer& model, std::vector<std::int32_t> ids, std::size_t tokens, bool with_cache) {
  KvState kv(model.config());
  const std::size_t prompt = ids.size();
  std::size_t run = 0;
  while (ids.size() < prompt + tokens) {
    if (!with_cache) kv.truncate(0), run = 0;
    const std::vector<float> logits = forward_logits(model, std::span(ids).subspan(run), kv);
    run = ids.size();
    ids.push_back(greedy_token(logits, model.config().vocab_size));
  }
  return {ids.begin() + static_cast<std::ptrdiff_t>(prompt), ids.end()};
}

class ModelParity : public testing::TestWithParam<std::string> {};

TEST_P(ModelParity, LogitsAndGreedyTokensAreTheReferences) {
  const GoldenModel m(GetParam());
  for (int i = 0; i < m.prompts(); ++i) {
    const std::vector<std::int32_t> ids = m.ids(i);
    const float worst = largest_difference(in_chunks(m.model, ids, ids.size()), m.logits(i));
    RecordProperty("max_difference_" + std::to_string(i), std::to_string(worst));
    EXPECT_LE(worst, kParityTolerance) << "prompt " << i;
    EXPECT_EQ(decode_greedily(m.model, ids, m.greedy(i).size(), m.goes_in_pieces(i)), m.greedy(i)) << "prompt " << i;
    if (!m.goes_in_pieces(i)) continue;
    EXPECT_LE(largest_difference(in_chunks(m.model, ids, 7), m.logits(i)), kParityTolerance) << "prompt " << i << " in chunks";
  }
}

// The prompt's first half in two chunks, the rest token by token, over the paged cache with nothing cut.
std::vector<float> over_pages(const Transformer& model, const std::vector<std::int32_t>& ids) {
  PolicyCache cache(model, load_recipe("full"), {});
  EngineSequence s = sequence_of(0, ids, static_cast<std::int32_t>(ids.size() + 1) / 2);
  cache.start(s);
  std::vector<float> logits;
  while (s.seen_tokens < std::ssize(ids)) {
    const std::int32_t n = s.seen_tokens < s.prompt_tokens ? (s.prompt_tokens - s.seen_tokens + 1) / 2 : 1;
    const std::vector<float> part = run_step(cache, {{&s, n}}, model);
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

TEST_P(ModelParity, TheEnginesCacheGivesTheSame) {
  const GoldenModel m(GetParam());
  for (int i = 0; i < m.prompts(); ++i)
    if (m.goes_in_pieces(i)) {
      EXPECT_LE(largest_difference(over_pages(m.model, m.ids(i)), m.logits(i)), kParityTolerance) << "prompt " << i;
    }
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names{
      "llama_bias",        "llama_fp16",        "llama_gqa",       "llama_mha",     "llama_rope_dynamic",
      "llama_rope_linear", "llama_rope_llama3", "llama_rope_yarn", "llama_sharded", "llama_tied",
      "llama_v5",          "mistral",           "mistral_full",    "qwen2",         "qwen2_sliding",
      "qwen2_sliding_hub", "qwen2_yarn",        "qwen3",           "qwen3_tied"};
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, ModelParity, testing::ValuesIn(model_names()), [](const auto& one) { return one.param; });

TEST(ModelParityFolders, AreAllTested) {
  std::set<std::string> folders;
  for (const auto& entry : std::filesystem::directory_iterator(kModels))
    if (entry.is_directory()) folders.insert(entry.path().filename().string());
  EXPECT_EQ(folders, std::set<std::string>(model_names().begin(), model_names().end()));
}

// A feature, and how a reader that misses it would see the model.
struct Feature {
  std::string model, name;
  std::function<void(ModelConfig&, ModelWeights&)> miss;
};
void PrintTo(const Feature& f, std::ostream* out) { *out << f.model << " " << f.name; }

class ModelFeature : public testing::TestWithParam<Feature> {};

TEST_P(ModelFeature, ChangesTheLogits) {
  const GoldenModel m(GetParam().model);
  ModelConfig config = m.model.config();
  ModelWeights weights = m.model.weights();
  GetParam().miss(config, weights);
  const Transformer other(config, std::move(weights));
  const int last = m.prompts() - 1;
  const std::vector<std::int32_t> ids = m.ids(last);
  const float difference = largest_difference(in_chunks(other, ids, ids.size()), m.logits(last));
  RecordProperty("difference", std::to_string(difference));
  EXPECT_GT(difference, kFeatureDifference);
}

void each_layer(ModelWeights& w, const std::function<void(LayerWeights&)>& change) {
  for (LayerWeights& layer : w.layers) change(layer);
}
void no_scaling(ModelConfig& c, ModelWeights&) { c.rope_scaling = {}; }
void no_window(ModelConfig& c, ModelWeights&) { c.windows.clear(); }
void longer_window(ModelConfig& c, ModelWeights&) {
  for (std::int32_t& window : c.windows) window += window > 0 ? 1 : 0;
}
void windows_everywhere(ModelConfig& c, ModelWeights&) { c.windows.assign(c.windows.size(), 16); }
void no_qkv_bias(ModelConfig&, ModelWeights& w) {
  each_layer(w, [](LayerWeights& l) { l.q_bias = {}, l.k_bias = {}, l.v_bias = {}; });
}
void no_k_bias(ModelConfig&, ModelWeights& w) {
  each_layer(w, [](LayerWeights& l) { l.k_bias = {}; });
}
void no_o_bias(ModelConfig&, ModelWeights& w) {
  each_layer(w, [](LayerWeights& l) { l.o_bias = {}; });
}
void no_qk_norm(ModelConfig& c, ModelWeights&) { c.qk_norm = false; }
void no_attention_factor(ModelConfig& c, ModelWeights&) { c.rope_scaling.attention_factor = 1; }
void default_base(ModelConfig& c, ModelWeights&) { c.rope_base = 10'000; }
void default_ramp(ModelConfig& c, ModelWeights&) { c.rope_scaling.beta_fast = 32, c.rope_scaling.beta_slow = 1; }

INSTANTIATE_TEST_SUITE_P(
    Missed, ModelFeature,
    testing::Values(Feature{"llama_rope_linear", "scaling", no_scaling}, Feature{"llama_rope_dynamic", "scaling", no_scaling},
                    Feature{"llama_rope_llama3", "scaling", no_scaling}, Feature{"llama_rope_yarn", "scaling", no_scaling},
                    Feature{"llama_rope_yarn", "attention_factor", no_attention_factor}, Feature{"qwen2_yarn", "scaling", no_scaling},
                    Feature{"qwen2_yarn", "attention_factor", no_attention_factor}, Feature{"qwen2_yarn", "ramp", default_ramp},
                    Feature{"llama_v5", "scaling", no_scaling}, Feature{"llama_v5", "base", default_base},
                    Feature{"llama_bias", "qkv_bias", no_qkv_bias}, Feature{"llama_bias", "k_bias", no_k_bias},
                    Feature{"llama_bias", "o_bias", no_o_bias}, Feature{"qwen2", "qkv_bias", no_qkv_bias},
                    Feature{"mistral", "window", no_window}, Feature{"mistral", "one_more", longer_window},
                    Feature{"qwen2_sliding", "window", no_window}, Feature{"qwen2_sliding", "full_layers", windows_everywhere},
                    Feature{"qwen2_sliding_hub", "window", no_window}, Feature{"qwen2_sliding_hub", "full_layers", windows_everywhere},
                    Feature{"qwen3", "qk_norm", no_qk_norm}, Feature{"qwen3_tied", "o_bias", no_o_bias}),
    [](const auto& one) { return one.param.model + "_" + one.param.name; });

std::vector<std::int32_t> letters(std::int32_t n) {
  std::vector<std::int32_t> ids{256};
  for (std::int32_t i = 1; i < n; ++i) ids.push_back(97 + i * i % 23);
  return ids;
}

// A sequence after all of its prompt but the last token, which is run and drawn from.
struct PromptRun {
  explicit PromptRun(const EngineModel& model, std::int32_t n)
      : cache(model.make_cache(load_recipe("full"), {})), sequence(sequence_of(0, letters(n), n)) {
    cache->start(sequence);
  }
  std::unique_ptr<PolicyCache> cache;
  EngineSequence sequence;
  PieceBatch batch{{{&sequence, sequence.prompt_tokens}}};
};

TEST(EngineModel, LogitsOfChosenRowsAndOfAll) {
  const std::unique_ptr<EngineModel> model = make_engine_model("cpu", kProbeDir);
  KvState kv(probe().config());
  const std::vector<float> expected = forward_logits(probe(), letters(40), kv), all = model->logits(letters(40), 16);
  ASSERT_EQ(all.size(), expected.size());
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(all[i], expected[i], 2e-4);  // chunks sum in another order
  PromptRun run(*model, 40);
  const std::vector<float> some = model->step(*run.cache, run.batch.pieces, run.batch.tokens(), std::vector<std::int32_t>{39, 3});
  const auto v = static_cast<std::size_t>(probe().config().vocab_size);
  ASSERT_EQ(some.size(), 2 * v);
  for (std::size_t i = 0; i < v; ++i) {
    ASSERT_NEAR(some[i], expected[39 * v + i], 2e-4);
    ASSERT_NEAR(some[v + i], expected[3 * v + i], 2e-4);
  }
}

TEST(EngineModel, DrawsAreGreedyAtTemperatureZeroAndElseByTheirKey) {
  const std::unique_ptr<EngineModel> model = make_engine_model("cpu", kProbeDir);
  const auto draw = [&](float temperature, std::uint64_t step) {
    PromptRun run(*model, 12);
    const EngineModel::Draw one{11, temperature, sampling_key(1, 2, step)};
    return model->sample_step(*run.cache, run.batch.pieces, run.batch.tokens(), {&one, 1}).front();
  };
  const std::vector<float> logits = model->logits(letters(12));
  EXPECT_EQ(draw(0, 1), greedy_token(logits, probe().config().vocab_size));
  std::vector<std::int32_t> hot;
  for (std::uint64_t s = 0; s < 8; ++s) hot.push_back(draw(5, s));
  EXPECT_EQ(hot[3], draw(5, 3));
  EXPECT_GT(std::count_if(hot.begin(), hot.end(), [&](std::int32_t t) { return t != hot[0]; }), 0);
}

TEST(EngineModel, RefusesBackendsThatAreNotThere) {
  const auto message = [](std::string_view backend) { return error_of([&] { require_backend(backend); }); };
  EXPECT_EQ(message("cpu"), "no error");
  EXPECT_THAT(message("cudda"), testing::HasSubstr("unknown backend 'cudda'; did you mean 'cuda'?"));
  if (num_gpus() > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THAT(message("cuda"), testing::HasSubstr(cuda_backend() == CudaBackend::kNone ? "built without CUDA" : "no GPU: "));
}

TEST(EngineModel, RefusesRecipesThatCudaDoesNotRun) {
  const auto message = [](std::string_view backend, const std::string& name, std::int32_t budget = 0) {
    const Recipe recipe = load_recipe(name, budget);
    return error_of([&] { require_recipe(backend, recipe, PolicyCache(probe(), recipe, {}).policy().needs()); });
  };
  EXPECT_EQ(message("cuda", "full"), "no error");
  EXPECT_EQ(message("cuda", "retrieval_attention"), "no error");
  EXPECT_EQ(message("cpu", "kvzip", 64), "no error");
  EXPECT_EQ(message("cpu", "retrieval_attention_hnsw"), "no error");
  EXPECT_EQ(message("cuda", "kvzip", 64),
            "recipe 'kvzip' needs the extra pass 'reconstruct', which runs inside a step only with backend cpu");
  struct Refused {
    const char *name, *reason;
    std::int32_t budget = 0;
  };
  for (const auto& [name, reason, budget] : {Refused{"retrieval_attention_hnsw", "searches a graph (HNSW) in CPU memory"},
                                             {"keyformer", "draws its noise in double precision", 64},
                                             {"kvpress_knorm", "breaks ties as a library does on a CPU", 64}})
    EXPECT_EQ(message("cuda", name, budget), fmt::format("recipe '{}' {}; it runs only with backend cpu", name, reason));
}

// Two layers of 3 query heads on one KV head of 4 channels.
TEST(ModelWork, CountsEveryProductOfAForwardPass) {
  ModelConfig c;
  c.layers = 2, c.hidden_dim = 8, c.intermediate_dim = 10, c.q_heads = 3, c.kv_heads = 1, c.head_dim = 4, c.vocab_size = 7;
  const ModelWork work(c);
  EXPECT_EQ(work.weights, 2 * (8 * 12 + 2 * 8 * 4 + 12 * 8 + 3 * 8 * 10));  // q, k and v, o, gate and up and down
  EXPECT_EQ(std::tuple(work.head_weights, work.kv_width), std::tuple(56, 4));
  double flops = 0;
  for (int token = 5; token < 9; ++token) {
    flops += 2 * work.weights;
    for (int seen = 0; seen <= token; ++seen) flops += 2 * 3 * (2 * 4 + 2 * 4);  // layers x heads x (scores, sum of values)
  }
  EXPECT_EQ(work.forward_flops(5, 9), flops);
}

}  // namespace
}  // namespace kvlab
