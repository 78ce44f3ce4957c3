#include <gmock/gmock.h>

#include "base/read_file.h"
#include "engine/model/weights.h"
#include "tests/engine/model_folder.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

constexpr const char* kProducts[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                     "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

// A model of one layer, two channels and three tokens, all of whose weights are 1: what is missing, misshapen or left over is named.
class ModelFiles : public ModelFolder {
 protected:
  void SetUp() override {
    ModelFolder::SetUp();
    c_.type = "llama";
    c_.layers = 1, c_.hidden_dim = 2, c_.intermediate_dim = 2, c_.q_heads = 1, c_.kv_heads = 1, c_.head_dim = 2, c_.vocab_size = 3;
    add("model.embed_tokens.weight", {3, 2});
    add("model.norm.weight", {2});
    add("lm_head.weight", {3, 2});
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) add(layer(name), {2});
    for (const char* name : kProducts) add(layer(name), {2, 2});
  }
  static std::string layer(const std::string& name, const std::string& ending = ".weight") { return "model.layers.0." + name + ending; }
  void add(const std::string& name, const std::vector<std::int64_t>& shape, const std::string& dtype = "F32") {
    tensors_.push_back({name, dtype, shape, data_.data()});
  }
  TensorToWrite& tensor(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(), [&](const TensorToWrite& t) { return t.name == name; });
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const TensorToWrite& t) { return t.name == name; });
  }
  void write(const std::string& file, const std::vector<TensorToWrite>& tensors) { write_safetensors(dir_ + "/" + file, tensors, {}); }
  void write_text(const std::string& file, const std::string& text) { std::ofstream(dir_ + "/" + file, std::ios::binary) << text; }
  std::string read_text(const std::string& file) { return read_file(dir_ + "/" + file); }
  static std::vector<float> numbers(Weight w) { return {w.begin(), w.end()}; }
  std::string load_error() {
    return error_of([&] {
      const ModelWeights w = load_weights(dir_, c_);
      EXPECT_EQ(numbers(w.head()), std::vector<float>(6, 1.0F));
      ASSERT_EQ(w.layers.size(), 1U);
      EXPECT_EQ(numbers(w.layers[0].down), std::vector<float>(4, 1.0F));
    });
  }
  std::string error() {
    write("model.safetensors", tensors_);
    return load_error();
  }

  // The first four tensors in shard 1, the others in shard 2, and the index of both.
  void write_shards() {
    const auto middle = tensors_.begin() + 4;
    write("model-1.safetensors", {tensors_.begin(), middle});
    write("model-2.safetensors", {middle, tensors_.end()});
    for (auto t = tensors_.begin(); t != tensors_.end(); ++t) map_[t->name] = t < middle ? "model-1.safetensors" : "model-2.safetensors";
  }
  std::string shard_error() {
    write_text("model.safetensors.index.json", Json{{"metadata", {{"total_size", 1}}}, {"weight_map", map_}}.dump());
    return load_error();
  }

  ModelConfig c_;
  std::vector<float> data_ = std::vector<float>(12, 1.0F);
  std::vector<TensorToWrite> tensors_;
  Json map_;
};

TEST_F(ModelFiles, AMissingFolderIsNamed) {
  EXPECT_EQ(error_of([&] { Transformer::load(dir_ + "/none"); }), "none/config.json: cannot be read");
  EXPECT_EQ(error_of([&] { load_weights(dir_ + "/none", c_); }), "none: has neither model.safetensors nor model.safetensors.index.json");
  write_text("pytorch_model.bin", "");
  EXPECT_EQ(
      kvlab::error_of([&] { load_weights(dir_, c_); }),
      dir_ + ": has neither model.safetensors nor model.safetensors.index.json; pytorch_model.bin is not read, convert it to safetensors");
}

