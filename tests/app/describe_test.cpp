#include "app/commands/describe.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "app/schema/schema.h"
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
    EXPECT_EQ(std::tuple(p["type"], p["unit"], p["default"]), std::tuple("integer", "tokens", "512"));
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

using Json = nlohmann::json;

struct SchemaTest : AppTest {
  SchemaTest() { schema_ = Json::parse(experiment_schema()); }
  // The value that a reference names.
  [[nodiscard]] const Json& target(const Json& value) const {
    if (!value.contains("$ref")) return value;
    return target(schema_.at("$defs").at(value["$ref"].get<std::string>().substr(std::string("#/$defs/").size())));
  }
  // The first of a value's forms, next to lists and variables.
  [[nodiscard]] const Json& form(const Json& value) const { return value.contains("anyOf") ? form(target(value["anyOf"][0])) : value; }
  // The first of a value's forms that is a mapping; null where none is.
  [[nodiscard]] const Json* mapping_in(const Json& value) const {
    const Json& one = target(value);
    if (one.contains("properties") || one.contains("additionalProperties")) return &one;
    if (!one.contains("anyOf")) return nullptr;
    for (const Json& other : one["anyOf"])
      if (const Json* const found = mapping_in(other)) return found;
    return nullptr;
  }
  [[nodiscard]] const Json& mapping_of(const char* key) const {
    const Json* const found = mapping_in(schema_.at("properties").at(key));
    if (found == nullptr) throw std::runtime_error(std::string(key) + " is no mapping");
    return *found;
  }
  // The parameters of a name of a kind.
  [[nodiscard]] const Json& parameters(const std::string& kind, const std::string& name) const {
    const Json& forms = schema_["$defs"]["one." + kind]["anyOf"];
    const Json& named = forms[0].contains("anyOf") ? forms[0]["anyOf"] : forms;  // with `none` beside the names
    return form(named[1]["properties"].at(name));
  }

  Json schema_;
};

TEST_F(SchemaTest, KnowsTheKeysOfEveryKindOfRunAndSearch) {
  EXPECT_EQ(schema_["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema_["additionalProperties"], false);
  for (const char* key :
       {"name",    "seed",    "seeds",  "kind",   "host",         "model",           "hardware",  "trace",     "scheduler", "memory",
        "slo",     "search",  "pools",  "router", "block_caches", "capacity_blocks", "kv_policy", "samples",   "eval",      "question",
        "figures", "backend", "engine", "images", "store",        "transfer",        "system",    "paths_from"})
    EXPECT_TRUE(schema_["properties"].contains(key)) << key;
  for (const char* key : {"schedular", "hidden_size"})
    EXPECT_FALSE(schema_["properties"].contains(key));  // the latter: of the model's file
  const Json& search = mapping_of("search");
  for (const char* key : {"rate", "concurrency", "ramp_s", "replicas", "tp", "at_rate_per_s", "ttft_p99_ms", "e2e_max_ms", "attainment"})
    EXPECT_TRUE(search["properties"].contains(key)) << key;
  EXPECT_FALSE(search["properties"].contains("ttft_p98_ms"));
}

TEST_F(SchemaTest, ParametersHaveTypesRangesAndMeanings) {
  const Json& memory = mapping_of("memory");
  const Json& block = memory["properties"]["block_tokens"];
  EXPECT_EQ(form(block)["type"], "integer");
  EXPECT_EQ(form(block)["minimum"], 1);
  EXPECT_EQ(block["description"], "tokens per KV block [tokens]; default: 16");
  EXPECT_EQ(memory["additionalProperties"], false);
  EXPECT_EQ(form(schema_["properties"]["kind"])["enum"][0], "simulation");
  // A default that follows from the experiment would be wrong in others.
  EXPECT_EQ(schema_["properties"]["name"]["description"], "name of the results folder");
  EXPECT_EQ(mapping_of("kv_policy")["properties"]["allocator"]["description"], "overrides the recipe's allocator");
}

TEST_F(SchemaTest, PoliciesAreNamesOrOneNameWithItsParameters) {
  const Json& forms = schema_["$defs"]["one.scheduler"]["anyOf"];
  EXPECT_NE(std::find(forms[0]["enum"].begin(), forms[0]["enum"].end(), "sarathi"), forms[0]["enum"].end());
  EXPECT_EQ(forms[1]["maxProperties"], 1);
  EXPECT_EQ(form(parameters("scheduler", "sarathi")["properties"]["budget_tokens"])["type"], "integer");
  EXPECT_EQ(schema_["properties"]["scheduler"]["$ref"], "#/$defs/scheduler");
  // Parts may name others of their kind.
  EXPECT_EQ(parameters("scorer", "scope")["properties"]["prompt"]["$ref"], "#/$defs/scorer");
  EXPECT_EQ(parameters("allocator", "ada")["properties"]["layers"]["$ref"], "#/$defs/allocator");
  EXPECT_EQ(mapping_of("kv_policy")["properties"]["scorer"]["$ref"], "#/$defs/scorer");
}

TEST_F(SchemaTest, ParametersOfPoliciesAreThoseThatDescribePrints) {
  const std::map<std::string, std::string> kinds = {{"schedulers", "scheduler"},
                                                    {"orders", "order"},
                                                    {"predictors", "predictor"},
                                                    {"dispatchers", "dispatcher"},
                                                    {"block_caches", "block_cache"}};
  std::vector<Item> items = list_items("kv");
  std::erase_if(items, [](const Item& item) { return item.kind == "recipe"; });
  for (const auto& [listed, kind] : kinds)
    for (Item& item : list_items(listed)) {
      item.kind = kind;
      items.push_back(std::move(item));
    }
  ASSERT_GT(items.size(), 150U);
  for (const Item& item : items) {
    const Json& policy = parameters(item.kind, item.name);
    EXPECT_EQ(policy.at("additionalProperties"), false) << item.name;
    const Json properties = policy.value("properties", Json::object());
    std::set<std::string> described;
    for (const ParamDoc& doc : item.parameters) {
      if (doc.key == "CLIENT") continue;  // a name of the user's, in a mapping of its own
      ASSERT_TRUE(properties.contains(doc.key)) << item.name << " " << doc.key;
      EXPECT_EQ(properties[doc.key].at("description").get<std::string>().find(doc.meaning), 0U) << item.name << " " << doc.key;
      described.insert(doc.key);
    }
    for (const auto& property : properties.items())
      EXPECT_TRUE(described.contains(property.key()) || property.key() == "weights") << item.name << " " << property.key();
  }
}

TEST_F(SchemaTest, SamplesAndProfilesHaveTheirKeys) {
  const Json& sample = form(mapping_of("samples")["additionalProperties"]);
  for (const char* key : {"file", "record", "synthetic"}) EXPECT_TRUE(sample["properties"].contains(key)) << key;
  EXPECT_EQ(sample["additionalProperties"], false);
  EXPECT_TRUE(form(sample["properties"]["record"])["properties"].contains("gradients"));
  EXPECT_EQ(form(form(sample["properties"]["synthetic"])["properties"]["prompt_tokens"])["type"], "integer");
  const Json& profile = schema_["$defs"]["one.profile"]["anyOf"];
  EXPECT_EQ(profile[0]["enum"], Json({"aisimulate", "bundle", "kvlab", "roofline", "vidur"}));
  EXPECT_TRUE(form(profile[1]["properties"]["aisimulate"])["properties"].contains("kv_reads"));
}

TEST_F(SchemaTest, TheCommandPrintsIt) { EXPECT_EQ(Json::parse(call_ok({"schema"}).out), schema_); }

}  // namespace
}  // namespace kvlab
