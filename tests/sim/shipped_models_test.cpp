#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "sim/cost/hardware_spec.h"
#include "sim/cost/model_spec.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

const std::string kModels = KVLAB_SOURCE_DIR "/profiles/models", kCards = KVLAB_SOURCE_DIR "/profiles/hardware";

// The tiny model with further lines in its file.
ModelSpec tiny_with(const std::string& more) {
  const TempFolder folder;
  return load_model_spec(folder.write("a.yaml", kTinyModel + more), kModels);
}

// As the engine reads them (engine/model/config.cpp): the default of max_model_len is what it takes.
TEST(ModelSpec, RopeScalingMakesTextsLonger) {
  const auto longest = [](const std::string& more) { return tiny_with("max_position_embeddings: 4096\n" + more).max_tokens; };
  EXPECT_EQ(longest(""), 4096);
  EXPECT_EQ(longest("rope_scaling: null\n"), 4096);
  EXPECT_EQ(longest("rope_scaling: {type: linear, factor: 4.0}\n"), 16'384);
  EXPECT_EQ(longest("rope_parameters: {rope_type: yarn, factor: 4, original_max_position_embeddings: 4096}\n"), 16'384);
  EXPECT_EQ(longest("rope_scaling: {rope_type: yarn, factor: 4, original_max_position_embeddings: 1024}\n"), 4096);
  EXPECT_EQ(longest("rope_scaling: {rope_type: llama3, factor: 32, original_max_position_embeddings: 4096}\n"), 4096);
  EXPECT_EQ(longest("rope_scaling: {rope_type: longrope, short_factor: [1], long_factor: [2]}\n"), 4096);
  EXPECT_EQ(longest("rope_parameters: {full_attention: {rope_type: linear, factor: 8}}\n"), 4096);  // of some layers only
}

TEST(ModelSpec, ReadsAHuggingFaceConfig) {
  const TempFolder folder;
  folder.write(
      "Some-Model/config.json",
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
                   "num_key_value_heads": null, "intermediate_size": 32, "vocab_size": 64, "rope_scaling": null, "sliding_window": null,
                   "eos_token_id": [1, 2], "torch_dtype": "float16", "tie_word_embeddings": true, "use_cache": true})");
  const ModelSpec m = load_model_spec(folder.path() + "/Some-Model", kModels);
  EXPECT_EQ(std::tuple(m.name, m.kv_heads, m.head_dim, m.dtype), std::tuple("Some-Model", 4, 4, Dtype::kFp16));
  // Tied embedding 64 * 16; a layer: q, k, v, o 4 * 256, MLP 3 * 512, norms 32; final norm 16.
  EXPECT_EQ(total_parameters(m), 1024 + 2 * (1024 + 1536 + 32) + 16);
}

TEST(ModelSpec, WeightBytesAreCutOverRanksAndStages) {
  const ModelSpec m = load_model_spec("llama-3.1-8b", kModels);
  EXPECT_EQ(weight_bytes(m), 2 * total_parameters(m));
  // Norms are on every rank; everything else is halved.
  const std::int64_t norms = 2 * (32 * 2 * 4096 + 4096);
  EXPECT_EQ(weight_bytes(m, 2), (2 * total_parameters(m) - norms) / 2 + norms);
  EXPECT_LT(weight_bytes(m, 1, 2), weight_bytes(m) * 6 / 10);
  const ModelSpec moe = load_model_spec("mixtral-8x7b", kModels);
  EXPECT_NEAR(static_cast<double>(weight_bytes(moe, 1, 1, 8)), 2.0 * (1.605e9 + 45.097e9 / 8),
              2e7);  // attention and embeddings whole, experts cut
}

TEST(ModelSpec, WeightsMayBeQuantized) {
  const ModelSpec plain = tiny_with(""), four = tiny_with("quantization_config: {quant_method: gptq, bits: 4, group_size: -1}\n");
  constexpr std::int64_t kInLayers = 2 * (16 * (16 + 2 * 8) + 16 * 16 + 3 * 16 * 32);  // embedding, head and norms keep 16 bits
  EXPECT_EQ(weight_bytes(plain) - weight_bytes(four), kInLayers * 12 / 8);
  EXPECT_EQ(compute_dtype(four), Dtype::kFp16);
  EXPECT_EQ(kv_bytes_per_token(tiny_with("kv_cache_dtype: fp8\n")), 2 * 2 * 2 * 4);
}

std::int64_t window(const std::string& more) { return tiny_with(more).sliding_window; }

TEST(ModelSpec, SlidingWindowCountsOnlyWhereEveryLayerHasIt) {
  EXPECT_EQ(window("sliding_window: 128\n"), 128);
  EXPECT_EQ(window("sliding_window: 128\nuse_sliding_window: false\n"), 0);
  EXPECT_EQ(window("sliding_window: 128\nlayer_types: [full_attention, sliding_attention]\n"), 0);
}

TEST(ModelSpec, QwenSlidesWhereItIsTold) {
  const auto qwen = [](const std::string& family, const std::string& more) {
    return window("model_type: " + family + "\nsliding_window: 128\n" + more);
  };
  for (const char* family : {"qwen2", "qwen3", "qwen3_moe"}) {
    EXPECT_EQ(qwen(family, "max_window_layers: 0\n"), 0) << family;
    EXPECT_EQ(qwen(family, "use_sliding_window: true\n"), 0) << family;  // from layer 28 on
    EXPECT_EQ(qwen(family, "use_sliding_window: true\nmax_window_layers: 1\n"), 0) << family;
    EXPECT_EQ(qwen(family, "use_sliding_window: true\nmax_window_layers: 0\n"), 128) << family;
  }
  EXPECT_EQ(qwen("mistral", ""), 128);
}

// Values of configuration classes if the file does not set them, and null, which sets them.
TEST(ModelSpec, WindowsThatAFamilyHasByDefault) {
  EXPECT_EQ(window("model_type: mistral\n"), 4096);
  EXPECT_EQ(window("model_type: mistral\nsliding_window: null\n"), 0);
  EXPECT_EQ(window("model_type: mistral\nsliding_window: 64\nuse_sliding_window: false\n"), 64) << "the switch is Qwen's";
  EXPECT_EQ(window("model_type: qwen2\nuse_sliding_window: true\nmax_window_layers: 0\n"), 4096);
  EXPECT_EQ(window("model_type: qwen2\n"), 0);
  EXPECT_EQ(window("model_type: llama\n"), 0);
  EXPECT_EQ(window("model_type: mixtral\n"), 0);
  EXPECT_EQ(window("model_type: gemma2\nsliding_window: 64\n"), 0) << "every second layer sees all";
  EXPECT_EQ(window("layer_types: [sliding_attention, sliding_attention]\nsliding_window: 64\n"), 64);
  EXPECT_THAT(error_of([&] { window("layer_types: [sliding_attention]\n"); }),
              HasSubstr("'layer_types': expected one type for each of 2 layers"));
  EXPECT_EQ(load_model_spec("mistral-7b", kModels).sliding_window, 0) << "v0.3 has none";
}

TEST(ModelSpec, NullsInsideATextConfigAreAbsentToo) {
  const TempFolder folder;
  folder.write("V/config.json",
               R"({"model_type": "some_vision", "text_config": {"model_type": "mistral", "hidden_size": 16, "num_hidden_layers": 2,
                   "num_attention_heads": 4, "num_key_value_heads": null, "intermediate_size": 32, "vocab_size": 64, "sliding_window": null}})");
  const ModelSpec m = load_model_spec(folder.path() + "/V", kModels);
  EXPECT_EQ(std::tuple(m.kv_heads, m.sliding_window), std::tuple(4, 0));
}

