// `kvlab calibrate --gpu` times exactly the launches of an engine's step: every kernel with its grid, every matrix product with its sizes,
// as often as the cost model counts them.
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "calibrate/tables.h"
#include "engine/device/plain_decoder.h"
#include "tests/cuda/engine_fixture.h"
#if KVLAB_EMULATED
#include "kernels/device/emulated/device_memory.h"

namespace kvlab {
namespace {

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

}  // namespace
}  // namespace kvlab
#endif
