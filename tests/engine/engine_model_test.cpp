#include "engine/backend/engine_model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/model/model_work.h"
#include "kernels/device/cuda/memory.h"
#include "kernels/model/sampling/sampling.h"
#include "tests/engine/probe.h"
#include "tests/engine/sequence_of.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

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