// Values of configuration classes if the file does not set them, and null, which sets them.
TEST(ModelSpec, KvHeadsThatAFamilyHasByDefault) {
  const TempFolder folder;
  const auto spec = [&](const std::string& more) {
    return load_model_spec(folder.write("m.yaml", "hidden_size: 128\nnum_hidden_layers: 2\nintermediate_size: 32\nvocab_size: 64\n" + more),
                           kModels);
  };
  for (const auto& [family, heads] : std::map<std::string, std::int64_t>{{"llama", 64}, {"mistral", 8}, {"qwen2", 32}, {"qwen3", 32}}) {
    const std::string text = "num_attention_heads: 64\nmodel_type: " + family + "\n";
    EXPECT_EQ(spec(text).kv_heads, heads) << family;
    EXPECT_EQ(spec(text + "num_key_value_heads: null\n").kv_heads, 64) << family;
    EXPECT_EQ(spec(text + "num_key_value_heads: 2\n").kv_heads, 2) << family;
  }
  EXPECT_THAT(error_of([&] { spec("num_attention_heads: 16\nmodel_type: qwen2\n"); }),
              HasSubstr("num_key_value_heads is missing, and num_attention_heads is not a multiple of the 32 that qwen2 has then"));
}

TEST(ModelSpec, HeadDimOfQwen3WithoutTheKey) {
  const auto head_dim = [](const std::string& more) { return tiny_with(more).head_dim; };
  EXPECT_EQ(head_dim("model_type: qwen3\n"), 128);
  EXPECT_EQ(head_dim("model_type: qwen3\nhead_dim: 8\n"), 8);
  EXPECT_EQ(head_dim("model_type: qwen2\n"), 4);
}

