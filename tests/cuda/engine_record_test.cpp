// Recording a model on a GPU gives the same tensors as on the CPU.

#include <filesystem>
#include <functional>
#include <set>

#include "base/safetensors.h"
#include "bench/decode/decode_step.h"
#include "calibrate/recipe_ops.h"
#include "calibrate/tables.h"
#include "engine/backend/engine_model.h"
#include "engine/device/plain_decoder.h"
#include "sim/replay/replay.h"
#include "tests/cuda/engine_fixture.h"
#include "tests/plain_softmax.h"

namespace kvlab {
namespace {

class PolicyRecordCuda : public CudaTest {
 protected:
  static RecordOptions everything() {
    RecordOptions o;
    o.chunk_tokens = 17, o.decode_tokens = 4;
    o.continuation = {7, 11};
    o.pre_rope = o.hidden = o.w_o = true;
    return o;
  }
  static std::unique_ptr<EngineModel> on_gpu(ElementType type) { return make_device_model(config_, tiny_weights(config_), {}, type); }
  static std::unique_ptr<EngineModel> on_cpu() { return make_cpu_model(Transformer(config_, tiny_weights(config_))); }
  static inline const ModelConfig config_ = tiny_config();
};

void expect_near(const std::vector<LayerTensors>& a, const std::vector<LayerTensors>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t l = 0; l < a.size(); ++l) {
    using Layer = LayerTensors;
    for (const auto part : {&Layer::q, &Layer::k, &Layer::v, &Layer::pre_q, &Layer::pre_k, &Layer::hidden})
      EXPECT_TRUE(all_near(a[l].*part, b[l].*part, tolerance, tolerance));
    EXPECT_EQ(a[l].w_o, b[l].w_o);
  }
}

TEST_F(PolicyRecordCuda, SameTensorsTokensAndKeptSetsAsOnTheCpu) {
  const auto gpu = on_gpu(ElementType::kF32), cpu = on_cpu();
  for (const auto& [name, budget] : {std::pair{"full", 0}, {"h2o", 20}, {"streaming", 20}, {"kivi2", 0}}) {
    const Recipe recipe = load_recipe(name, budget);
    const PolicyRecord a = record_with_policy(*gpu, tiny_ids(40, 3), everything(), recipe);
    const PolicyRecord b = record_with_policy(*cpu, tiny_ids(40, 3), everything(), recipe);
    EXPECT_EQ(a.trace.ids, b.trace.ids) << name;
    EXPECT_EQ(a.trace.chunk_ends, b.trace.chunk_ends) << name;
    EXPECT_EQ(a.kept, b.kept) << name;
    EXPECT_EQ(a.resident, b.resident) << name;
    EXPECT_EQ(a.trace.num_tokens, 46) << name;
    expect_near(a.trace.layers, b.trace.layers, 5e-4);
    check_attention_trace(a.trace, name);
  }
}

// In the type that it computes in on a GPU: a replay of what was recorded keeps what the engine kept.
TEST_F(PolicyRecordCuda, ReplayOfARecordInSixteenBitsDoesWhatTheEngineDid) {
  const auto gpu = on_gpu(ElementType::kBf16);
  for (const char* name : {"snapkv", "tova", "knorm"}) {
    const Recipe recipe = load_recipe(name, 40);
    const PolicyRecord engine = record_with_policy(*gpu, tiny_ids(70, 3), everything(), recipe, {.kv_bytes = 2});
    const ReplayResult replayed = replay(engine.trace, full_attention(engine.trace), recipe, {});
    EXPECT_EQ(engine.kept, replayed.kept) << name;
    EXPECT_EQ(engine.resident, replayed.resident) << name;
  }
}

TEST_F(PolicyRecordCuda, ExtraPasses) {
  RecordOptions options = everything();
  options.passes = {"lookahead", "reconstruct"};
  options.repeat = {{1, 2}, {3}, {4}, 16, 2};
  const AttentionTrace a = record(*on_gpu(ElementType::kF32), tiny_ids(40, 3), options), b = record(*on_cpu(), tiny_ids(40, 3), options);
  ASSERT_EQ(a.passes.size(), 2U);
  for (const auto& [name, pass] : b.passes) {
    EXPECT_EQ(a.passes.at(name).ids, pass.ids) << name;
    for (std::size_t l = 0; l < pass.layers.size(); ++l) {
      EXPECT_TRUE(all_near(a.passes.at(name).layers[l].q, pass.layers[l].q, 5e-4, 5e-4)) << name;
      EXPECT_TRUE(all_near(a.passes.at(name).layers[l].hidden, pass.layers[l].hidden, 5e-4, 5e-4)) << name;
    }
  }
  expect_near(a.layers, b.layers, 5e-4);
}

TEST_F(PolicyRecordCuda, RefusesPassesInsideAStep) {
  const auto gpu = on_gpu(ElementType::kBf16);
  EXPECT_EQ(error_of([&] { record_with_policy(*gpu, tiny_ids(40, 3), {}, load_recipe("kvzip", 20)); }),
            "recipe 'kvzip' needs the extra pass 'reconstruct', which runs inside a step only with backend cpu");
  RecordOptions gradient;
  gradient.passes = {"reconstruct_gradient"};
  EXPECT_EQ(error_of([&] { record(*gpu, tiny_ids(40, 3), gradient); }),
            "pass 'reconstruct_gradient' has a backward pass, which runs only with backend cpu");
}

// Recipes' operations, timed on a GPU, are those that are timed on the CPU.

TEST_F(CudaTest, TimedRecipesMakeTheCallsOfTheCpu) {
  const ModelConfig config = tiny_config();
  const std::atomic<bool> stop = false;
  const RecipeSteps steps{{40}, {2}, 2, 1};
  const auto cpu = make_cpu_model(Transformer(config, tiny_weights(config)));
  const auto gpu = make_device_model(config, tiny_weights(config), {}, ElementType::kF32);
  using Call = std::tuple<std::string, std::int64_t, std::int64_t>;
  const auto calls_on = [&](const EngineModel& model, const Recipe& recipe) {
    std::set<Call> calls;
    for (const RecipeCalls& c : time_recipe(model, recipe, steps, stop)) {
      EXPECT_GT(c.measured.seconds, 0) << c.op;
      calls.insert({c.op, c.measured.bytes, c.measured.flops});
    }
    return calls;
  };
  for (const auto& [name, budget] : {std::pair{"int8_per_token", 0}, {"h2o", 20}, {"tova", 20}}) {
    const Recipe recipe = load_recipe(name, budget);
    const std::set<Call> on_cpu = calls_on(*cpu, recipe);
    EXPECT_FALSE(on_cpu.empty()) << name;
    EXPECT_EQ(calls_on(*gpu, recipe), on_cpu) << name;
  }
}

// In the working directory where that is a checkout: the program may have been built elsewhere (tests/gpu/pack.sh).
const std::string kProbe = std::filesystem::exists("engine/probe/config.json") ? "engine/probe" : KVLAB_SOURCE_DIR "/engine/probe";

// Log of the softmax, in float64.
std::vector<double> log_softmax(std::span<const float> x) {
  std::vector<double> y(x.begin(), x.end()), p = y;
  const double log_sum = plain_softmax(p);
  for (double& v : y) v -= log_sum;
  return y;
}

struct Difference {
  double kl = 0;                                                 // mean over positions of KL(expected || got), nats
  double noise = 0;                                              // root mean square of the logits' differences
  std::int64_t positions = 0, flipped = 0, flipped_clearly = 0;  // other greedy tokens; those beyond the noise

