// `kvlab results`: listing, one folder's runs, join and clean; and experiments that include results of others.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "app/results/code_version.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

struct ResultsCommandTest : AppTest {
  ResultsCommandTest() {
    write_one();
    write("two.yaml", with_name("two", "scheduler: orca\nseeds: 2\n"));
    for (const char* file : {"one.yaml", "two.yaml"}) call_ok({"run", file, "--quiet"});
  }
  static void write_one(const std::string& more = "") { write("one.yaml", with_name("one", "scheduler: [vllm_v1, sarathi]\n" + more)); }
  static std::string with_name(const std::string& name, const std::string& rest) {
    std::string text = kSmall;
    return text.replace(text.find("small"), 5, name) + rest;
  }
  static std::set<std::string> ids_of(const fs::path& folder) {
    std::set<std::string> ids;
    for (const auto& row : read_csv(folder / "summary.csv").rows) ids.insert(row[0]);
    return ids;
  }
};

TEST_F(ResultsCommandTest, ListsFoldersAndRunsOfOne) {
  const Called called = call_ok({"results", "one"});
  EXPECT_THAT(called.out, has_all({"results/one: simulation, 2 of 2 runs finished", "experiment: one.yaml"}));
  EXPECT_THAT(called.out, ::testing::ContainsRegex("run +scheduler +seed +goodput_per_s"));
  for (const std::string& id : ids_of("results/one")) EXPECT_THAT(called.out, HasSubstr(id));
  EXPECT_EQ(call({"results", "results/one"}).out, called.out);
  EXPECT_THAT(call({"results", "onne"}).err, HasSubstr("there are no results 'onne'; did you mean 'one'?"));
  EXPECT_THAT(call({"results", "one", "two"}).err, HasSubstr("'kvlab results join OUT A B' joins folders"));
  call_ok({"run", "one.yaml", "--quiet", "--set", "scheduler=vllm_v1"});
  fs::create_directories("results/notes");
  const Called folders = call_ok({"results"});
  EXPECT_THAT(folders.out, ::testing::ContainsRegex("one +simulation +1 of 1 +1 +[0-9.]+ KiB"));
  EXPECT_THAT(folders.out, ::testing::ContainsRegex("two +simulation +2 of 2 +[0-9.]+ KiB"));
  EXPECT_THAT(folders.out, HasSubstr("1 other entries of results/ are no results"));
  EXPECT_THAT(folders.out, Not(HasSubstr(" other\n"))) << "they were made by this program";
}

TEST_F(ResultsCommandTest, JoinedFoldersHoldEveryRun) {
  EXPECT_THAT(call_ok({"results", "join", "both", "one", "two"}).out, HasSubstr("joined 4 runs of 2 folders"));
  const CsvTable both = read_csv("results/both/summary.csv");
  ASSERT_EQ(both.rows.size(), 4U);
  EXPECT_EQ((std::vector<std::string>(both.columns.begin(), both.columns.begin() + 4)),
            (std::vector<std::string>{"run", "results", "scheduler", "seed"}));
  EXPECT_EQ(std::tuple(both.rows[0][1], both.rows[0][2]), std::tuple("results/one", "vllm_v1"));
  EXPECT_EQ(both.rows[3][1], "results/two");
  EXPECT_EQ(both.rows[3][2], "orca") << "no axis of two.yaml: taken from the run's resolved.yaml";
  EXPECT_EQ(num_runs("results/both"), 4U);
  EXPECT_EQ(read_csv("results/both/requests.csv").rows.size(), 4U * 60U);
  // A run is the same as where it came from, and can be done again from its place.
  const std::string id = run_id("results/two");
  EXPECT_EQ(read("results/both/runs/" + id + "/requests.csv"), read("results/two/runs/" + id + "/requests.csv"));
  EXPECT_THAT(call({"results", "both"}).out, HasSubstr("simulation, 4 of 4 runs finished"));
  ASSERT_EQ(call({"results", "join", "both", "one", "two"}).status, 0) << "a joined folder may be joined again";
}

