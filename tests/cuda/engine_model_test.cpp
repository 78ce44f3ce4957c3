#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/safetensors.h"
#include "kernels/model/sampling/sampling.h"
#include "tests/cuda/engine_fixture.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

class EngineModelCuda : public CudaTest {
 protected:
  // Logits of every token of two sequences: prompts in chunks, both in one step, decoding together, several known tokens at once.
  std::vector<float> run_mixed(const EngineModel& model, const std::string& recipe) {
    const std::unique_ptr<PolicyCache> cache = model.make_cache(load_recipe(recipe), {});
    EngineSequence a = sequence_of(0, tiny_ids(50, 3), 40), b = sequence_of(1, tiny_ids(36, 5), 30);
    cache->start(a);
    cache->start(b);
    std::vector<float> all;
    const auto step = [&](std::vector<StepPiece> pieces) {
      const PieceBatch batch(std::move(pieces));
      const std::vector<float> logits = model.step(*cache, batch.pieces, batch.tokens(), batch.rows);
      all.insert(all.end(), logits.begin(), logits.end());
    };
    step({{&a, 17}});
    step({{&a, 13}, {&b, 20}});
    step({{&b, 10}, {&a, 10}});
    step({{&a, 1}, {&b, 1}});
    step({{&a, 1}, {&b, 1}});
    step({{&b, 3}, {&a, 2}});
    cache->release(a);
    cache->release(b);
    EXPECT_EQ(cache->pages().used_pages(), 0);
    return all;
  }
  // The same tokens by the CPU's transformer, without a cache of pages.
  static std::vector<float> expected_mixed(const ModelConfig& config) {
    const Transformer model(config, tiny_weights(config));
    const auto v = static_cast<std::size_t>(tiny_config().vocab_size);
    KvState kv_a(config), kv_b(config);
    const std::vector<float> a = forward_logits(model, tiny_ids(50, 3), kv_a), b = forward_logits(model, tiny_ids(36, 5), kv_b);
    std::vector<float> all;
    const auto add = [&](const std::vector<float>& from, std::size_t begin, std::size_t end) {
      all.insert(all.end(), from.begin() + static_cast<std::ptrdiff_t>(begin * v), from.begin() + static_cast<std::ptrdiff_t>(end * v));
    };
    add(a, 0, 17), add(a, 17, 30), add(b, 0, 20), add(b, 20, 30), add(a, 30, 40);
    add(a, 40, 41), add(b, 30, 31), add(a, 41, 42), add(b, 31, 32), add(b, 32, 35), add(a, 42, 44);
    return all;
  }
};

// In float32 the sums are taken in another order, over at most 256 numbers in each of 14 products.
TEST_F(EngineModelCuda, InFloat32ItIsTheTransformer) {
  const auto model = tiny_model(ElementType::kF32);
  EXPECT_TRUE(all_near(run_mixed(*model, "full"), expected_mixed(tiny_config()), 2e-4, 2e-4));
}

// Biases, norms of heads, scaled RoPE and a layer with a window shorter than the prompts.
TEST_F(EngineModelCuda, HasWhatOtherFamiliesHave) {
  const ModelConfig c = rich_config();
  const std::vector<float> expected = expected_mixed(c);
  const auto exact = make_device_model(c, tiny_weights(c), {}, ElementType::kF32);
  EXPECT_TRUE(all_near(run_mixed(*exact, "full"), expected, 2e-4, 2e-4));
  const auto bf = make_device_model(c, tiny_weights(c), {}, ElementType::kBf16);
  EXPECT_LE(relative_error(run_mixed(*bf, "full"), expected), 0.03);
  EXPECT_GT(relative_error(expected_mixed(tiny_config()), expected), 0.1);
}

// bf16 keeps 8 bits: each of some 20 roundings of activations on the way to a logit is off by 2^-9 at most, which adds up to 1 % or so;
// f16 has three bits more.
TEST_F(EngineModelCuda, InSixteenBitsItIsNear) {
  const std::vector<float> expected = expected_mixed(tiny_config());
  const auto bf = tiny_model(ElementType::kBf16);
  const double bf16_error = relative_error(run_mixed(*bf, "full"), expected);
  EXPECT_LE(bf16_error, 0.03);
  EXPECT_GE(bf16_error, 1e-4);  // else it was not bf16
  const auto half = tiny_model(ElementType::kF16);
  EXPECT_LE(relative_error(run_mixed(*half, "full"), expected), 0.004);
  RecordProperty("bf16_error", std::to_string(bf16_error));
}

