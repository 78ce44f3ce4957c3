#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/hugging_face.h"
#include "sim/cost/model_file.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

using ::testing::EndsWith;

const std::string kHubModel = "cache/hub/models--acme--Tiny-1B-Instruct";

// A local cache of the hub, laid out as huggingface_hub does.
struct HubModelsTest : SmallTest {
  HubModelsTest() {
    ::unsetenv("HF_HUB_CACHE");
    ::setenv("HF_HOME", "cache", 1);
  }
  ~HubModelsTest() override { ::unsetenv("HF_HOME"); }
  static void put(const std::string& snapshot, const std::string& name, const std::string& text) {
    write(kHubModel + "/snapshots/" + snapshot + "/" + name, text);
  }
  static FoundModel find(const std::string& id) { return find_model_file(id, profiles_folder() + "/models"); }
};

const char* const kConfig =
    R"({"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 4096, "torch_dtype": "bfloat16"})";

TEST_F(HubModelsTest, ShippedModelsHaveIds) {
  EXPECT_THAT(find("meta-llama/Llama-3.1-8B-Instruct").file, EndsWith("/models/llama-3.1-8b.yaml"));
  EXPECT_EQ(find("meta-llama/Llama-3.1-8B").remark, "meta-llama/Llama-3.1-8B is llama-3.1-8b.yaml of profiles/models");
  // Its config.json has other positions than that of the base model.
  EXPECT_THAT(find("Qwen/Qwen2.5-7B-Instruct").file, EndsWith("/models/qwen2.5-7b.yaml"));
  EXPECT_THAT(find("Qwen/Qwen2.5-7B-Instruct").remark, HasSubstr("by its name: its own config.json may differ"));
}

TEST_F(HubModelsTest, EveryIdOfTheTableNamesAShippedModel) {
  const auto table = load_config(KVLAB_SOURCE_DIR "/profiles/hugging_face.yaml");
  std::set<std::string> seen;
  for (const auto& model : table->root) {
    EXPECT_TRUE(fs::exists(profiles_folder() + "/models/" + model.first.Scalar() + ".yaml")) << model.first.Scalar();
    for (const auto& id : model.second) EXPECT_TRUE(seen.insert(id.Scalar()).second) << id.Scalar();
  }
}

TEST_F(HubModelsTest, OtherIdsAreReadFromTheLocalCache) {
  EXPECT_THAT(error_of([] { find("acme/Tiny-1B-Instruct"); }), HasSubstr("type 'hf download acme/Tiny-1B-Instruct --include config.json'"));
  put("bbb", "config.json", kConfig);
  EXPECT_THAT(find("acme/Tiny-1B-Instruct").file, EndsWith("/snapshots/bbb/config.json"));
  put("aaa", "config.json", kConfig);
  write(kHubModel + "/refs/main", "aaa\n");
  EXPECT_THAT(find("acme/Tiny-1B-Instruct").file, EndsWith("/snapshots/aaa/config.json"));
  EXPECT_EQ(model_title(cached_snapshot("acme/Tiny-1B-Instruct")), "Tiny-1B-Instruct");
}

TEST_F(HubModelsTest, ARunSaysWhichFileItRead) {
  put("aaa", "config.json", kConfig);
  EXPECT_THAT(call_ok({"run", "small.yaml", "--set", "model=acme/Tiny-1B-Instruct", "--out", "a"}).out,
              HasSubstr("model: acme/Tiny-1B-Instruct is read from cache/hub/models--acme--Tiny-1B-Instruct/snapshots/aaa/"));
  EXPECT_THAT(read("a/manifest.json"), HasSubstr("snapshots/aaa/config.json"));  // among the inputs whose change makes the run old
  EXPECT_EQ(call({"run", "small.yaml", "--set", "model=meta-llama/Llama-3.1-8B", "--out", "b"}).status, 0);
}

TEST_F(HubModelsTest, WeightsOfTheEngineComeFromTheCache) {
  EXPECT_EQ(weights_folder("cache"), "cache");
  put("aaa", "config.json", kConfig);
  EXPECT_THAT(error_of([] { weights_folder("acme/Tiny-1B-Instruct"); }),
              HasSubstr("has no safetensors; for a model of Hugging Face type 'hf download acme/Tiny-1B-Instruct'"));
  put("aaa", "model.safetensors", "");
  EXPECT_THAT(weights_folder("acme/Tiny-1B-Instruct"), EndsWith("/snapshots/aaa"));
}

TEST_F(HubModelsTest, GatedOrganisationsAskForAccess) {
  EXPECT_THAT(
      hub_advice("meta-llama/Llama-3.2-1B", true),
      HasSubstr("'hf download meta-llama/Llama-3.2-1B', after asking for access on https://huggingface.co/meta-llama/Llama-3.2-1B"));
  EXPECT_EQ(hub_advice("acme/Tiny", true), "; for a model of Hugging Face type 'hf download acme/Tiny'");
  EXPECT_EQ(hub_advice("llama-3.1-8b", true), "");
}

}  // namespace
}  // namespace kvlab