TEST_F(ModelFiles, WeightsMustBeExactlyTheModels) {
  EXPECT_EQ(error(), "no error");
  add(layer("self_attn.q_proj", ".bias"), {2});
  EXPECT_EQ(error(), "model.safetensors: tensor 'model.layers.0.self_attn.q_proj.bias' has no place in a llama model of this config.json");
  remove(layer("self_attn.q_proj", ".bias"));
  remove(layer("mlp.down_proj"));
  EXPECT_EQ(error(),
            "model.safetensors: has no tensor 'model.layers.0.mlp.down_proj.weight'; the nearest is 'model.layers.0.mlp.gate_proj.weight'");
  remove("model.norm.weight");
  EXPECT_EQ(error(), "model.safetensors: has no tensor 'model.norm.weight' nor 1 more of this model");
}

TEST_F(ModelFiles, ShapesAndTypes) {
  tensor("model.norm.weight").dtype = "F16";
  EXPECT_EQ(error(), "no error");
  tensor("model.embed_tokens.weight").shape = {2, 3};
  EXPECT_EQ(error(), "model.safetensors: tensor 'model.embed_tokens.weight' has shape [2, 3], expected [3, 2]");
  tensor("model.embed_tokens.weight").shape = {6};
  EXPECT_EQ(error(), "model.safetensors: tensor 'model.embed_tokens.weight' has shape [6], expected [3, 2]");
  tensor("model.embed_tokens.weight").shape = {3, 2};
  tensor(layer("mlp.up_proj")).dtype = "I32";
  EXPECT_EQ(error(), "model.safetensors: tensor 'model.layers.0.mlp.up_proj.weight' has dtype I32, expected F32, BF16 or F16");
  tensor(layer("mlp.up_proj")).dtype = "F32";
  write("model.safetensors", tensors_);
  std::string bytes = read_text("model.safetensors");
  bytes.replace(bytes.size() - 4, 4, std::string("\0\0\xC0\x7F", 4));
  write_text("model.safetensors", bytes);
  EXPECT_NE(load_error().find(" has a NaN at ["), std::string::npos);
  bytes.resize(bytes.size() - 1);
  write_text("model.safetensors", bytes);
  EXPECT_NE(load_error().find("model.safetensors: cut short: tensor '"), std::string::npos);
}

TEST_F(ModelFiles, Biases) {
  c_.qkv_bias = c_.o_bias = c_.mlp_bias = c_.qk_norm = true;
  EXPECT_TRUE(error().starts_with("model.safetensors: has no tensor 'model.layers.0.self_attn.q_proj.bias' nor 8 more of this model"));
  for (const char* name : kProducts) add(layer(name, ".bias"), {2});
  for (const char* name : {"self_attn.q_norm", "self_attn.k_norm"}) add(layer(name), {2});
  EXPECT_EQ(error(), "no error");
  tensor(layer("self_attn.q_norm")).shape = {1};
  EXPECT_EQ(error(), "model.safetensors: tensor 'model.layers.0.self_attn.q_norm.weight' has shape [1], expected [2]");
}

TEST_F(ModelFiles, ATiedHead) {
  c_.tied_head = true;
  EXPECT_EQ(error(), "no error");  // the file's head is the table once more
  const std::vector<float> other(6, 2.0F);
  tensor("lm_head.weight").data = other.data();
  EXPECT_EQ(
      error(),
      "model.safetensors: tensor 'lm_head.weight' is not 'model.embed_tokens.weight', to which \"tie_word_embeddings\" in config.json "
      "ties it");
  tensor("lm_head.weight").data = data_.data();
  tensor("lm_head.weight").shape = {2, 3};
  EXPECT_NE(error().find("tensor 'lm_head.weight' is not 'model.embed_tokens.weight', to which"), std::string::npos);
  remove("lm_head.weight");
  EXPECT_EQ(error(), "no error");
  c_.tied_head = false;
  EXPECT_EQ(error(),
            "model.safetensors: has no tensor 'lm_head.weight'; a model without a head says \"tie_word_embeddings\": true in config.json");
}

TEST_F(ModelFiles, BuffersOfRopeFrequenciesArePassedOver) {
  add(layer("self_attn.rotary_emb.inv_freq", ""), {1});
  EXPECT_EQ(error(), "no error");
}

TEST_F(ModelFiles, BuffersOfRopeFrequenciesThatAShardLacksArePassedOver) {
  write_shards();
  map_[layer("self_attn.rotary_emb.inv_freq", "")] = "model-2.safetensors";
  EXPECT_EQ(shard_error(), "no error");
}