TEST(ModelSpec, ErrorsNameFileAndKey) {
  const TempFolder folder;
  const auto error = [&](const std::string& text) {
    const std::string file = folder.write("m.yaml", text);
    std::string message = error_of([&] { load_model_spec(file, kModels); });
    EXPECT_EQ(message.rfind(folder.path() + "/m.yaml:", 0), 0U) << message;
    return message;
  };
  EXPECT_THAT(error("hidden_size: 16\n"), HasSubstr("needs 'num_hidden_layers'"));
  EXPECT_THAT(error(std::string(kTinyModel) + "num_experts: 4\n"), HasSubstr("needs 'num_experts_per_tok'"));
  EXPECT_THAT(
      error("hidden_size: 16\nnum_hidden_layers: 2\nnum_attention_heads: 4\nnum_key_value_heads: 3\nvocab_size: 9\nintermediate_size: 8\n"),
      HasSubstr("not a multiple"));
  EXPECT_THAT(error(std::string(kTinyModel) + "kv_lora_rank: 512\n"), HasSubstr("'kv_lora_rank' = 512 is not understood"));
  EXPECT_THAT(error_of([&] { load_model_spec(folder.write("d.yaml", std::string(kTinyModel) + "kv_cache_dtype: fp9\n"), kModels); }),
              HasSubstr("fp8"));
  EXPECT_THAT(error_of([] { load_model_spec("llama-3.1-8B", kModels); }), HasSubstr("did you mean 'llama-3.1-8b'"));
}

TEST(HardwareSpec, ShippedCardsAreComplete) {
  int cards = 0;
  for (const auto& file : std::filesystem::directory_iterator(kCards)) {
    const std::string name = file.path().stem().string();
    const HardwareSpec h = load_hardware_spec(name, kCards);
    ++cards;
    EXPECT_THAT(h.source, ::testing::AnyOf(HasSubstr("NVIDIA"), HasSubstr("AMD"))) << name;
    EXPECT_GT(h.peak_flops(Dtype::kBf16), 6e13) << name;
    EXPECT_GE(h.memory_bytes_per_s, 2.7e11) << name;
    ASSERT_TRUE(h.power) << name;
    EXPECT_GE(h.power->idle_w, 0.03 * h.power->peak_w) << name;
    EXPECT_LE(h.power->idle_w, 0.4 * h.power->peak_w) << name;
    EXPECT_TRUE(hardware_remarks(h).empty()) << name << ": " << hardware_remarks(h).front();
  }
  EXPECT_GE(cards, 20);
  const HardwareSpec h100 = load_hardware_spec("h100", kCards);
  EXPECT_DOUBLE_EQ(h100.memory_bytes_per_s, 3.35e12);
  EXPECT_DOUBLE_EQ(h100.bf16_flops, 989.4e12);
  EXPECT_DOUBLE_EQ(h100.power->peak_w, 700);
  EXPECT_DOUBLE_EQ(h100.price_per_hour.value(), 3.99);
  EXPECT_FALSE(load_hardware_spec("h20", kCards).price_per_hour) << "none is known";
  EXPECT_DOUBLE_EQ(h100.link_bytes_per_s, 450e9);
  EXPECT_DOUBLE_EQ(load_hardware_spec("rtx4090", kCards).link_bytes_per_s, 31.5e9);    // no NVLink: PCIe
  EXPECT_DOUBLE_EQ(load_hardware_spec("t4", kCards).peak_flops(Dtype::kBf16), 65e12);  // no bf16: computed in fp16
}

