#include "app/commands/describe.h"

#include <nlohmann/json.hpp>

#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/hugging_face.h"
#include "sim/cost/model_file.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

using DescribeTest = AppTest;

TEST_F(DescribeTest, EveryKindHasItemsAndEveryPolicyDescribesItself) {
  for (const std::string& kind : list_kinds()) {
    if (kind == "experiments") continue;  // those of the working directory
    const auto items = nlohmann::json::parse(call_ok({"list", kind, "--json"}).out);
    EXPECT_FALSE(items.empty()) << kind;
    for (const auto& item : items) {
      EXPECT_FALSE(item["name"].get<std::string>().empty());
      EXPECT_FALSE(item["summary"].get<std::string>().empty()) << item;
      if (left_out_of_short_run(item["name"])) continue;
      EXPECT_TRUE(nlohmann::json::accept(call_ok({"describe", item["name"], "--json"}).out));
      EXPECT_EQ(call({"describe", item["name"]}).status, 0);
    }
  }
}

TEST_F(DescribeTest, ParametersHaveUnitsRangesAndDefaults) {
  const auto sarathi = nlohmann::json::parse(call({"describe", "sarathi", "--json"}).out);
  EXPECT_EQ(sarathi["kind"], "schedulers");
  bool found = false;
  for (const auto& p : sarathi["parameters"]) {
    if (p["key"] != "budget_tokens") continue;
    found = true;
    EXPECT_EQ(p["type"], "integer");
    EXPECT_EQ(p["unit"], "tokens");
    EXPECT_EQ(p["default"], "512");
    EXPECT_FALSE(p["meaning"].get<std::string>().empty());
  }
  EXPECT_TRUE(found);
}

// Counts that only data tells are stated as a bound, and a share in tokens of the example's prompt.
TEST_F(DescribeTest, ABoundIsCalledOne) {
  const std::string kvzip = call({"describe", "kvzip"}).out, snapkv = call({"describe", "snapkv"}).out;
  EXPECT_THAT(kvzip, has_all({"budget: 0.3 of the prompt, 2457 of 8192 tokens", "holds then: at most "}));
  EXPECT_THAT(snapkv, HasSubstr("holds then: 12.6 %"));
}

// Memory of a prompt as it is described and as serving counts it, up to a page per row, and to the longest residual window of packed ones.
TEST_F(DescribeTest, ServingHoldsWhatIsDescribed) {
  constexpr ModelShape kLlama{32, 32, 8, 128, 4096, 2, 5e5};
  constexpr std::int32_t kPrompt = 8192, kBlock = 16;
  const double full = 4.0 * kPrompt * kLlama.num_layers * kLlama.kv_heads * kLlama.head_dim;
  for (const char* name : {"minicache", "d2o", "snapkv", "h2o", "pyramidkv", "cake", "adakv", "simlayerkv", "mikv", "kivi2", "full"}) {
    const std::string text = call({"describe", name}).out, begin = "holds then: ";
    std::string share = text.substr(text.find(begin) + begin.size());
    if (share.starts_with("at most ")) share = share.substr(8);
    RecipeFootprint footprint(load_recipe(name), kLlama, kBlock);
    const FootprintStep done = footprint.step(SeqState{0, kPrompt, 0, 0, false, false}.taking(kPrompt));
    const double token = recipe_pages(load_recipe(name), kLlama, kBlock).token_bytes;
    const double pages = token * kBlock / (kLlama.num_layers * kLlama.kv_heads) * static_cast<double>(done.kept_pages);
    EXPECT_NEAR(std::stod(share), 100 * (pages + (done.leaves_hashed ? 0 : token * kPrompt)) / full, done.leaves_hashed ? 0.3 : 1.0)
        << name;
    EXPECT_TRUE(name != std::string("minicache") || std::abs(std::stod(share) - 76.7) <= 0.1) << share;
  }
}

// Weights and KV of a config.json, by its file or its folder, as 'model:' takes it.
TEST_F(DescribeTest, AModelByItsPath) {
  write("M/config.json", R"({"model_type": "mixtral", "quantization_config": {"quant_method": "fp8"}})");
  const Called folder = call_ok({"describe", "M"}), file = call({"describe", "M/config.json"});
  EXPECT_EQ(folder.out, file.out);
  EXPECT_THAT(folder.out, has_all({"M (models)", "parameters: 46.703 B", "weights: 46.97 GB", "quantized by fp8",
                                   "KV bytes per token: 131072 in bfloat16", "32 with 8 experts of 14336, 2 per token",
                                   "weights of experts: 8 bits, computed in fp8"}));
  write("M/config.json", R"({"model_type": "bert"})");
  EXPECT_THAT(error_of_call({"describe", "M"}), HasSubstr("config.json:1:16: model_type 'bert' is not priced"));
}

TEST_F(DescribeTest, ABadFileIsListedAsBad) {
  write("profiles/models/good.yaml", "model_type: llama\n");
  write("profiles/models/bad.yaml", "hidden_size: many\n");
  write("profiles/hardware/bad.yaml", "source: [\n");
  setenv("KVLAB_PROFILES", "profiles", 1);
  EXPECT_THAT(call_ok({"list", "models"}).out, has_all({"good", "cannot be used: "}));
  call_ok({"list", "hardware"});
  EXPECT_THAT(call_ok({"describe", "good"}).out, HasSubstr("6.738 B"));
}

TEST(UnitOf, Suffixes) {
  const std::pair<const char*, const char*> cases[] = {{"ttft_ms", "ms"}, {"swap_bytes_per_s", "bytes/s"}, {"rate_per_s", "1/s"},
                                                       {"after_s", "s"},  {"watermark_frac", "share"},     {"max_num_seqs", ""}};
  for (const auto& [key, unit] : cases) EXPECT_EQ(unit_of(key), unit);
}

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