TEST_F(EngineModelCuda, DrawsTokensOnTheDevice) {
  const auto model = tiny_model(ElementType::kBf16);
  const auto v = static_cast<std::size_t>(tiny_config().vocab_size);
  const std::vector<float> logits = model->logits(tiny_ids(20, 3));
  ASSERT_EQ(logits.size(), 20 * v);
  const std::unique_ptr<PolicyCache> cache = model->make_cache(load_recipe("full"), {});
  EngineSequence s = sequence_of(0, tiny_ids(20, 3), 20);
  cache->start(s);
  const PieceBatch batch({{&s, 20}});
  const std::vector<EngineModel::Draw> draws{{19, 0, 0}, {4, 0, 0}, {7, 3, sampling_key(1, 2, 3)}};
  const std::vector<std::int32_t> tokens = model->sample_step(*cache, batch.pieces, batch.tokens(), draws);
  EXPECT_EQ(tokens[0], greedy_token(logits, tiny_config().vocab_size));
  EXPECT_EQ(tokens[1], greedy_token(std::span(logits).first(5 * v), tiny_config().vocab_size));
  std::int32_t drawn = -1;
  run_cpu(Sampling{logits.data() + 7 * v, &draws[2].temperature, &draws[2].key, &drawn, 1, tiny_config().vocab_size});
  EXPECT_EQ(tokens[2], drawn);
}

// Two sequences of different lengths, one of which ends and makes room for a third; pages are taken on the way. The same tokens whether
// steps are launched one by one or as recorded graphs, or go through the policy's cache, which bf16 may turn at a near tie alone.
TEST_F(EngineModelCuda, PlainStepsAreStepsOfTheCache) {
  const auto decode = [&](bool plain, bool graphs) {
    const auto model = make_device_model(tiny_config(), tiny_weights(tiny_config()), {graphs}, ElementType::kBf16);
    const std::unique_ptr<PolicyCache> cache = model->make_cache(load_recipe("full"), {});
    std::vector<EngineSequence> s;
    for (const std::int32_t n : {29, 12, 33}) s.push_back(sequence_of(static_cast<std::int32_t>(s.size()), tiny_ids(n, 3 + n), n));
    std::vector<std::int32_t> all;
    const auto step = [&](std::vector<EngineSequence*> batch) {
      std::vector<StepPiece> pieces;
      std::vector<EngineModel::Draw> draws;
      for (EngineSequence* x : batch) {
        const auto known = static_cast<std::int32_t>(x->ids.size());
        pieces.push_back({x, known - x->seen_tokens});
        const std::int32_t row = (draws.empty() ? -1 : draws.back().row) + pieces.back().new_tokens;
        draws.push_back(
            {row, x->index == 1 ? 0.8F : 0, sampling_key(5, static_cast<std::uint64_t>(x->index), static_cast<std::uint64_t>(known))});
      }
      if (!plain && pieces.size() == 2) std::swap(draws[0], draws[1]);  // not the order of the plain case
      const PieceBatch tokens(pieces);
      std::vector<std::int32_t> drawn = model->sample_step(*cache, pieces, tokens.tokens(), draws);
      if (!plain && pieces.size() == 2) std::swap(drawn[0], drawn[1]);
      for (std::size_t i = 0; i < batch.size(); ++i) batch[i]->ids.push_back(drawn[i]), all.push_back(drawn[i]);
    };
    for (EngineSequence& x : s) cache->start(x);
    step({&s[0], &s[1]});
    for (int i = 0; i < 6; ++i) step({&s[0], &s[1]});
    cache->release(s[0]);
    step({&s[2]});
    for (int i = 0; i < 3; ++i) step({&s[2], &s[1]});
    cache->release(s[1]);
    cache->release(s[2]);
    EXPECT_EQ(cache->pages().used_pages(), 0);
    return all;
  };
  const std::vector<std::int32_t> through_cache = decode(false, false), plain = decode(true, false);
  EXPECT_EQ(plain, through_cache);
  EXPECT_EQ(decode(true, true), plain);
}

TEST_F(EngineModelCuda, AdoptedPromptIsAPromptThatRan) {
  const auto model = tiny_model(ElementType::kBf16);
  for (const char* name : {"snapkv", "adakv", "expected_attention", "cake"}) {
    const Recipe recipe = load_recipe(name, 40);
    const std::unique_ptr<PolicyCache> ran = model->make_cache(recipe, {}), adopted = model->make_cache(recipe, {});
    EngineSequence a = sequence_of(0, tiny_ids(70, 3), 64), b = sequence_of(0, tiny_ids(70, 3), 64);
    ran->start(a);
    adopted->start(b);
    const PieceBatch prompt({{&a, 64}});
    model->step(*ran, prompt.pieces, prompt.tokens(), prompt.rows);
    adopted->adopt(b, model->run_prompt(std::span(a.ids).first(64), ran->policy().needs(), {}, {}));
    for (std::size_t l = 0; l < a.rows.size(); ++l) EXPECT_EQ(a.rows[l].len, b.rows[l].len) << name << " layer " << l;
    const PieceBatch next_a({{&a, 1}}), next_b({{&b, 1}});
    EXPECT_EQ(model->step(*ran, next_a.pieces, next_a.tokens(), next_a.rows),
              model->step(*adopted, next_b.pieces, next_b.tokens(), next_b.rows))
        << name;
    EXPECT_EQ(ran->resident(a), adopted->resident(b)) << name;
  }
}

