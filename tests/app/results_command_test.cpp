// `kvlab results`: listing, one folder's runs, join and clean; and experiments that include results of others.
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "app/commands/command.h"
#include "app/results/code_version.h"
#include "app/runs/sweep/chosen_runs.h"
#include "base/error.h"
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

TEST(Shard, ReadsIOfN) {
  EXPECT_EQ(std::tuple(parse_shard("2/4").index, parse_shard("2/4").count), std::tuple(2U, 4U));
  for (const char* wrong : {"", "2", "0/4", "5/4", "1/0", "-1/4", "1/-4", "1/4/2", "a/b", "1.5/4", "1/1000000"})
    EXPECT_THROW(parse_shard(wrong), InputError) << wrong;
}

TEST(Shard, EachRunIsInOneShard) {
  std::vector<std::string> ids;
  for (int i = 0; i < 103; ++i) ids.push_back("id" + std::to_string(i * 7919 % 101));  // 101 different ones
  std::multiset<std::size_t> all;
  std::map<std::string, std::set<std::uint32_t>> shards_of;
  for (std::uint32_t index = 1; index <= 4; ++index) {
    const std::vector<std::size_t> places = places_of_shard(ids, {index, 4});
    EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));
    EXPECT_TRUE(places.size() >= 25 && places.size() <= 28) << places.size();
    for (const std::size_t i : places) all.insert(i), shards_of[ids[i]].insert(index);
  }
  EXPECT_EQ(all.size(), ids.size());
  EXPECT_EQ(std::set<std::size_t>(all.begin(), all.end()).size(), ids.size());
  for (const auto& [id, shards] : shards_of) EXPECT_EQ(shards.size(), 1U) << id;
}

// Every file of a results folder's runs and its tables: path -> text, without times of day and of work.
std::map<std::string, std::string> content_of(const fs::path& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || name.starts_with(".") || entry.path() == folder / "manifest.json") continue;
    std::string text = read_if_there(entry.path());
    if (name == "manifest.json") {
      auto manifest = nlohmann::ordered_json::parse(text);
      manifest.erase("wall_s");
      text = manifest.dump(2);
    }
    all[entry.path().lexically_relative(folder).string()] = text;
  }
  return all;
}

struct ShardsTest : AppTest {
  ShardsTest() { write("e.yaml", std::string(kSmall) + "scheduler: [sarathi, vllm_v1, orca]\nseeds: 3\n"); }
  static Called shard(const std::string& which) { return call({"run", "e.yaml", "--shard", which, "--out", "parts/e", "--quiet"}); }
};

TEST_F(ShardsTest, MergedEqualOneProgramsResults) {
  call_ok({"run", "e.yaml", "--out", "whole/e", "--quiet"});
  for (const char* which : {"1/4", "2/4", "3/4", "4/4"}) ASSERT_EQ(shard(which).status, 0);
  EXPECT_FALSE(fs::exists("parts/e"));
  call_ok({"merge", "e.yaml", "--out", "parts/e"});
  EXPECT_EQ(content_of("parts/e"), content_of("whole/e"));
  EXPECT_EQ(num_runs("parts/e"), 9U);
  // A merged result is like any other: the sweep itself finds nothing to do.
  EXPECT_THAT(call({"run", "e.yaml", "--out", "parts/e"}).out, HasSubstr("9 of 9 runs were there already"));
}

TEST_F(ShardsTest, AStoppedShardOrADamagedRunIsMissedAndDoneAgain) {
  for (const char* which : {"1/2", "2/2"}) ASSERT_EQ(shard(which).status, 0);
  call({"merge", "parts/e", "--quiet"});
  const std::map<std::string, std::string> before = content_of("parts/e");
  fs::remove_all("parts/e");
  fs::remove_all(fs::directory_iterator("parts/e.shards/2-of-2/runs")->path());  // as if the shard had been killed before
  EXPECT_THAT(error_of_call({"merge", "parts/e"}, {}, 1), HasSubstr("1 of 9 runs are missing, the first scheduler="));
  EXPECT_EQ(read_csv("parts/e/summary.csv").rows.size(), 8U);
  ASSERT_EQ(shard("2/2").status, 0);
  call_ok({"merge", "parts/e"});
  EXPECT_EQ(content_of("parts/e"), before);
  fs::remove_all("parts/e");
  const fs::path run = fs::directory_iterator("parts/e.shards/1-of-2/runs")->path();
  write(run / "requests.csv", "run,request\n");
  EXPECT_THAT(error_of_call({"merge", "parts/e", "--quiet"}, {}, 1), HasSubstr("1 of 9 runs are missing"));
}

TEST_F(ShardsTest, MoreShardsThanRuns) {
  std::size_t empty = 0;
  for (int i = 1; i <= 12; ++i) {
    const Called called = shard(std::to_string(i) + "/12");
    EXPECT_EQ(called.status, 0) << called.err;
    empty += called.out.find("this shard has no runs") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(empty, 3U);
  EXPECT_EQ(call({"merge", "parts/e", "--quiet"}).status, 0);
}

TEST_F(ShardsTest, Mistakes) {
  EXPECT_THAT(shard("5/4").err, HasSubstr("--shard '5/4': write I/N"));
  EXPECT_THAT(call({"merge", "e.yaml"}).err, HasSubstr("results/small.shards: there are no shards: 'kvlab run FILE.yaml --shard 1/4'"));
  fs::create_directories("whole/e");
  EXPECT_THAT(call({"merge", "whole/e"}).err, HasSubstr("whole/e: there is no folder 'whole/e.shards' of shards"));
  ASSERT_EQ(shard("1/2").status, 0);
  EXPECT_THAT(call({"merge", "e.yaml", "parts/e.shards"}).err, HasSubstr("parts/e.shards: is no results folder of kvlab"));
  EXPECT_THAT(call({"submit", "e.yaml"}).err, HasSubstr("--slurm is required"));
  // Other runs than the merged experiment has.
  EXPECT_EQ(call({"merge", "e.yaml", "--set", "scheduler=fastgen", "--out", "parts/e", "--quiet"}).status, 1);
}

TEST_F(ShardsTest, SubmitPrintsAJobArray) {
  EXPECT_THAT(call_ok({"submit", "e.yaml", "--slurm", "--shards", "3", "--sbatch=--partition=long", "--set", "seeds=2"}).out,
              has_all({"#!/bin/bash\n#SBATCH --job-name=kvlab-small\n", "#SBATCH --partition=long\n", "#SBATCH --array=1-3\n",
                       "--set 'seeds=2' --out 'results/small' --shard \"$SLURM_ARRAY_TASK_ID/3\"", "merge 'e.yaml'"}));
  const SlurmScripts scripts = slurm_scripts({"it's.yaml", "out", {}, {}, 2, 1, true, false}, "n", "/a b", "/p/kvlab");
  EXPECT_THAT(scripts.array, HasSubstr("cd '/a b' || exit 1\nexec '/p/kvlab' run 'it'\\''s.yaml' --out 'out' --shard"));
}

}  // namespace
}  // namespace kvlab
