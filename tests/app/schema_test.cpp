#include "app/schema/schema.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

using Json = nlohmann::json;

class SchemaTest : public AppTest {
 protected:
  void SetUp() override {
    AppTest::SetUp();
    schema_ = Json::parse(experiment_schema());
  }
  // The first of a value's forms, next to lists and variables.
  static const Json& form(const Json& value) { return value.contains("anyOf") ? value["anyOf"][0] : value; }

  Json schema_;
};

TEST_F(SchemaTest, KnowsTheKeysOfEveryKindOfRun) {
  EXPECT_EQ(schema_["$schema"], "https://json-schema.org/draft/2020-12/schema");
  EXPECT_EQ(schema_["additionalProperties"], false);
  for (const char* key :
       {"name",    "seed",    "seeds",  "kind",   "host",         "model",           "hardware",  "trace",     "scheduler", "memory",
        "slo",     "search",  "pools",  "router", "block_caches", "capacity_blocks", "kv_policy", "samples",   "eval",      "question",
        "figures", "backend", "engine", "images", "store",        "transfer",        "system",    "paths_from"})
    EXPECT_TRUE(schema_["properties"].contains(key)) << key;
  EXPECT_FALSE(schema_["properties"].contains("schedular"));
  EXPECT_FALSE(schema_["properties"].contains("hidden_size"));  // of the model's file
}

TEST_F(SchemaTest, ParametersHaveTypesRangesAndMeanings) {
  const Json& memory = form(schema_["properties"]["memory"]);
  const Json& block = memory["properties"]["block_tokens"];
  EXPECT_EQ(form(block)["type"], "integer");
  EXPECT_EQ(form(block)["minimum"], 1);
  EXPECT_EQ(block["description"], "tokens per KV block [tokens]; default: 16");
  EXPECT_EQ(memory["additionalProperties"], false);
  const Json& kind = form(schema_["properties"]["kind"]);
  EXPECT_EQ(kind["enum"][0], "simulation");
}

TEST_F(SchemaTest, SearchesOverEveryQuantityAreKnown) {
  const Json& search = form(schema_["properties"]["search"]);
  for (const char* key : {"rate", "concurrency", "ramp_s", "replicas", "tp", "at_rate_per_s", "ttft_p99_ms", "e2e_max_ms", "attainment"})
    EXPECT_TRUE(search["properties"].contains(key)) << key;
  EXPECT_FALSE(search["properties"].contains("ttft_p98_ms"));
}

TEST_F(SchemaTest, PoliciesAreNamesOrOneNameWithItsParameters) {
  const Json& forms = schema_["$defs"]["scheduler"]["anyOf"][0]["anyOf"];
  EXPECT_NE(std::find(forms[0]["enum"].begin(), forms[0]["enum"].end(), "sarathi"), forms[0]["enum"].end());
  const Json& sarathi = forms[1]["properties"]["sarathi"]["anyOf"][0];
  EXPECT_EQ(form(sarathi["properties"]["budget_tokens"])["type"], "integer");
  EXPECT_EQ(sarathi["additionalProperties"], false);
  EXPECT_EQ(forms[1]["maxProperties"], 1);
}

TEST_F(SchemaTest, TheCommandPrintsIt) {
  const Called called = call({"schema"});
  EXPECT_EQ(called.status, 0) << called.err;
  EXPECT_EQ(Json::parse(called.out), schema_);
}

}  // namespace
}  // namespace kvlab