TEST(HardwareSpec, Errors) {
  const TempFolder folder;
  const auto error = [&](const std::string& text) { return error_of([&] { load_hardware_spec(folder.write("c.yaml", text), kCards); }); };
  EXPECT_THAT(error("memory_bytes: 1e9\n"), HasSubstr("needs 'source'"));
  EXPECT_THAT(error(std::string(kTinyCard) + "lunch_ns: 3\n"), HasSubstr("did you mean 'launch_ns'"));
  EXPECT_THAT(error("source: x\nmemory_bytes: 16777216\nmemory_bandwidth_bytes_per_s: .nan\n"), HasSubstr("memory_bandwidth_bytes_per_s"));
  EXPECT_THAT(error_of([] { load_hardware_spec("h10O", kCards); }), HasSubstr("did you mean 'h100'"));
  const auto with = [&](const std::string& line) { return error(kTinyCard + line + "\n"); };
  EXPECT_EQ(with("power: {idle_w: 40, peak_w: 40}\nprice_per_hour: 0"), "no error") << "may be equal, and free";
  EXPECT_THAT(with("power: {idle_w: 70, peak_w: 40}"), HasSubstr(":10:29: 'peak_w' = 40 is below 'idle_w' = 70"));
  EXPECT_THAT(with("power: {idle_w: 70}"), HasSubstr("power needs 'peak_w'"));
  EXPECT_THAT(with("power: {idle_w: -1, peak_w: 40}"), HasSubstr("'idle_w' = -1 is outside"));
  EXPECT_THAT(with("power: {idle: 10, peak_w: 40}"), HasSubstr("needs 'idle_w'"));
  EXPECT_THAT(with("power: {idle_w: 10, peak_w: 40, tdp: 40}"), HasSubstr("unknown key 'tdp' in power"));
  EXPECT_THAT(with("power: 40"), HasSubstr("'power': expected 'key: value' lines"));
  EXPECT_THAT(with("price_per_hour: -2"), HasSubstr("'price_per_hour' = -2 is outside"));
  EXPECT_THAT(with("price_per_hour: cheap"), HasSubstr("'price_per_hour'"));
}

// Models of profiles/models against published figures; the first line of each file names their source.

using Published = std::pair<const char*, std::int64_t>;