TEST_F(ResultsCommandTest, JoiningAgainTakesNewerRuns) {
  call_ok({"results", "join", "both", "one", "two"});
  const fs::path source = run_folder("results/two"), copy = fs::path("results/both/runs") / source.filename();
  auto manifest = nlohmann::json::parse(read(copy / "manifest.json"));
  const nlohmann::json now = manifest["code"];
  manifest["code"]["core"] = "0123456789abcdef";
  write(copy / "manifest.json", manifest.dump());
  call_ok({"results", "join", "both", "one", "two"});
  EXPECT_EQ(nlohmann::json::parse(read(copy / "manifest.json"))["code"], now);
  EXPECT_EQ(read(copy / "requests.csv"), read(source / "requests.csv"));
  EXPECT_EQ(num_runs("results/both"), 4U);
  EXPECT_THAT(call({"results", "join", "both", "one", "both"}).err, HasSubstr("results/both: is the folder to write, and one of"));
  EXPECT_THAT(call({"results"}).out, Not(HasSubstr("stopped")));
}

TEST_F(ResultsCommandTest, WhatCannotBeJoinedIsSaid) {
  EXPECT_THAT(call({"results", "join", "one", "two", "one"}).err, HasSubstr("results/one: is there already, and is no result of"));
  EXPECT_THAT(call({"results", "join", "x", "one"}).err, HasSubstr("two or more to join"));
  write("mrc.yaml", "name: mrc\nkind: block_cache_mrc\ntrace: {file: " KVLAB_SOURCE_DIR
                    "/traces/samples/mooncake_like.jsonl.gz, format: mooncake, block_size: 512}\nblock_tokens: 512\nblock_caches: [lru]\n"
                    "capacity_blocks: [250]\n");
  call_ok({"run", "mrc.yaml", "--quiet"});
  EXPECT_THAT(call({"results", "join", "x", "one", "mrc"}).err, HasSubstr("only runs of one kind can be joined"));
  // One run in two folders, which differ: the first is taken, and it is said.
  call_ok({"run", "one.yaml", "--out", "results/again", "--quiet"});
  EXPECT_THAT(call({"results", "join", "x", "one", "again"}).out,
              HasSubstr("2 runs are in more than one folder, with one row each\njoined 2 runs of 2 folders"));
  const fs::path manifest = run_folder("results/again") / "manifest.json";
  std::string text = read(manifest);
  const std::size_t at = text.find("\"summary.csv\": \"") + 16;
  text[at] = text[at] == '1' ? '2' : '1';
  write(manifest, text);
  EXPECT_THAT(call({"results", "join", "x", "one", "again"}).out, HasSubstr("differ; the first is taken"));
  write(manifest, "{");
  EXPECT_THAT(call({"results", "join", "x", "one", "again"}).out, HasSubstr("1 run of results/again is damaged or gone and is left out\n"));
}

TEST_F(ResultsCommandTest, CleansAsKvlabClean) {
  call_ok({"run", "one.yaml", "--quiet", "--set", "scheduler=vllm_v1"});
  EXPECT_EQ(num_runs("results/one"), 2U);
  EXPECT_EQ(call({"results", "clean", "one"}).out, call({"clean", "results/one"}).out);
  EXPECT_THAT(call({"results", "clean", "one", "--yes"}).out, HasSubstr("scheduler=sarathi"));
  EXPECT_EQ(num_runs("results/one"), 1U);
}

TEST_F(ResultsCommandTest, AnExperimentIncludesRunsOfOthers) {
  const std::string alone = read("results/one/summary.csv");
  const std::set<std::string> own = ids_of("results/one");
  write_one("include_results: [results/two]\n");
  EXPECT_THAT(call_ok({"run", "one.yaml"}).out, HasSubstr("2 of 2 runs were there already")) << "included results change no run";
  const CsvTable summary = read_csv("results/one/summary.csv");
  ASSERT_EQ(summary.rows.size(), 4U);
  EXPECT_EQ(std::tuple(text(summary, "results"), text(summary, "results", 2), text(summary, "scheduler", 2), text(summary, "seed", 3)),
            std::tuple("one", "results/two", "orca", "2"));
  EXPECT_EQ(read_csv("results/one/requests.csv").rows.size(), 4U * 60U);
  EXPECT_EQ(num_runs("results/one"), 2U) << "their files stay where they are";
  const auto manifest = nlohmann::json::parse(read("results/one/manifest.json"));
  EXPECT_EQ(std::tuple(manifest["runs"].size(), manifest["runs"][3]["state"]), std::tuple(4U, "included"));
  // Its own runs are exported and joined, and a line names the others.
  EXPECT_THAT(call({"export", "results/one", "--format", "inferencex"}).out,
              HasSubstr("2 runs of results/one are of results that it includes"));
  EXPECT_EQ(nlohmann::json::parse(read("results/one/export/inferencex/inferencex.json")).size(), 2U);
  const Called joined = call({"results", "join", "both", "one", "two"});
  EXPECT_THAT(joined.out, HasSubstr("2 runs of results/one are of results that it includes")) << joined.err;
  EXPECT_THAT(joined.out, HasSubstr("joined 4 runs of 2 folders"));
  // Without the key the tables are those of before.
  write_one();
  call_ok({"run", "one.yaml", "--quiet"});
  EXPECT_EQ(read("results/one/summary.csv"), alone);
  EXPECT_EQ(ids_of("results/one"), own);
}