  void add(std::span<const float> expected, std::span<const float> got, std::size_t vocabulary) {
    double squares = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) squares += std::pow(double{got[i]} - double{expected[i]}, 2);
    noise = std::max(noise, std::sqrt(squares / static_cast<double>(expected.size())));
    for (std::size_t at = 0; at < expected.size(); at += vocabulary) {
      const std::span<const float> e = expected.subspan(at, vocabulary), g = got.subspan(at, vocabulary);
      const std::vector<double> p = log_softmax(e), q = log_softmax(g);
      for (std::size_t i = 0; i < vocabulary; ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
      ++positions;
      const auto chosen = static_cast<std::size_t>(std::max_element(g.begin(), g.end()) - g.begin());
      const float best = *std::max_element(e.begin(), e.end());
      if (e[chosen] == best) continue;
      ++flipped;
      // The margin is a difference of two logits; six deviations of it are out of reach of rounding.
      flipped_clearly += double{best - e[chosen]} > 6 * std::sqrt(2.0) * noise ? 1 : 0;
    }
  }
};

// The probe against Hugging Face's logits in float32: on a GPU over all three prompts and the 64 tokens after each, by the emulator over
// the first of one, more than a page.
TEST_F(CudaTest, ProbeIsNearTheGoldenLogits) {
  const ModelConfig config = read_model_config(kProbe);
  const ModelWeights weights = load_weights(kProbe, config);
  const SafetensorsFile golden = SafetensorsFile::open(kProbe + "/logits_golden.safetensors");
  const auto v = static_cast<std::size_t>(config.vocab_size);
  const bool all = cuda_backend() == CudaBackend::kDevice;
  const auto model = make_device_model(config, weights, {}, ElementType::kBf16);
  const Transformer reference(config, weights);
  Difference prompts, decoded;
  for (int i = 0; i < (all ? 3 : 1); ++i) {
    const std::string name = std::to_string(i);
    std::vector<std::int32_t> ids = golden.ints(name + ".ids");
    std::vector<float> expected = golden.floats(name + ".logits", {static_cast<std::int64_t>(ids.size()), config.vocab_size});
    if (!all) ids.resize(24), expected.resize(ids.size() * v);
    const std::vector<float> got = model->logits(ids, 512);
    prompts.add(expected, got, v);
    if (!all) continue;
    const std::size_t prompt = ids.size();
    const std::vector<std::int32_t> greedy = golden.ints(name + ".greedy");
    ids.insert(ids.end(), greedy.begin(), greedy.end());
    KvState kv(config);
    const std::vector<float> cpu = forward_logits(reference, ids, kv), gpu = model->logits(ids, 512);
    decoded.add(std::span(cpu).subspan(prompt * v), std::span(gpu).subspan(prompt * v), v);
  }
  for (const Difference* d : {&prompts, &decoded}) {
    if (d->positions == 0) continue;
    const double kl = d->kl / static_cast<double>(d->positions);
    std::printf("%lld positions: mean KL %.3g nats, logits off by %.3g (rms), %lld other greedy tokens, %lld of them beyond the noise\n",
                static_cast<long long>(d->positions), kl, d->noise, static_cast<long long>(d->flipped),
                static_cast<long long>(d->flipped_clearly));
    EXPECT_LE(kl, 1e-3);
    EXPECT_GT(kl, 0);
    EXPECT_EQ(d->flipped_clearly, 0);
  }
}

// Every kernel of the step is there, and the bytes are those of the shape.
TEST_F(CudaTest, DecodeStepBenchMeasuresATinyModel) {
  const ModelConfig c = tiny_config();
  const DecodeStepTimes t = time_decode_step(c, ElementType::kBf16, 2, 40, 1, cuda());
  EXPECT_GT(t.device_seconds, 0);
  EXPECT_GT(t.plain_seconds, 0);
  EXPECT_GT(t.step_seconds, 0);
  std::int64_t launches = 0;
  for (const DecodeStepTimes::Kernel& k : t.kernels) launches += k.launches;
  EXPECT_EQ(t.kernels.size(), 12U);
  EXPECT_EQ(launches, 3 + (2 * c.layers + 1) + 9 * c.layers);
  const std::int64_t layer = 64 * (2 * 256 + 2 * 128 + 3 * 96 + 2), weights = 2 * layer + 64 * (80 + 2 + 1);
  EXPECT_EQ(t.bytes, 2 * (weights + 2 * 2 * 2 * 128 * 40));
}

TEST(DecodeStepShape, IsThatOfLlama8b) {
  const ModelConfig c = llama_8b();
  const std::int64_t layer = std::int64_t{c.hidden_dim} * (2 * 4096 + 2 * 1024 + 3 * 14336);
  EXPECT_NEAR(static_cast<double>(32 * layer + 2 * std::int64_t{c.vocab_size} * c.hidden_dim), 8.03e9, 0.01e9);
}

#if KVLAB_EMULATED

// `kvlab calibrate --gpu` times exactly the launches of an engine's step: every kernel with its grid, every matrix product with its sizes,
// as often as the cost model counts them.

using TableKind = CalibrationTable::Kind;
using Launches = std::multiset<std::string>;

Launches launches_of(const std::function<void()>& work) {
  std::vector<std::string> log;
  emulated::log_launches(&log);
  work();
  emulated::log_launches(nullptr);
  return {log.begin(), log.end()};
}

ModelSpec spec_of(const ModelConfig& c) {
  ModelSpec m;
  m.name = c.name;
  m.layers = c.layers, m.hidden = m.embedding_width = c.hidden_dim, m.intermediate = c.intermediate_dim;
  m.q_heads = c.q_heads, m.kv_heads = c.kv_heads, m.head_dim = c.head_dim;
  m.vocabulary = c.vocab_size, m.max_positions = c.max_tokens;
  m.qk_norm = c.qk_norm, m.qkv_bias = c.qkv_bias, m.o_bias = c.o_bias, m.mlp_bias = c.mlp_bias;
  return m;
}

// Qwen3's norms of heads, and biases everywhere.
ModelConfig normed_config() {
  ModelConfig c = tiny_config();
  c.qk_norm = c.qkv_bias = c.o_bias = c.mlp_bias = true;
  return c;
}

constexpr std::int32_t kBatch = 4, kContext = 21, kPrompt = 40;

class CalibratedLaunchesCuda : public CudaTest {
 protected:
  // Launches of all tables for a step of `tokens` tokens, with attention at a point of its table.
  static Launches timed(const ModelConfig& c, std::int64_t tokens, TableKind attention, const CalibrationPoint& at) {
    const ModelSpec m = spec_of(c);
    CalibrationLimits limits;
    limits.sequences = 32;  // more tokens are those of prompts
    const auto gpu = make_gpu_device(0);
    Launches all;
    for (const CalibrationTable& t : calibration_tables(m, DeviceKind::kGpu, limits)) {
      if (t.kind != TableKind::kOp && t.kind != attention) continue;
      if (t.kind == TableKind::kOp && t.axis == ProfileOp::Axis::kSequences && attention == TableKind::kPrefill) continue;
      const KernelFamily* family = find_family(DeviceKind::kGpu, t.family, t.format);
      if (family == nullptr) {
        ADD_FAILURE() << t.name << " has no kernel";
        continue;
      }
      const auto prepared = family->prepare(*gpu, shape_at(t, m, t.kind == attention ? at : CalibrationPoint{tokens, 0}), Rotation{});
      const Launches once = launches_of([&] { prepared->run(0); });
      const std::int64_t times = t.per_layer == 0 ? 1 : t.per_layer * m.layers;
      for (std::int64_t i = 0; i < times; ++i) all.insert(once.begin(), once.end());
    }
    return all;
  }
};

TEST_F(CalibratedLaunchesCuda, AreThoseOfADecodeStep) {
  for (const ModelConfig& c : {tiny_config(), normed_config()}) {
    SCOPED_TRACE(c.qk_norm ? "with norms and biases" : "plain");
    DeviceTransformer model(cuda(), c, tiny_weights(c), ElementType::kBf16);
    PolicyCache cache(make_cache_model(model), load_recipe("full"), {});
    std::vector<EngineSequence> sequences(kBatch);
    std::vector<PlainDecoder::Token> tokens;
    for (EngineSequence& s : sequences) {
      s.index = static_cast<std::int32_t>(tokens.size()), s.prompt_tokens = s.seen_tokens = kContext - 1;
      cache.start(s);
      s.seen_tokens = kContext - 1;
      for (KvStore::Sequence& layer : s.rows) std::fill(layer.len.begin(), layer.len.end(), kContext - 1);
      tokens.push_back({&s, 1, 0, 0});
    }
    PlainDecoder decoder(model, cache, false);
    decoder.step(tokens);
    EXPECT_EQ(timed(c, kBatch, TableKind::kDecode, {kBatch, kContext}), launches_of([&] { decoder.repeat(); }));
    for (EngineSequence& s : sequences) cache.release(s);
  }
}

TEST_F(CalibratedLaunchesCuda, AreThoseOfAPrompt) {
  for (const ModelConfig& c : {tiny_config(), normed_config()}) {
    SCOPED_TRACE(c.qk_norm ? "with norms and biases" : "plain");
    DeviceTransformer model(cuda(), c, tiny_weights(c), ElementType::kBf16);
    PolicyCache cache(make_cache_model(model), load_recipe("full"), {});
    EngineSequence s = sequence_of(0, tiny_ids(kPrompt, 3), kPrompt);
    cache.start(s);
    const PieceBatch batch({{&s, kPrompt}});
    cache.begin_step(batch.pieces);
    const Launches got = launches_of([&] { model.forward(batch.tokens(), cache); });
    cache.end_step({});
    EXPECT_EQ(timed(c, kPrompt, TableKind::kPrefill, {kPrompt, 0}), got);
    cache.release(s);
  }
}

#endif

}  // namespace
}  // namespace kvlab
