#include "app/schema/schema.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "app/commands/describe.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

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
