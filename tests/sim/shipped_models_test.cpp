// Models of profiles/models against published figures; the first line of each file names their source.
#include <gtest/gtest.h>

#include "sim/cost/model_spec.h"

namespace kvlab {
namespace {

const std::string kShippedFolder = KVLAB_SOURCE_DIR "/profiles/models";

struct Shipped {
  const char* name;
  std::int64_t parameters, kv_bytes;
};

// Parameters: safetensors metadata or, where these count scales or layers for multi-token prediction too, the sum over the tensors' shapes
// without them. KV: of a token in 16 bits, over all layers with a cache.
const Shipped kShipped[] = {
    {"llama-3.3-70b", 70'553'706'496, 327'680},
    {"llama-3.1-405b", 405'853'388'800, 516'096},
    {"qwen2.5-32b", 32'763'876'352, 262'144},
    {"qwen2.5-72b", 72'706'203'648, 327'680},
    {"qwen3-4b", 4'022'468'096, 147'456},
    {"qwen3-14b", 14'768'307'200, 163'840},
    {"qwen3-235b-a22b", 235'093'634'560, 192'512},
    {"deepseek-v3", 671'026'419'200, 70'272},
    {"deepseek-v2-lite", 15'706'484'224, 31'104},
    {"kimi-k2", 1'026'408'232'448, 70'272},
    {"gpt-oss-20b", 20'914'757'184, 49'152},
    {"gpt-oss-120b", 116'829'156'672, 73'728},
    {"mistral-small-3.2-24b", 23'572'403'200, 163'840},
    {"phi-4", 14'659'507'200, 204'800},
    {"glm-4.5-air", 106'852'245'504, 188'416},
    {"qwen3-next-80b-a3b", 79'674'391'296, 24'576},
    {"minimax-m2", 228'689'764'864, 253'952},
    {"yi-34b", 34'388'917'248, 245'760},
    {"longchat-7b-32k", 6'738'415'616, 524'288},
    {"gemma-2b", 2'506'172'416, 18'432},
};

TEST(ShippedModels, ParametersAndKvAreThePublishedOnes) {
  for (const Shipped& model : kShipped) {
    const ModelSpec m = load_model_spec(model.name, kShippedFolder);
    EXPECT_EQ(total_parameters(m), model.parameters) << model.name;
    EXPECT_EQ(kv_bytes_per_token(m), model.kv_bytes) << model.name;
  }
}

// 397 billion by its name, and 30,720 bytes of KV in 15 layers; a state is kept in fp32, what its convolution looks back on in 16 bits.
TEST(ShippedModels, Qwen35) {
  const ModelSpec m = load_model_spec("qwen3.5-397b-a17b", kShippedFolder);
  EXPECT_NEAR(static_cast<double>(total_parameters(m)), 397e9, 1e9);
  EXPECT_EQ(kv_bytes_per_token(m), 15 * 2 * 2 * 256 * 2);
  EXPECT_EQ(m.linear.state_bytes(4, 2), 64 / 4 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 64 * 128) / 4 * 2);
}

// The paper splits the text model: embeddings, which depend on the vocabulary that is counted, and the rest.
TEST(ShippedModels, GemmaWithoutEmbeddings) {
  const auto rest = [](const char* name) {
    const ModelSpec m = load_model_spec(name, kShippedFolder);
    return static_cast<double>(total_parameters(m) - m.vocabulary * m.hidden);
  };
  EXPECT_NEAR(rest("gemma-3-12b"), 10'759e6, 1e6);
  EXPECT_NEAR(rest("gemma-3-27b"), 25'600e6, 1e6);
  EXPECT_EQ(kv_bytes_per_token(load_model_spec("gemma-3-12b", kShippedFolder)), 48LL * 2 * 8 * 256 * 2);
  EXPECT_EQ(kv_bytes_per_token(load_model_spec("gemma-3-27b", kShippedFolder)), 62LL * 2 * 16 * 128 * 2);
}

// The sizes of the paper's table, of which the name is rounded.
TEST(ShippedModels, TheLargestOptHas175Billion) {
  const ModelSpec m = load_model_spec("opt-175b", kShippedFolder);
  EXPECT_NEAR(static_cast<double>(total_parameters(m)), 175e9, 0.5e9);
  EXPECT_EQ(kv_bytes_per_token(m), 96LL * 2 * 12288 * 2);
}

// Billions as the models' reports have them, with the output head and, but for gpt-oss, the embedding.
TEST(ShippedModels, ActiveParametersAreThePublishedOnes) {
  const auto active = [](const char* name) { return static_cast<double>(active_parameters(load_model_spec(name, kShippedFolder))) * 1e-9; };
  EXPECT_NEAR(active("deepseek-v3"), 37, 0.6);
  EXPECT_NEAR(active("kimi-k2"), 32.6, 0.4);
  EXPECT_NEAR(active("qwen3-235b-a22b"), 22, 0.5);
  EXPECT_NEAR(active("gpt-oss-20b") - 201'088 * 2880e-9, 3.61, 0.01);
  EXPECT_NEAR(active("gpt-oss-120b") - 201'088 * 2880e-9, 5.13, 0.01);
  const ModelSpec dense = load_model_spec("llama-3.3-70b", kShippedFolder);
  EXPECT_EQ(active_parameters(dense), total_parameters(dense));
}

// Sizes of checkpoints: DeepSeek-V3's repository has 688.6 GB, of which 14 B parameters of a byte each are for multi-token prediction; the
// gpt-oss report has 60.8 and 12.8 GiB.
TEST(ShippedModels, QuantizedCheckpointsHaveTheirSize) {
  const auto gigabytes = [](const char* name) { return static_cast<double>(weight_bytes(load_model_spec(name, kShippedFolder))) * 1e-9; };
  EXPECT_NEAR(gigabytes("deepseek-v3"), 688.6 - 14, 7);
  EXPECT_NEAR(gigabytes("gpt-oss-120b"), 60.8 * 1.073741824, 0.7);
  EXPECT_NEAR(gigabytes("gpt-oss-20b"), 12.8 * 1.073741824, 0.2);
}

}  // namespace
}  // namespace kvlab