TEST_F(EngineModelCuda, RefusesWhatItCannotRun) {
  const auto model = tiny_model(ElementType::kBf16);
  const std::unique_ptr<PolicyCache> cache = model->make_cache(load_recipe("kvzip", 16), {});
  EngineSequence s = sequence_of(0, tiny_ids(20, 3), 20);
  cache->start(s);
  const PieceBatch prompt({{&s, 20}});
  EXPECT_THAT(error_of([&] { model->step(*cache, prompt.pieces, prompt.tokens(), prompt.rows); }),
              testing::HasSubstr("needs the extra pass 'reconstruct'"));
  EXPECT_THAT(error_of([&] {
                static_cast<void>(model->logits(std::vector<std::int32_t>{1, 80}));
              }),
              testing::HasSubstr("token 1 has id 80, outside [0, 80) of model 'tiny'"));
}

#if KVLAB_EMULATED
// The message names the requested size and one that would fit, and nothing stays allocated.
TEST_F(EngineModelCuda, SaysWhatFitsIntoMemory) {
  const std::int64_t before = emulated::used_memory();
  const auto make = [] { return tiny_model(ElementType::kBf16); };
  EXPECT_THAT(error_with_room(100'000, [&] { make(); }), testing::HasSubstr("model 'tiny' does not fit into the memory of emulated"));
  EXPECT_EQ(emulated::used_memory(), before);
  {
    const auto model = make();
    EXPECT_EQ(model->logits(tiny_ids(4, 1)).size(), 4 * 80U);  // scratch memory is there now
    // Room for the pages of 2,000 tokens, which come first, and not for the step.
    EXPECT_THAT(error_with_room(2'700'000, [&] { static_cast<void>(model->logits(tiny_ids(2000, 1))); }),
                testing::AllOf(testing::HasSubstr("a step of 2000 tokens needs"), testing::HasSubstr("steps of at most about")));
    PolicyCache::Options options;
    options.reserved_pages = 4096;
    EXPECT_THAT(error_with_room(1'000'000, [&] { static_cast<void>(model->make_cache(load_recipe("full"), options)); }),
                testing::HasSubstr("the KV cache does not fit into the GPU's memory: 4096 pages of 16 tokens"));
    EXPECT_EQ(model->logits(tiny_ids(4, 1)).size(), 4 * 80U);  // continues
  }
  EXPECT_EQ(emulated::used_memory(), before);
}

// Whichever allocation is the first without room, the message is one for the user, and the model continues.
TEST_F(EngineModelCuda, EveryStepWithoutRoomSaysSo) {
  const std::int64_t before = emulated::used_memory();
  int refused = 0;
  for (std::int64_t room = 0;; room += 40'000) {
    const auto model = tiny_model(ElementType::kBf16);
    EXPECT_EQ(model->logits(tiny_ids(4, 1)).size(), 4 * 80U);  // scratch memory is there now
    const std::string message = error_with_room(room, [&] { EXPECT_EQ(model->logits(tiny_ids(300, 1)).size(), 300 * 80U); });
    if (message == "no error") break;
    ++refused;
    EXPECT_THAT(message,
                testing::AnyOf(testing::HasSubstr("steps of at most about"), testing::HasSubstr("does not fit into the GPU's memory")));
    EXPECT_EQ(model->logits(tiny_ids(4, 1)).size(), 4 * 80U);  // continues
  }
  EXPECT_GE(refused, 4);
  EXPECT_EQ(emulated::used_memory(), before);
}
#endif

// Passes and logits as large as was reserved stay where the first ones were: graphs that were recorded know the place.
TEST_F(EngineModelCuda, ReservedPassesDoNotMove) {
  DeviceTransformer model(cuda(), tiny_config(), tiny_weights(tiny_config()), ElementType::kBf16);
  model.reserve(40, 8);
  model.make_rotations(64);
  PolicyCache cache(make_cache_model(model), load_recipe("full"), {});
  EngineSequence s = sequence_of(0, tiny_ids(60, 3), 60);
  cache.start(s);
  std::vector<const void*> places;
  for (const std::int32_t n : {4, 40}) {
    const PieceBatch batch({{&s, n}});
    cache.begin_step(batch.pieces);
    model.forward(batch.tokens(), cache);
    cache.end_step({});
    model.logits(std::vector<std::int32_t>(static_cast<std::size_t>(n / 5), 0));
    if (places.empty()) places = model.places();
    EXPECT_EQ(model.places(), places);
  }
  cache.release(s);
}

// They are made where the model has them, and only there.
TEST_F(EngineModelCuda, RandomWeightsHaveTheNormsOfQueriesAndKeys) {
  ModelConfig config = tiny_config();
  EXPECT_EQ(random_weights(config, ElementType::kBf16, cuda()).layers[0].q_norm.bytes(), 0);
  config.qk_norm = true;
  for (const DeviceLayerWeights& layer : random_weights(config, ElementType::kBf16, cuda()).layers) {
    EXPECT_EQ(layer.q_norm.bytes(), 2 * config.head_dim);
    EXPECT_EQ(layer.k_norm.bytes(), 2 * config.head_dim);
  }
}

// A model on the GPU out of a folder: part by part, and refused before anything is converted.

class EngineWeightsCuda : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    dir_ = testing::TempDir() + "kvlab_" + std::to_string(::getpid()) + "_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  [[nodiscard]] std::string file() const { return dir_ + "/model.safetensors"; }
  // As tiny_weights() are, in the order in which they are made.
  void write(const ModelConfig& c) {
    const ModelWeights w = tiny_weights(c);
    std::vector<TensorToWrite> tensors;
    std::vector<const float*> begins;
    const ModelWeights copy = make_weights(c, [&](const std::string& name, const std::vector<std::int64_t>& shape, std::span<float> to) {
      tensors.push_back({name, "F32", shape, nullptr});
      begins.push_back(to.data());
    });
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].data = w.memory->data() + (begins[i] - copy.memory->data());
    write_safetensors(file(), tensors, {});
  }
  // In place of the tensor's last number.
  void write_nan(const std::string& tensor) {
    const SafetensorsFile read = SafetensorsFile::open(file());
    std::uint64_t data_bytes = 0;
    for (const auto& [name, info] : read.tensors()) data_bytes = std::max(data_bytes, info.end);
    std::fstream stream(file(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(std::filesystem::file_size(file()) - data_bytes + read.info(tensor).end - 4));
    stream.write("\0\0\xC0\x7F", 4);
  }

  std::string dir_;
};

TEST_F(EngineWeightsCuda, AFoldersModelIsThatOfWeightsInMemory) {
  for (const bool tied : {false, true}) {
    ModelConfig c = tied ? tiny_config() : rich_config();
    c.tied_head = tied;
    write(c);
    const WeightReader reader(dir_, c);
    EXPECT_EQ(reader.num_weights(), WeightParts(tiny_weights(c)).num_weights);
    const auto folder = make_device_model(c, reader, {}, ElementType::kBf16),
               memory = make_device_model(c, tiny_weights(c), {}, ElementType::kBf16);
    EXPECT_EQ(folder->logits(tiny_ids(20, 3)), memory->logits(tiny_ids(20, 3)));
  }
}

TEST_F(EngineWeightsCuda, OnePartAtATimeIsInMemory) {
  const ModelConfig c = rich_config();
  write(c);
  const WeightReader reader(dir_, c);
  WeightParts parts(reader);
  std::weak_ptr<const BigArray<float>> last;
  std::vector<std::int32_t> asked;
  const auto noted = [&](std::int32_t part, ModelWeights w) {
    EXPECT_TRUE(last.expired()) << part;
    last = w.memory;
    asked.push_back(part);
    return w;
  };
  parts.tables = [&] { return noted(-1, reader.tables()); };
  parts.layer = [&](std::int32_t l) { return noted(l, reader.layer(l)); };
  EXPECT_EQ(upload_weights(c, parts, ElementType::kBf16, cuda()).layers.size(), 2U);
  EXPECT_EQ(asked, (std::vector<std::int32_t>{-1, 0, 1}));
}

#if KVLAB_EMULATED

// The NaN is in the last tensor of the last layer.
TEST_F(EngineWeightsCuda, WhatDoesNotFitIsRefusedBeforeAnythingIsConverted) {
  const ModelConfig c = tiny_config();
  write(c);
  write_nan("model.layers.1.mlp.down_proj.weight");
  const std::int64_t before = emulated::used_memory();
  const auto make = [&] { make_device_model(c, WeightReader(dir_, c), {}, ElementType::kBf16); };
  EXPECT_EQ(error_of(make), file() + ": tensor 'model.layers.1.mlp.down_proj.weight' has a NaN at [63, 95]");
  EXPECT_EQ(emulated::used_memory(), before);
  EXPECT_THAT(error_with_room(100'000, make), testing::StartsWith("model 'tiny' does not fit into the memory of emulated"));
  EXPECT_EQ(emulated::used_memory(), before);
}

#endif

}  // namespace
}  // namespace kvlab
