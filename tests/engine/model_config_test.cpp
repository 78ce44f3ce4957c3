#include <sys/stat.h>

#include <map>
#include <tuple>

#include "sim/cost/model_spec.h"
#include "tests/engine/model_folder.h"

namespace kvlab {
namespace {

using Json = nlohmann::json;

class ModelConfigTest : public ModelFolder {
 protected:
  // The probe's config as one of another kind.
  void become(const std::string& type, const std::string& architecture) {
    config_["model_type"] = type;
    config_["architectures"] = {architecture};
  }
};

TEST_F(ModelConfigTest, TheProbe) {
  const ModelConfig c = read_model_config(kProbeDir + "/");
  EXPECT_EQ(std::tuple(c.name, c.type, c.rope_base, c.rope_scaling.kind, c.norm_epsilon),
            std::tuple("probe", "llama", 100000, RopeScaling::Kind::kNone, 1e-5F));
  EXPECT_EQ(std::tuple(c.layers, c.hidden_dim, c.intermediate_dim, c.q_heads, c.kv_heads, c.head_dim), std::tuple(8, 384, 768, 8, 2, 64));
  EXPECT_EQ(std::tuple(c.vocab_size, c.max_tokens, c.bos_id, c.window(7)), std::tuple(264, 4096, 256, 0));
  EXPECT_FALSE(c.tied_head || c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
}

TEST_F(ModelConfigTest, BadValues) {
  EXPECT_EQ(config_error("[1]"), "not a JSON object");
  EXPECT_EQ(error_with({{"hidden_act", "gelu"}}), "'hidden_act' = \"gelu\" is not supported; allowed: \"silu\"");
  EXPECT_EQ(error_without("hidden_size"), "missing key 'hidden_size'");
  EXPECT_EQ(error_with({{"hidden_size", "384"}}), "'hidden_size' = \"384\" is not supported; allowed: an integer in [1, 1048576]");
  EXPECT_EQ(error_with({{"num_hidden_layers", 0}}), "'num_hidden_layers' = 0 is not supported; allowed: an integer in [1, 10000]");
  EXPECT_EQ(error_with({{"num_key_value_heads", 3}}), "'num_key_value_heads' = 3 does not divide 'num_attention_heads' = 8");
  EXPECT_EQ(error_with({{"head_dim", 63}}), "'head_dim' = 63 is odd; RoPE turns pairs of channels");
  EXPECT_EQ(error_with({{"rope_theta", -1}}), "'rope_theta' = -1 is not supported; allowed: a positive number");
  EXPECT_EQ(error_with({{"rope_theta", 1}}), "'rope_theta' = 1 is not supported; allowed: a number above 1");
  EXPECT_EQ(error_with({{"is_causal", false}}), "'is_causal' = false is not supported; allowed: true");
  EXPECT_EQ(error_with({{"bos_token_id", 264}}),
            "'bos_token_id' = 264 is not supported; allowed: an id below vocab_size 264, a list of them, or null");
  EXPECT_EQ(error_with({{"tie_word_embeddings", 1}}), "'tie_word_embeddings' = 1 is not supported; allowed: true or false");
  EXPECT_EQ(error_with({{"attention_bias", "yes"}}), "'attention_bias' = \"yes\" is not supported; allowed: true or false");
  EXPECT_EQ(error_with({{"partial_rotary_factor", 0.5}}), "'partial_rotary_factor' = 0.5 is not supported; allowed: 1");
  EXPECT_EQ(error_with({{"quantization_config", {{"bits", 4}}}}), "'quantization_config' = {\"bits\":4} is not supported; allowed: null");
  EXPECT_EQ(error_with({{"sliding_window", 16}}), "'sliding_window' = 16 is not supported; allowed: null");
  EXPECT_EQ(error_with({{"model_type", "gpt2"}}),
            "'model_type' = \"gpt2\" is not supported; allowed: \"llama\", \"mistral\", \"qwen2\", \"qwen3\"");
  EXPECT_EQ(error_with({{"model_type", 7}}), "'model_type' = 7 is not supported; allowed: \"llama\", \"mistral\", \"qwen2\", \"qwen3\"");
  EXPECT_EQ(error_without("model_type"), "missing key 'model_type'");
  EXPECT_EQ(error_with({{"architectures", {"LlamaForSequenceClassification"}}}),
            "'architectures' = [\"LlamaForSequenceClassification\"] is not supported; allowed: [\"LlamaForCausalLM\"]");
  EXPECT_EQ(error_with({{"model_type", "qwen3"}}),
            "'architectures' = [\"LlamaForCausalLM\"] is not supported; allowed: [\"Qwen3ForCausalLM\"]");
}

TEST_F(ModelConfigTest, KvHeadsWithoutTheKeyAreThoseOfTheType) {
  const std::map<std::string, std::string> architectures{
      {"llama", "LlamaForCausalLM"}, {"mistral", "MistralForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}};
  const std::map<std::string, std::int32_t> expected{{"llama", 64}, {"mistral", 8}, {"qwen2", 32}, {"qwen3", 32}};
  for (const auto& [type, kv_heads] : expected) {
    config_ = Json{{"model_type", type},        {"architectures", {architectures.at(type)}},
                   {"num_attention_heads", 64}, {"hidden_size", 128},
                   {"num_hidden_layers", 1},    {"intermediate_size", 8},
                   {"vocab_size", 9},           {"max_position_embeddings", 16},
                   {"rms_norm_eps", 1e-5},      {"sliding_window", nullptr}};
    EXPECT_EQ(config_with().kv_heads, kv_heads) << type;
    EXPECT_EQ(load_model_spec(dir_, "").kv_heads, kv_heads) << type;
    EXPECT_EQ(config_with({{"num_key_value_heads", nullptr}}).kv_heads, 64) << type;
    EXPECT_EQ(config_with({{"num_key_value_heads", 2}}).kv_heads, 2) << type;
  }
  EXPECT_EQ(error_with({{"num_attention_heads", 16}}),
            "has no 'num_key_value_heads'; the 32 that qwen3 has then do not divide 'num_attention_heads' = 16");
}

// Python writes NaN and Infinity into JSON.
TEST_F(ModelConfigTest, WhatIsNoJsonIsNamedWithItsPlace) {
  const auto error = [&](const std::string& text) {
    std::ofstream(dir_ + "/config.json") << text;
    return error_of([&] { read_model_config(dir_); });
  };
  EXPECT_EQ(error("{\n  \"a\": 1,\n  \"rope_theta\" :  NaN\n}"),
            "config.json:3:19: 'rope_theta' = NaN: JSON has no NaN: write a number, or null where nothing is set");
  EXPECT_EQ(error("{\"a\": -Infinity}"),
            "config.json:1:7: 'a' = -Infinity: JSON has no -Infinity: write a number, or null where nothing is set");
  EXPECT_EQ(error("{\"a\": [1, Infinity]}"), "config.json:1:11: JSON has no Infinity: write a number, or null where nothing is set");
  EXPECT_EQ(error("NaN"), "config.json:1:1: JSON has no NaN: write a number, or null where nothing is set");
  EXPECT_EQ(error("{\"model_type\": "), "config.json:1:16: not JSON here");
  EXPECT_EQ(error("{\"a\": 1\n \"b\": 2}"), "config.json:2:4: not JSON here");
  EXPECT_EQ(error("{\"a\": Nothing}"), "config.json:1:7: not JSON here");
  EXPECT_EQ(error(""), "config.json:1:1: not JSON here");
  EXPECT_EQ(error("{\"a\": 1e999}"), "config.json: a number in it is beyond what a double holds");
}

TEST_F(ModelConfigTest, AKeyGivenTwiceIsRefused) {
  const std::string text = config_.dump();
  EXPECT_EQ(config_error(text.substr(0, text.size() - 1) + R"(, "rms_norm_eps": 0.5})"),
            "key 'rms_norm_eps' appears twice in the same object");
  EXPECT_EQ(config_error(R"({"a": {"b": 1, "c": [{"b": 1}, {"b": 1}], "b": 2}})"), "key 'b' appears twice in the same object");
}

TEST_F(ModelConfigTest, ValuesNestedVeryDeepAreRefused) {
  constexpr std::size_t kDeep = 1'000'000;
  for (const char* key : {"hidden_size", "rope_scaling", "unknown"})
    EXPECT_EQ(config_error(std::string("{\"") + key + "\": " + std::string(kDeep, '[') + std::string(kDeep, ']') + "}"),
              "values in it are nested deeper than 64 levels");
}

TEST_F(ModelConfigTest, WhatIsNoFileIsNotRead) {
  const std::string path = dir_ + "/config.json", message = "config.json: is not a regular file; a JSON file is expected";
  std::filesystem::create_directory(path);
  EXPECT_EQ(error_of([&] { read_model_config(dir_); }), message);
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(error_of([&] { read_model_config(dir_); }), message);
}

TEST_F(ModelConfigTest, TheFirstTokenMayBeMissingOrOneOfSeveral) {
  for (const Json& none : {Json(), Json(-1), Json::array(), Json{-1}}) EXPECT_EQ(config_with({{"bos_token_id", none}}).bos_id, -1) << none;
  EXPECT_EQ(config_with({{"bos_token_id", {7, 9}}, {"eos_token_id", {1, 2}}}).bos_id, 7);
  EXPECT_EQ(config_with({{"eos_token_id", nullptr}, {"pad_token_id", -1}}).bos_id, 256);
  EXPECT_EQ(error_with({{"bos_token_id", -2}}),
            "'bos_token_id' = -2 is not supported; allowed: an id below vocab_size 264, a list of them, or null");
}

// The engine computes by the window that the cost model prices, whichever keys of a folder say so.
TEST_F(ModelConfigTest, EngineAndCostModelReadTheSameWindow) {
  config_["num_hidden_layers"] = 3;
  const Json sliding{"sliding_attention", "sliding_attention", "sliding_attention"},
      mixed{"full_attention", "sliding_attention", "full_attention"};
  int with_window = 0;
  for (const auto& [type, architecture] :
       {std::pair{"mistral", "MistralForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}}) {
    become(type, architecture);
    for (const Json& window : {Json("absent"), Json(), Json(64)}) {
      for (const Json& first : {Json("absent"), Json(0), Json(2), Json(3)}) {
        for (const Json& types : {Json("absent"), sliding, mixed}) {
          for (const Json& use : {Json("absent"), Json(false), Json(true)}) {
            Json changed = config_;
            for (const auto& [key, value] :
                 {std::pair{"sliding_window", window}, {"max_window_layers", first}, {"layer_types", types}, {"use_sliding_window", use}})
              if (value != "absent") changed[key] = value;
            if (config_error(changed.dump()) != "no error") continue;  // refused
            const ModelConfig c = read_model_config(dir_);
            const bool all = std::all_of(c.windows.begin(), c.windows.end(), [&](std::int32_t w) { return w == c.windows.front(); });
            EXPECT_EQ(load_model_spec(dir_, "").sliding_window, all && !c.windows.empty() ? c.windows.front() : 0) << changed;
            with_window += all && !c.windows.empty() ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_GT(with_window, 20);
}

TEST_F(ModelConfigTest, OptionalKeysHaveTheLibrarysDefaults) {
  for (const char* key :
       {"num_key_value_heads", "head_dim", "bos_token_id", "tie_word_embeddings", "hidden_act", "rope_theta", "architectures"})
    config_.erase(key);
  ModelConfig c = config_with();
  EXPECT_EQ(std::tuple(c.kv_heads, c.head_dim, c.bos_id, c.rope_base), std::tuple(8, 48, -1, 10000));
  c = config_with({{"model_type", "qwen3"}, {"num_key_value_heads", 8}});
  EXPECT_EQ(c.head_dim, 128);
}

TEST_F(ModelConfigTest, BiasesAndNorms) {
  ModelConfig c = config_with({{"attention_bias", true}, {"mlp_bias", true}});
  EXPECT_TRUE(c.qkv_bias && c.o_bias && c.mlp_bias && !c.qk_norm);
  become("mistral", "MistralForCausalLM");
  c = config_with();
  EXPECT_FALSE(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm);
  EXPECT_EQ(error_with({{"attention_bias", true}}), "'attention_bias' = true is not supported; allowed: false");
  EXPECT_EQ(error_with({{"mlp_bias", true}}), "'mlp_bias' = true is not supported; allowed: false");
  become("qwen2", "Qwen2ForCausalLM");
  c = config_with();
  EXPECT_TRUE(c.qkv_bias && !c.o_bias && !c.qk_norm);
  become("qwen3", "Qwen3ForCausalLM");
  c = config_with({{"attention_bias", true}});
  EXPECT_TRUE(c.qkv_bias && c.o_bias && c.qk_norm);
}

using Windows = std::vector<std::int32_t>;

TEST_F(ModelConfigTest, MistralSlidesInAllLayers) {
  become("mistral", "MistralForCausalLM");
  EXPECT_EQ(config_with({{"sliding_window", 512}}).windows, Windows(8, 512));
  EXPECT_EQ(config_with({{"sliding_window", nullptr}}).windows, Windows());
  EXPECT_EQ(config_with().windows, Windows(8, 4096));  // the library's default
  EXPECT_EQ(error_with({{"sliding_window", 0}}), "'sliding_window' = 0 is not supported; allowed: an integer in [1, 268435456]");
  EXPECT_EQ(error_with({{"layer_types", {"full_attention"}}}), "'layer_types' = [\"full_attention\"] is not supported; allowed: null");
}

TEST_F(ModelConfigTest, QwenSlidesWhereItIsTold) {
  become("qwen2", "Qwen2ForCausalLM");
  config_["num_hidden_layers"] = 3;
  EXPECT_EQ(config_with({{"sliding_window", 16}, {"max_window_layers", 0}}).windows, Windows());
  config_["use_sliding_window"] = true;
  EXPECT_EQ(config_with({{"sliding_window", 16}, {"max_window_layers", 1}}).windows, (Windows{0, 16, 16}));
  EXPECT_EQ(config_with({{"sliding_window", 16}, {"max_window_layers", 0}}).windows, (Windows{16, 16, 16}));
  EXPECT_EQ(config_with({{"sliding_window", 16}, {"max_window_layers", 3}}).windows, Windows());
  EXPECT_EQ(config_with({{"sliding_window", 16}}).windows, Windows());  // from layer 28 on
  EXPECT_EQ(config_with({{"sliding_window", nullptr}, {"max_window_layers", 0}}).windows, Windows());
  EXPECT_EQ(config_with({{"max_window_layers", 2}}).windows, (Windows{0, 0, 4096}));
  const Json types{"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(config_with({{"sliding_window", 16}, {"max_window_layers", 3}, {"layer_types", types}}).windows, (Windows{16, 0, 16}));
  EXPECT_EQ(error_with({{"use_sliding_window", false}, {"sliding_window", 16}, {"layer_types", types}}),
            "'layer_types' has \"sliding_attention\", but no window is set; it takes 'use_sliding_window' and 'sliding_window'");
  EXPECT_EQ(error_with({{"layer_types", {"full_attention"}}}),
            "'layer_types' = [\"full_attention\"] is not supported; allowed: a list of one type for each of 3 layers");
  EXPECT_EQ(error_with({{"layer_types", {"full_attention", "chunked_attention", "full_attention"}}}),
            "'layer_types' = [\"full_attention\",\"chunked_attention\",\"full_attention\"] is not supported; allowed: \"full_attention\", "
            "\"sliding_attention\"");
  EXPECT_EQ(error_with({{"max_window_layers", nullptr}}),
            "'max_window_layers' = null is not supported; allowed: an integer in [0, 1048576]");
  EXPECT_EQ(error_with({{"max_window_layers", -1}}), "'max_window_layers' = -1 is not supported; allowed: an integer in [0, 1048576]");
}

using Kind = RopeScaling::Kind;

TEST_F(ModelConfigTest, RopeScalings) {
  EXPECT_EQ(config_with({{"rope_scaling", {{"type", "default"}}}}).rope_scaling.kind, Kind::kNone);
  EXPECT_EQ(config_with({{"rope_scaling", Json::object()}}).rope_scaling.kind, Kind::kNone);
  RopeScaling s = config_with({{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}}).rope_scaling;
  EXPECT_EQ(std::tuple(s.kind, s.factor), std::tuple(Kind::kLinear, 4));
  ModelConfig c = config_with({{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}});
  EXPECT_EQ(c.rope_text, "{\"factor\":4,\"type\":\"linear\"}");
  EXPECT_EQ(c.max_tokens, 16384) << "4096 are the length before stretching, unless the file says otherwise:";
  c = config_with({{"rope_scaling", {{"type", "linear"}, {"factor", 4}, {"original_max_position_embeddings", 1024}}}});
  EXPECT_EQ(c.max_tokens, 4096);
  c = config_with(
      {{"rope_scaling",
        {{"type", "llama3"}, {"factor", 8}, {"original_max_position_embeddings", 1024}, {"low_freq_factor", 1}, {"high_freq_factor", 4}}}});
  EXPECT_EQ(c.max_tokens, 4096) << "llama3's factor is no ratio of lengths";
  c = config_with({{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.5}}}});
  EXPECT_EQ(std::tuple(c.rope_scaling.kind, c.rope_scaling.original_tokens), std::tuple(Kind::kDynamic, 4096));
  EXPECT_EQ(c.rope_text, R"({"factor":2.5,"original_max_position_embeddings":4096,"rope_type":"dynamic"})") << "with the model's length";
  EXPECT_EQ(c.max_tokens, 10240);
  c = config_with({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 2048}}}});
  EXPECT_EQ(std::tuple(c.max_tokens, c.rope_scaling.beta_fast), std::tuple(8192, 32));
  EXPECT_NEAR(c.rope_scaling.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
  s = config_with({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}, {"mscale", 1.5}, {"mscale_all_dim", 0.5}}}}).rope_scaling;
  EXPECT_NEAR(s.attention_factor, (0.15 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-12);
  s = config_with({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}, {"mscale", 1.5}, {"attention_factor", 1.25}}}}).rope_scaling;
  EXPECT_EQ(s.attention_factor, 1.25);
  // As in transformers a magnitude of 0 is none given. DeepSeek's own reading, m(1) / m(0) with m(0) = 1, is the same.
  s = config_with({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}, {"mscale", 1}, {"mscale_all_dim", 0}}}}).rope_scaling;
  EXPECT_NEAR(s.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
}

// Cases in which versions of transformers differ, or treat null unlike a missing key.
TEST_F(ModelConfigTest, RopeScalingsThatAreReadInTwoWaysAreRefused) {
  const Json yarn{{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 2048}};
  EXPECT_EQ(error_with({{"rope_scaling", yarn}, {"original_max_position_embeddings", 1024}}),
            "'original_max_position_embeddings' = 1024 is not supported; allowed: 2048, as with the RoPE scaling");
  EXPECT_EQ(error_with({{"rope_scaling", yarn}, {"original_max_position_embeddings", 2048}}), "no error");
  EXPECT_EQ(error_with({{"original_max_position_embeddings", 1024}}), "no error");
  Json published = yarn;
  published["attn_factor"] = 0.8782488562869419;
  EXPECT_EQ(error_with({{"rope_scaling", published}}),
            "'rope_scaling.attn_factor' = 0.8782488562869419 is not supported; allowed: no such key, as transformers reads it (queries and "
            "keys scaled by 1.138629436), or in its place \"attention_factor\": 1, as vLLM reads it");
  published["attn_factor"] = "1";
  EXPECT_EQ(error_with({{"rope_scaling", published}}), "'rope_scaling.attn_factor' = \"1\" is not supported; allowed: a positive number");
  config_["rope_theta"] = 5e5;
  const Json inner{{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 5e5}};
  EXPECT_EQ(error_with({{"rope_scaling", inner}}), "no error");
  config_.erase("rope_theta");
  EXPECT_EQ(error_with({{"rope_scaling", inner}}),
            "'rope_scaling.rope_theta' = 500000.0 is not supported; allowed: 'rope_theta' outside of it");
  Json untold = yarn;
  untold["truncate"] = nullptr;
  EXPECT_EQ(error_with({{"rope_scaling", untold}}), "'rope_scaling.truncate' = null is not supported; allowed: true or false");
}

TEST_F(ModelConfigTest, BadRopeScalings) {
  const auto error = [&](const Json& scaling) { return error_with({{"rope_scaling", scaling}}); };
  EXPECT_EQ(error({{"type", "longrope"}}),
            "'rope_scaling.type' = \"longrope\" is not supported; allowed: \"default\", \"dynamic\", \"linear\", \"llama3\", \"yarn\"");
  EXPECT_EQ(error({{"factor", 2}}), "missing key 'rope_scaling.rope_type'");
  EXPECT_EQ(error("linear"), "'rope_scaling' = \"linear\" is not supported; allowed: an object");
  EXPECT_EQ(error({{"type", "yarn"}, {"rope_type", "linear"}, {"factor", 2}}),
            "'rope_scaling.type' = \"yarn\" is not supported; allowed: 'rope_type' = \"linear\", as beside it");
  EXPECT_EQ(error({{"type", "linear"}}), "missing key 'rope_scaling.factor'");
  EXPECT_EQ(error({{"type", "linear"}, {"factor", 0.5}}), "'rope_scaling.factor' = 0.5 is not supported; allowed: a number from 1");
  EXPECT_EQ(error({{"type", "linear"}, {"factro", 2}}), "unknown key 'rope_scaling.factro'; did you mean 'factor'?");
  EXPECT_EQ(error({{"type", "linear"}, {"factor", 2}, {"beta_fast", 32}}),
            "unknown key 'rope_scaling.beta_fast'; known: factor, original_max_position_embeddings, rope_type, type, rope_theta, "
            "partial_rotary_factor");
  EXPECT_EQ(error({{"type", "dynamic"}, {"factor", 2}, {"original_max_position_embeddings", 64}}),
            "'rope_scaling.original_max_position_embeddings' = 64 is not supported; allowed: 'max_position_embeddings' = 4096");
  EXPECT_EQ(error({{"type", "llama3"}, {"factor", 8}}), "missing key 'rope_scaling.original_max_position_embeddings'");
  EXPECT_EQ(
      error({{"type", "llama3"}, {"factor", 8}, {"original_max_position_embeddings", 64}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
      "'rope_scaling.high_freq_factor' = 4 is not supported; allowed: a number above 'low_freq_factor' = 4");
  EXPECT_EQ(error({{"type", "yarn"}, {"factor", 8}, {"mscale_all_dim", -1}}),
            "'rope_scaling.mscale_all_dim' = -1 is not supported; allowed: a number from 0");
  EXPECT_EQ(error({{"type", "yarn"}, {"factor", 8}, {"beta_fast", 0.5}}),
            "'rope_scaling.beta_fast' = 0.5 is not supported; allowed: a number from 'beta_slow' = 1");
}

TEST_F(ModelConfigTest, RopeParametersOfNewerFolders) {
  config_.erase("rope_theta");
  ModelConfig c = config_with({{"rope_parameters", {{"rope_theta", 5e5}}}});
  EXPECT_EQ(std::tuple(c.rope_base, c.rope_scaling.kind), std::tuple(5e5, Kind::kNone));
  c = config_with({{"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "linear"}, {"factor", 2}}}});
  EXPECT_EQ(c.rope_scaling.kind, Kind::kLinear);
  EXPECT_EQ(config_with({{"rope_parameters", {{"rope_theta", 5e5}, {"partial_rotary_factor", 1.0}}}}).rope_base, 5e5);
  EXPECT_EQ(error_with({{"rope_parameters", {{"rope_theta", 5e5}, {"partial_rotary_factor", 0.5}}}}),
            "'rope_parameters.partial_rotary_factor' = 0.5 is not supported; allowed: 1");
  EXPECT_EQ(error_with({{"rope_theta", 1e4}, {"rope_parameters", {{"rope_theta", 5e5}}}}),
            "'rope_parameters.rope_theta' = 500000.0 is not supported; allowed: 'rope_theta' = 10000, as outside of it");
  EXPECT_EQ(error_with({{"rope_parameters", Json::object()}, {"rope_scaling", Json::object()}}),
            "'rope_scaling' and 'rope_parameters' are both set; keep the one that holds");
  EXPECT_EQ(error_with({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}}),
            "'rope_parameters.full_attention' = {\"rope_theta\":10000.0} is not supported; allowed: the same RoPE for all layers");
}

// Whatever a key holds, the config is read or refused in one line.
TEST_F(ModelConfigTest, OddValuesOfAnyKey) {
  const Json odd = Json::parse(R"([null, true, 0, -1, 3, 1e300, 18446744073709551615, "", "x", [], [1, "a"], [null], {}, {"type": 1},
                                   {"rope_type": "yarn", "factor": null}, {"rope_type": "yarn", "factor": {}}])");
  int refused = 0;
  for (const char* name : {"llama_v5", "llama_rope_yarn", "mistral", "qwen2_sliding", "qwen3_tied"}) {
    const Json model = Json::parse(std::ifstream(std::string(KVLAB_SOURCE_DIR "/tests/parity/models/") + name + "/config.json"));
    const auto try_all = [&](const Json::json_pointer& object) {
      for (const auto& [key, value] : model[object].items()) {
        for (const Json& value_now : odd) {
          Json changed = model;
          changed[object][key] = value_now;
          refused += config_error(changed.dump()) == "no error" ? 0 : 1;  // another exception ends the test
        }
      }
    };
    try_all(Json::json_pointer(""));
    for (const char* rope : {"/rope_scaling", "/rope_parameters"}) {
      const Json::json_pointer at(rope);
      if (model.contains(at) && model[at].is_object()) try_all(at);
    }
  }
  EXPECT_GT(refused, 500);
}

// Up to max_position_embeddings dynamic scaling is none at all; beyond, the base grows with the length.
TEST(Rotary, DynamicScalingBeginsBehindTheTrainedLength) {
  RopeScaling s;
  s.kind = Kind::kDynamic, s.factor = 2, s.original_tokens = 100;
  const Rotary plain(10'000, 8), dynamic({10'000, s}, 8);
  EXPECT_EQ(dynamic.frequencies(100), plain.frequencies(100));
  const std::vector<float> longer = dynamic.frequencies(200);
  const double base = 10'000 * std::pow(2.0 * 200 / 100 - 1, 8.0 / 6);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(longer[i] * std::pow(base, static_cast<double>(i) / 4), 1, 1e-6);
}

}  // namespace
}  // namespace kvlab