// By safetensors metadata or, where these count more, the sum over the tensors' shapes, without scales and multi-token prediction.
const Published kParameters[] = {
    {"probe", 11'219'328},         {"qwen3-32b", 32'762'123'264},    {"glm-4.5-air", 106'852'245'504},
    {"phi-4", 14'659'507'200},     {"qwen3-14b", 14'768'307'200},    {"llama-3.1-70b", 70'553'706'496},
    {"yi-34b", 34'388'917'248},    {"kimi-k2", 1'026'408'232'448},   {"qwen3-30b-a3b", 30'532'122'624},
    {"qwen3-8b", 8'190'735'360},   {"llama-2-13b", 13'015'864'320},  {"llama-3.3-70b", 70'553'706'496},
    {"opt-6.7b", 6'658'473'984},   {"llama-2-70b", 68'976'648'192},  {"gpt-oss-120b", 116'829'156'672},
    {"opt-13b", 12'853'473'280},   {"llama-3.1-8b", 8'030'261'248},  {"longchat-7b-32k", 6'738'415'616},
    {"opt-30b", 29'974'540'288},   {"qwen2.5-32b", 32'763'876'352},  {"llama-3.1-405b", 405'853'388'800},
    {"qwen3-4b", 4'022'468'096},   {"qwen2.5-72b", 72'706'203'648},  {"qwen3-235b-a22b", 235'093'634'560},
    {"gemma-2b", 2'506'172'416},   {"gpt-oss-20b", 20'914'757'184},  {"deepseek-v2-lite", 15'706'484'224},
    {"llama-2-7b", 6'738'415'616}, {"minimax-m2", 228'689'764'864},  {"qwen3-next-80b-a3b", 79'674'391'296},
    {"mistral-7b", 7'248'023'552}, {"mixtral-8x7b", 46'702'792'704}, {"mistral-small-3.2-24b", 23'572'403'200},
    {"qwen2.5-7b", 7'615'616'512}, {"deepseek-v3", 671'026'419'200},
};

// Of a token in 16 bits, over all layers with a cache.
const Published kKvBytes[] = {
    {"llama-2-7b", 524'288},     {"llama-3.1-8b", 131'072},    {"qwen3-30b-a3b", 98'304},      {"llama-3.3-70b", 327'680},
    {"llama-3.1-405b", 516'096}, {"qwen2.5-32b", 262'144},     {"qwen2.5-72b", 327'680},       {"qwen3-4b", 147'456},
    {"qwen3-14b", 163'840},      {"qwen3-235b-a22b", 192'512}, {"deepseek-v3", 70'272},        {"deepseek-v2-lite", 31'104},
    {"kimi-k2", 70'272},         {"gpt-oss-20b", 49'152},      {"gpt-oss-120b", 73'728},       {"mistral-small-3.2-24b", 163'840},
    {"phi-4", 204'800},          {"glm-4.5-air", 188'416},     {"qwen3-next-80b-a3b", 24'576}, {"minimax-m2", 253'952},
    {"yi-34b", 245'760},         {"longchat-7b-32k", 524'288}, {"gemma-2b", 18'432},
};

TEST(ShippedModels, ParametersAndKvAreThePublishedOnes) {
  for (const auto& [name, count] : kParameters) EXPECT_EQ(total_parameters(load_model_spec(name, kModels)), count) << name;
  for (const auto& [name, bytes] : kKvBytes) EXPECT_EQ(kv_bytes_per_token(load_model_spec(name, kModels)), bytes) << name;
}

// 397 billion by its name, and 30,720 bytes of KV in 15 layers; a state is kept in fp32, what its convolution looks back on in 16 bits.
TEST(ShippedModels, Qwen35) {
  const ModelSpec m = load_model_spec("qwen3.5-397b-a17b", kModels);
  EXPECT_NEAR(static_cast<double>(total_parameters(m)), 397e9, 1e9);
  EXPECT_EQ(kv_bytes_per_token(m), 15 * 2 * 2 * 256 * 2);
  EXPECT_EQ(m.linear.state_bytes(4, 2), 64 / 4 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) / 4 * 2);
}

// The paper splits the text model: embeddings, which depend on the vocabulary that is counted, and the rest.
TEST(ShippedModels, GemmaWithoutEmbeddings) {
  const auto rest = [](const char* name) {
    const ModelSpec m = load_model_spec(name, kModels);
    return static_cast<double>(total_parameters(m) - m.vocabulary * m.hidden);
  };
  EXPECT_NEAR(rest("gemma-3-12b"), 10'759e6, 1e6);
  EXPECT_NEAR(rest("gemma-3-27b"), 25'600e6, 1e6);
  EXPECT_EQ(kv_bytes_per_token(load_model_spec("gemma-3-12b", kModels)), 48LL * 2 * 8 * 256 * 2);
  EXPECT_EQ(kv_bytes_per_token(load_model_spec("gemma-3-27b", kModels)), 62LL * 2 * 16 * 128 * 2);
}

// The sizes of the paper's table, of which the name is rounded.
TEST(ShippedModels, TheLargestOptHas175Billion) {
  const ModelSpec m = load_model_spec("opt-175b", kModels);
  EXPECT_NEAR(static_cast<double>(total_parameters(m)), 175e9, 0.5e9);
  EXPECT_EQ(kv_bytes_per_token(m), 96LL * 2 * 12288 * 2);
}

// Billions as the models' reports have them, with the output head and, but for gpt-oss, the embedding.
TEST(ShippedModels, ActiveParametersAreThePublishedOnes) {
  const auto active = [](const char* name) { return static_cast<double>(active_parameters(load_model_spec(name, kModels))) * 1e-9; };
  EXPECT_NEAR(active("deepseek-v3"), 37, 0.6);
  EXPECT_NEAR(active("kimi-k2"), 32.6, 0.4);
  EXPECT_NEAR(active("qwen3-235b-a22b"), 22, 0.5);
  EXPECT_NEAR(active("gpt-oss-20b") - 201'088 * 2880e-9, 3.61, 0.01);
  EXPECT_NEAR(active("gpt-oss-120b") - 201'088 * 2880e-9, 5.13, 0.01);
  const ModelSpec dense = load_model_spec("llama-3.3-70b", kModels);
  EXPECT_EQ(active_parameters(dense), total_parameters(dense));
}

// Sizes of checkpoints: DeepSeek-V3's repository has 688.6 GB, of which 14 B parameters of a byte each are for multi-token prediction; the
// gpt-oss report has 60.8 and 12.8 GiB.
TEST(ShippedModels, QuantizedCheckpointsHaveTheirSize) {
  const auto gigabytes = [](const char* name) { return static_cast<double>(weight_bytes(load_model_spec(name, kModels))) * 1e-9; };
  EXPECT_NEAR(gigabytes("deepseek-v3"), 688.6 - 14, 7);
  EXPECT_NEAR(gigabytes("gpt-oss-120b"), 60.8 * 1.073741824, 0.7);
  EXPECT_NEAR(gigabytes("gpt-oss-20b"), 12.8 * 1.073741824, 0.2);
}

}  // namespace
}  // namespace kvlab
