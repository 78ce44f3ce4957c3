// A model on the GPU out of a folder: part by part, and refused before anything is converted.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/safetensors.h"
#include "tests/cuda/engine_fixture.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

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