TEST_F(ResultsCommandTest, IncludedResultsThatCannotBeAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"[results/three]",
       "one.yaml:10:19: 'include_results': there are no results in 'results/three': 'kvlab run FILE.yaml --out results/three' makes them"},
      {"[results/one]", "is this experiment's own results folder"},
      {"{a: b}", "is a list of results folders"}};
  for (const auto& [included, message] : cases) {
    write_one(std::string("include_results: ") + included + "\n");
    EXPECT_THAT(call({"run", "one.yaml"}).err, HasSubstr(message));
  }
  // A shard has its own runs alone; merging includes the others.
  write_one("include_results: [results/two]\n");
  for (const char* shard : {"1/2", "2/2"}) call_ok({"run", "one.yaml", "--shard", shard, "--out", "results/s", "--quiet"});
  EXPECT_EQ(read_csv("results/s.shards/1-of-2/summary.csv").rows.size(), 1U);
  call_ok({"merge", "one.yaml", "--out", "results/s", "--quiet"});
  EXPECT_EQ(read_csv("results/s/summary.csv").rows.size(), 4U);
}

// The version of the code that a run depends on.

TEST(CodeVersionTest, ARunDependsOnTheCoreAndItsPolicies) {
  const std::vector<SourceFile> table = {
      {"base/text.cpp", "a1"}, {"policies/scheduler/orca.cpp", "b1", true}, {"policies/scheduler/sarathi.cpp", "c1", true}};
  const std::set<std::string> orca{"/some/where/policies/scheduler/orca.cpp"}, sarathi{"../policies/scheduler/sarathi.cpp"};
  const auto with = [&](std::size_t edited) {
    std::vector<SourceFile> other = table;
    other[edited].hash = "edited";
    return other;
  };
  const CodeVersion before = code_version(orca, table, "gcc");
  EXPECT_EQ(changed_code(before, code_version(orca, with(2), "gcc")), "");
  EXPECT_EQ(changed_code(before, code_version(orca, with(1), "gcc")), "policies/scheduler/orca.cpp");
  EXPECT_EQ(changed_code(before, code_version(orca, with(0), "gcc")), "core");
  EXPECT_EQ(changed_code(before, code_version(orca, table, "clang")), "core");
  EXPECT_EQ(changed_code(code_version(sarathi, table, "gcc"), code_version(sarathi, with(1), "gcc")), "");
}

// A policy in Python, say. Only runs that make it depend on it.
TEST(CodeVersionTest, SourcesGivenToTheRunningProgramCount) {
  const std::set<std::string> uses{"running:code_version_test"};
  set_running_source("running:code_version_test", "return 1");
  const CodeVersion before = code_version(uses);
  EXPECT_EQ(changed_code(code_version({}), before), "running:code_version_test");
  const std::string line = running_sources();
  set_running_source("running:code_version_test", "return 2");
  EXPECT_EQ(changed_code(before, code_version(uses)), "running:code_version_test");
  EXPECT_NE(running_sources(), line);
  set_running_source("running:code_version_test", "return 1");
  EXPECT_EQ(changed_code(before, code_version(uses)), "");
  EXPECT_EQ(running_sources(), line);
}

TEST(CodeVersionTest, EverySourceThatRegistersPoliciesAloneIsOne) {
  std::map<std::string_view, bool> table;
  for (const SourceFile& source : source_table()) table[source.path] = source.is_policy;
  EXPECT_GT(table.size(), 500U);
  for (const char* policy : {"policies/scheduler/orca.cpp", "policies/kv/scorer/key_norm.cpp", "policies/block_cache/lru.cpp"})
    EXPECT_TRUE(table.at(policy)) << policy;
  for (const char* core : {"base/text.cpp", "policies/kv/recipe/recipe.cpp", "policies/kv/scorer/scorer_wrapper.h", "app/main.cpp"})
    EXPECT_FALSE(table.at(core)) << core;
}

}  // namespace
}  // namespace kvlab
