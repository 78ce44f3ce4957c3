#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "engine/model/plain_cache.h"
#include "tests/engine/probe.h"

namespace kvlab {
namespace {

// A folder of its own with the probe's config, some keys of it changed.
class ModelFiles : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = testing::TempDir() + "kvlab_" + std::to_string(::getpid()) + "_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    config_ = nlohmann::json::parse(std::ifstream(kProbeDir + "/config.json"));
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string config_error(const std::string& text) {
    std::ofstream(dir_ + "/config.json") << text;
    try {
      read_model_config(dir_);
    } catch (const InputError& e) {
      const std::string message = e.what(), path = dir_ + "/config.json: ";
      EXPECT_TRUE(message.starts_with(path)) << message;
      return message.substr(std::min(path.size(), message.size()));
    }
    return "no error";
  }
  std::string error_with(const std::string& key, const nlohmann::json& value) {
    nlohmann::json changed = config_;
    changed[key] = value;
    return config_error(changed.dump());
  }
  std::string error_without(const std::string& key) {
    nlohmann::json changed = config_;
    changed.erase(key);
    return config_error(changed.dump());
  }

  std::string dir_;
  nlohmann::json config_;
};

TEST_F(ModelFiles, TheProbesConfig) {
  const ModelConfig c = read_model_config(kProbeDir + "/");
  EXPECT_EQ(c.name, "probe");
  EXPECT_EQ(c.layers, 8);
  EXPECT_EQ(c.hidden_dim, 384);
  EXPECT_EQ(c.intermediate_dim, 768);
  EXPECT_EQ(c.q_heads, 8);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.vocab_size, 264);
  EXPECT_EQ(c.max_tokens, 4096);
  EXPECT_EQ(c.rope_base, 100000);
  EXPECT_EQ(c.norm_epsilon, 1e-5F);
  EXPECT_EQ(c.bos_id, 256);
  EXPECT_FALSE(c.tied_head);
}

TEST_F(ModelFiles, BadConfigs) {
  EXPECT_EQ(config_error("{\"model_type\": "), "not a JSON object");
  EXPECT_EQ(config_error("[1]"), "not a JSON object");
  EXPECT_EQ(error_with("model_type", "gpt2"), "'model_type' = \"gpt2\" is not supported; allowed: \"llama\"");
  EXPECT_EQ(error_without("model_type"), "missing key 'model_type'");
  EXPECT_EQ(error_with("hidden_act", "gelu"), "'hidden_act' = \"gelu\" is not supported; allowed: \"silu\"");
  EXPECT_EQ(error_with("attention_bias", true), "'attention_bias' = true is not supported; allowed: false");
  EXPECT_EQ(error_with("rope_scaling", {{"type", "linear"}}), "'rope_scaling' = {\"type\":\"linear\"} is not supported; allowed: null");
  EXPECT_EQ(error_without("hidden_size"), "missing key 'hidden_size'");
  EXPECT_EQ(error_with("hidden_size", "384"), "'hidden_size' = \"384\" is not supported; allowed: an integer in [1, 1048576]");
  EXPECT_EQ(error_with("num_hidden_layers", 0), "'num_hidden_layers' = 0 is not supported; allowed: an integer in [1, 10000]");
  EXPECT_EQ(error_with("num_key_value_heads", 3), "'num_key_value_heads' = 3 does not divide 'num_attention_heads' = 8");
  EXPECT_EQ(error_with("head_dim", 63), "'head_dim' = 63 is odd; RoPE turns pairs of channels");
  EXPECT_EQ(error_with("rope_theta", -1), "'rope_theta' = -1 is not supported; allowed: a positive number");
  EXPECT_EQ(error_with("bos_token_id", 264), "'bos_token_id' = 264 is not supported; allowed: an id below vocab_size 264");
  EXPECT_EQ(error_with("tie_word_embeddings", 1), "'tie_word_embeddings' = 1 is not supported; allowed: true or false");
}

TEST_F(ModelFiles, OptionalKeysHaveTheLibrarysDefaults) {
  for (const char* key : {"num_key_value_heads", "head_dim", "bos_token_id", "tie_word_embeddings", "hidden_act"}) config_.erase(key);
  EXPECT_EQ(config_error(config_.dump()), "no error");
  const ModelConfig c = read_model_config(dir_);
  EXPECT_EQ(c.kv_heads, 8);
  EXPECT_EQ(c.head_dim, 48);
  EXPECT_EQ(c.bos_id, -1);
}

TEST_F(ModelFiles, AMissingFolderIsNamed) {
  try {
    Transformer::load(dir_ + "/none");
    FAIL();
  } catch (const InputError& e) {
    EXPECT_EQ(std::string(e.what()), dir_ + "/none/config.json: cannot be read");
  }
}

// A model of one layer, two channels and three tokens: what is missing, misshapen or left over is named.
TEST_F(ModelFiles, WeightsMustBeExactlyTheModels) {
  ModelConfig c;
  c.layers = 1, c.hidden_dim = 2, c.intermediate_dim = 2, c.q_heads = 1, c.kv_heads = 1, c.head_dim = 2, c.vocab_size = 3;
  const std::vector<float> data(6, 1.0F);
  std::vector<TensorToWrite> tensors{{"model.embed_tokens.weight", "F32", {3, 2}, data.data()},
                                     {"model.norm.weight", "F16", {2}, data.data()},
                                     {"lm_head.weight", "F32", {3, 2}, data.data()}};
  for (const char* name : {"input_layernorm", "post_attention_layernorm"})
    tensors.push_back({std::string("model.layers.0.") + name + ".weight", "F32", {2}, data.data()});
  for (const char* name :
       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})
    tensors.push_back({std::string("model.layers.0.") + name + ".weight", "F32", {2, 2}, data.data()});
  const auto error = [&](const std::vector<TensorToWrite>& written) -> std::string {
    write_safetensors(dir_ + "/model.safetensors", written, {});
    try {
      const ModelWeights w = load_weights(dir_, c);
      return w.layers.size() == 1 && w.head == data ? "no error" : "wrong weights";
    } catch (const InputError& e) {
      return e.what();
    }
  };
  EXPECT_EQ(error(tensors), "no error");
  std::vector<TensorToWrite> more = tensors;
  more.push_back({"model.layers.0.self_attn.q_proj.bias", "F32", {2}, data.data()});
  EXPECT_EQ(error(more),
            dir_ + "/model.safetensors: tensor 'model.layers.0.self_attn.q_proj.bias' has no place in a Llama model of this config");
  std::vector<TensorToWrite> fewer(tensors.begin(), tensors.end() - 1);
  EXPECT_NE(error(fewer).find("model.layers.0.mlp.down_proj.weight"), std::string::npos);
  tensors[0].shape = {2, 3};
  EXPECT_NE(error(tensors).find("model.embed_tokens.weight"), std::string::npos);
  tensors[0].shape = {3, 2};
  tensors.erase(tensors.begin() + 2);
  c.tied_head = true;
  EXPECT_EQ(error(tensors), "no error");
}

}  // namespace
}  // namespace kvlab
