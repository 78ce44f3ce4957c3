// Recording a model on a GPU gives the same tensors as on the CPU.
#include "engine/backend/engine_model.h"
#include "sim/replay/replay.h"
#include "tests/cuda/engine_fixture.h"

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

}  // namespace
}  // namespace kvlab