TEST_F(ModelFiles, Shards) {
  write_shards();
  EXPECT_EQ(shard_error(), "no error");
  // If one file has everything, shards in the same folder are not read.
  write("model.safetensors", tensors_);
  map_ = {{"a", "b"}};
  EXPECT_EQ(shard_error(), "no error");
}

TEST_F(ModelFiles, BadShards) {
  const std::string index = "model.safetensors.index.json: ";
  write_shards();
  std::filesystem::remove(dir_ + "/model-2.safetensors");
  EXPECT_EQ(shard_error(), index + "1 of 2 shards are missing: model-2.safetensors");
  write_shards();
  const std::string whole = read_text("model-2.safetensors");
  write_text("model-2.safetensors", whole.substr(0, whole.size() - 5));
  EXPECT_NE(shard_error().find("model-2.safetensors: cut short: tensor '"), std::string::npos);
  write_text("model-2.safetensors", "");
  EXPECT_EQ(shard_error(), "model-2.safetensors: cut short: 0 bytes, and the header's length alone takes 8");
  write_shards();
  map_["model.norm.weight"] = "model-2.safetensors";
  EXPECT_EQ(shard_error(),
            "model-1.safetensors: tensor 'model.norm.weight' belongs into model-2.safetensors by model.safetensors.index.json");
  map_.erase("model.norm.weight");
  EXPECT_EQ(shard_error(), "model-1.safetensors: tensor 'model.norm.weight' is not in model.safetensors.index.json");
  write_shards();
  map_["model.layers.1.mlp.up_proj.weight"] = "model-2.safetensors";
  EXPECT_EQ(shard_error(),
            index + "'weight_map' places tensor 'model.layers.1.mlp.up_proj.weight' in model-2.safetensors, which does not have it");
}

TEST_F(ModelFiles, BadIndex) {
  const std::string index = "model.safetensors.index.json";
  write_text(index, "{");
  EXPECT_EQ(load_error(), index + ":1:2: not JSON here");
  write_text(index, "{\"metadata\": {}}");
  EXPECT_EQ(load_error(), index + ": missing key 'weight_map'");
  map_ = Json::object();
  EXPECT_EQ(shard_error(), index + ": 'weight_map' names no tensor");
  map_ = {{"a", 1}};
  EXPECT_EQ(shard_error(), index + ": 'weight_map.a' = 1 is not supported; allowed: a text");
  map_ = {{"a", "../other/model.safetensors"}};
  EXPECT_EQ(shard_error(),
            index + ": 'weight_map.a' = \"../other/model.safetensors\" is not supported; allowed: the name of a file in the same folder");
}

// Nothing of it is laid out.
TEST(ModelWeightsInMemory, WhatDoesNotFitIsRefused) {
  ModelConfig c;
  c.name = "huge";
  c.layers = 1000, c.hidden_dim = 1 << 16, c.intermediate_dim = 1 << 18, c.q_heads = c.kv_heads = 512, c.head_dim = 128;
  c.vocab_size = 1000, c.tied_head = true;
  EXPECT_THAT(error_of([&] { random_weights(c, 1); }),
              testing::MatchesRegex("model 'huge' does not fit into memory: its 6.87e\\+04 billion weights in float32 take 256000.7 GiB, "
                                    "[0-9.]+ GiB are free; [0-9.]+ billion weights would fit, with no room for a KV cache"));
}

// Tensors of several pieces of conversion, in each type that a file may have.
TEST_F(ModelFiles, LargeTensorsAreConvertedWhole) {
  c_.vocab_size = 1'500'000;
  std::vector<float> table(3'000'000);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i % 2048);
  for (const char* dtype : {"F32", "F16"}) {
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      TensorToWrite& t = tensor(name);
      t.shape = {1'500'000, 2}, t.dtype = dtype, t.data = table.data();
    }
    write("model.safetensors", tensors_);
    const ModelWeights w = load_weights(dir_, c_);
    EXPECT_EQ(numbers(w.embedding), table) << dtype;
    EXPECT_EQ(numbers(w.head()), table) << dtype;
  }
}

}  // namespace
}  // namespace kvlab
