#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "app/commands/command.h"
#include "app/runs/sweep/chosen_runs.h"
#include "base/error.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

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

TEST_F(ShardsTest, AStoppedShardIsMissedAndDoneAgain) {
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
}

TEST_F(ShardsTest, ADamagedRunIsNotTaken) {
  for (const char* which : {"1/2", "2/2"}) ASSERT_EQ(shard(which).status, 0);
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
