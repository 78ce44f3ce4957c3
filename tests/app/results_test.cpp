// A results folder keeps finished runs, and files that are not kvlab's.
#include "app/results/results.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "app/results/run_files.h"
#include "app/results/run_folder.h"
#include "app/runs/plan/input_files.h"
#include "app/runs/sweep/experiment.h"
#include "app/runs/sweep/run_publisher.h"
#include "base/error.h"
#include "tests/app/app_fixture.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

// A trace of one request.
constexpr const char* kOneRequest = "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n";

struct ResultsTest : AppTest {
  ResultsTest() { write("small.yaml", std::string(kSmall) + "scheduler: [vllm_v1, sarathi]\n"); }
  // Status 0; returns how many runs were done.
  static int done(const std::vector<std::string>& arguments) {
    const Called called = call_ok({"run"}, arguments);
    const std::size_t at = called.out.find("wrote ") + 6;
    const fs::path folder = called.out.substr(at, called.out.find('\n', at) - at);
    const auto manifest = nlohmann::json::parse(read(folder / "manifest.json"));
    std::set<std::string> ids;
    for (const auto& run : manifest["runs"])
      if (run["state"] == "done") ids.insert(run["run"].get<std::string>());
    return static_cast<int>(ids.size());
  }
  static std::string refused(const std::vector<std::string>& arguments) { return error_of_call({"run"}, arguments); }
  // Names and bytes of all files below a folder.
  static std::map<std::string, std::string> contents(const fs::path& folder) {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_regular_file()) all[entry.path().lexically_relative(folder).string()] = read(entry.path());
    return all;
  }
};

TEST_F(ResultsTest, OtherValuesAndAxesAddRunsAndTakeNoneAway) {
  EXPECT_EQ(done({"small.yaml"}), 2);
  const std::string summary = read("results/small/summary.csv");
  const auto runs = contents("results/small/runs");
  EXPECT_EQ(done({"small.yaml", "--set", "scheduler=[orca, vllm_v0]"}), 2);
  EXPECT_EQ(done({"small.yaml", "--set", "memory.num_blocks=500"}), 2);
  write("small.yaml", std::string(kSmall) + "scheduler: [sarathi, fastgen]\n");  // an edited axis
  EXPECT_EQ(done({"small.yaml"}), 1);
  EXPECT_EQ(num_runs("results/small"), 7U);
  write("small.yaml", std::string(kSmall) + "scheduler: [vllm_v1, sarathi]\n");
  EXPECT_EQ(done({"small.yaml"}), 0);
  EXPECT_EQ(read("results/small/summary.csv"), summary);
  for (const auto& [name, bytes] : runs) EXPECT_EQ(read("results/small/runs/" + name), bytes) << name;
}

TEST_F(ResultsTest, ARunIsTheSameInEverySweep) {
  ASSERT_EQ(done({"small.yaml", "--out", "a"}), 2);
  ASSERT_EQ(done({"small.yaml", "--out", "b", "--set", "scheduler=[orca, sarathi]", "--set", "memory.num_blocks=[600, 500]"}), 4);
  std::size_t shared = 0;
  for (const auto& [name, bytes] : contents("b/runs")) {
    if (!fs::exists("a/runs/" + name) || name.ends_with("manifest.json")) continue;
    EXPECT_EQ(read("a/runs/" + name), bytes) << name;
    ++shared;
  }
  EXPECT_EQ(shared, 4U);  // sarathi's tables and configuration
  const CsvTable summary = read_csv("b/summary.csv");
  EXPECT_EQ(std::tuple(summary.columns[1], summary.columns[2], summary.columns[3]), std::tuple("memory.num_blocks", "scheduler", "seed"));
}

TEST_F(ResultsTest, PointsOfTheGridThatAreOneRunShareIt) {
  EXPECT_EQ(done({"small.yaml", "--set", "scheduler=[sarathi, vllm_v1, sarathi]"}), 2);
  const CsvTable summary = read_csv("results/small/summary.csv");
  ASSERT_EQ(summary.rows.size(), 3U);
  EXPECT_EQ(summary.rows[0][0], summary.rows[2][0]);
  EXPECT_EQ(read_csv("results/small/requests.csv").rows.size(), 120U);
  EXPECT_EQ(done({"small.yaml", "--set", "scheduler=[sarathi, vllm_v1, sarathi]"}), 0);
}

TEST_F(ResultsTest, AFolderOfAnotherExperimentIsRefused) {
  write("b/small.yaml", std::string(kSmall) + "scheduler: orca\n");
  ASSERT_EQ(done({"small.yaml"}), 2);
  const auto before = contents("results/small");
  EXPECT_THAT(refused({"b/small.yaml"}), HasSubstr("belongs to another experiment, small.yaml: choose another folder with --out"));
  EXPECT_THAT(refused({"b/small.yaml", "--out", "results/small"}), HasSubstr("--out results/small --join"));
  EXPECT_THAT(refused({"b/small.yaml", "--join"}), HasSubstr("--out"));
  EXPECT_EQ(contents("results/small"), before);
  EXPECT_EQ(done({"b/small.yaml", "--out", "results/small", "--join"}), 1);
  EXPECT_EQ(num_runs("results/small"), 3U);
  EXPECT_EQ(done({"small.yaml"}), 0);
  fs::rename("small.yaml", "renamed.yaml");  // nothing of that name is left that could own it
  EXPECT_EQ(done({"renamed.yaml"}), 0);
  refused({"b/small.yaml"});
}

TEST_F(ResultsTest, AFolderThatIsNotKvlabsIsRefusedAndStaysAsItIs) {
  write("out/runs/jan01/weights.pt", "weights");
  write("out/requests.csv", kOneRequest);
  write("own.yaml",
        "model: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\ntrace: {file: out/requests.csv, format: mooncake, block_size: 512}\n");
  const auto before = contents("out");
  for (const char* file : {"small.yaml", "own.yaml"})
    EXPECT_THAT(refused({file, "--out", "out"}), HasSubstr("out: holds files and is no results folder of kvlab"));
  refused({"small.yaml", "--out", "."});
  EXPECT_EQ(call({"clean", "out", "--yes"}).status, 2);
  EXPECT_EQ(contents("out"), before);
  fs::create_directories("empty");
  EXPECT_EQ(done({"small.yaml", "--out", "empty"}), 2);
}

TEST_F(ResultsTest, FilesThatAreNotKvlabsStay) {
  ASSERT_EQ(done({"small.yaml"}), 2);
  const fs::path out = "results/small";
  const std::vector<std::string> own{"trace.json",     "steps.csv", "answers.csv",   "validation.csv",
                                     "throughput.csv", "notes.txt", "runs/notes.txt"};
  for (const std::string& name : own) write(out / name, "mine");
  write(out / "runs/jan01/manifest.json", "{}");
  write(run_folder(out) / "notes.txt", "mine");
  EXPECT_EQ(done({"small.yaml", "--force"}), 2);
  EXPECT_EQ(done({"small.yaml", "--set", "scheduler=orca"}), 1);
  EXPECT_EQ(call({"clean", "results/small", "--yes"}).status, 0);
  for (const std::string& name : own) EXPECT_EQ(read(out / name), "mine") << name;
  EXPECT_EQ(read(out / "runs/jan01/manifest.json"), "{}");
  std::size_t notes = 0;
  for (const auto& [name, bytes] : contents(out / "runs")) notes += name.ends_with("/notes.txt") && bytes == "mine" ? 1 : 0;
  EXPECT_EQ(notes, 1U);  // beside a run that was done again, and taken away
  // One that the sweep would write is in its way.
  write(out / "requests.csv", "mine");
  EXPECT_THAT(refused({"small.yaml"}), HasSubstr("results/small/requests.csv: was not written by kvlab, or was changed since"));
  refused({"small.yaml", "--set", "output.perfetto=true", "--set", "scheduler=orca"});
  EXPECT_EQ(read(out / "requests.csv"), "mine");
}

TEST_F(ResultsTest, AnInputInTheResultsFolderIsNotReplaced) {
  ASSERT_EQ(done({"small.yaml", "--out", "out"}), 2);
  write("own.yaml",
        "model: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\ntrace: {file: out/requests.csv, format: mooncake, block_size: 512}\n");
  write("out/requests.csv", kOneRequest);
  const std::string trace = read("out/requests.csv");
  EXPECT_THAT(refused({"own.yaml", "--out", "out", "--join"}), HasSubstr("out/requests.csv: is read by the experiment"));
  EXPECT_EQ(read("out/requests.csv"), trace);
}

TEST_F(ResultsTest, LinksAreNotFollowed) {
  write("precious/summary.csv", "mine");
  fs::create_directory_symlink("precious", "linked");
  EXPECT_THAT(refused({"small.yaml", "--out", "linked"}), HasSubstr("linked: is a symbolic link"));
  ASSERT_EQ(done({"small.yaml", "--out", "out"}), 2);
  const fs::path run = run_folder("out");
  fs::remove_all(run);
  fs::create_directory_symlink(fs::absolute("precious"), run);
  EXPECT_THAT(refused({"small.yaml", "--out", "out"}), HasSubstr("is a symbolic link"));
  fs::remove(run);
  fs::remove("out/summary.csv");
  fs::create_symlink(fs::absolute("precious/summary.csv"), "out/summary.csv");
  EXPECT_THAT(refused({"small.yaml", "--out", "out"}), HasSubstr("out/summary.csv: is a symbolic link"));
  fs::remove("out/summary.csv");
  fs::rename("out/runs", "elsewhere");
  fs::create_directory_symlink(fs::absolute("elsewhere"), "out/runs");
  EXPECT_THAT(refused({"small.yaml", "--out", "out"}), HasSubstr("out/runs: is a symbolic link"));
  EXPECT_EQ(contents("precious"), (std::map<std::string, std::string>{{"summary.csv", "mine"}}));
}

TEST_F(ResultsTest, CleanSaysWhatItRemovesAndRemovesIt) {
  ASSERT_EQ(done({"small.yaml", "--set", "scheduler=orca"}), 1);
  const std::string other = run_id("results/small");
  ASSERT_EQ(done({"small.yaml"}), 2);
  write("results/small/runs/.new-abc-1/manifest.json", R"({"kvlab_run": 2, "run": "abc", "input_key": "", "state": "being written"})");
  write("results/small/runs/.new-abc-1/requests.csv", "run,");
  write("results/small/partial/0123456789abcdef.txt", "0 1 0 3 3 -1 -1 3 1 9 9 9 end\n");
  write("results/small/partial/notes.txt", "mine");
  const auto before = contents("results/small");
  EXPECT_THAT(call_ok({"clean", "results/small"}).out,
              has_all({"runs/" + other, "  scheduler=orca seed=1\n", "runs/.new-abc-1", "partial/0123456789abcdef.txt", "3 to remove, "}));
  EXPECT_EQ(contents("results/small"), before);
  EXPECT_THAT(call({"clean", "results/small", "--yes"}).out, HasSubstr("removed 3 of 3, "));
  EXPECT_EQ(num_runs("results/small"), 2U);
  EXPECT_FALSE(fs::exists("results/small/runs/.new-abc-1"));
  EXPECT_EQ(read("results/small/partial/notes.txt"), "mine");
  EXPECT_EQ(done({"small.yaml"}), 0);
  EXPECT_THAT(call({"clean", "results/small"}).out, HasSubstr("holds nothing but its newest sweep"));
}

TEST_F(ResultsTest, FinishedRunsGetTheirNamesInTurnAndOneThatCannotHasAnError) {
  fs::create_directories("runs");
  fs::create_directory_symlink(".", "runs/r07");
  std::vector<std::string> named, refused;
  {
    RunPublisher publisher("runs");
    for (int i = 0; i < 150; ++i) {
      const std::string id = fmt::format("r{:02}", i);
      FreshRun run = RunFiles("runs", id, {}).finish({{"run", id}});
      EXPECT_FALSE(fs::exists("runs/" + id + "/manifest.json"));
      publisher.add(std::move(run), [&, id](const std::exception_ptr& error) { (error ? refused : named).push_back(id); });
    }
  }
  EXPECT_EQ(refused, std::vector<std::string>{"r07"});
  ASSERT_EQ(named.size(), 149U);
  EXPECT_TRUE(std::is_sorted(named.begin(), named.begin() + 98));  // r00 to r99
  for (const std::string& id : named) EXPECT_TRUE(fs::is_regular_file("runs/" + id + "/manifest.json"));
  EXPECT_EQ(std::distance(fs::directory_iterator("runs"), fs::directory_iterator()), 150) << "the unnamed folder is removed";
}

TEST_F(ResultsTest, ARunThatIsNotPublishedIsRemoved) {
  fs::create_directories("runs");
  { const FreshRun run = RunFiles("runs", "abc", {}).finish({{"run", "abc"}}); }
  EXPECT_TRUE(fs::is_empty("runs"));
}

TEST_F(ResultsTest, UnfinishedFilesOfKilledProgramsAreRemoved) {
  ASSERT_EQ(done({"small.yaml"}), 2);
  const std::vector<std::string> left = {"results/small/.kvlab.json.new515", "results/small/.kvlab.json.new515-2",
                                         "results/small/.new-summary.csv"};
  for (const std::string& name : left) write(name, "x");
  write("results/small/.new-notes.txt", "mine");
  const Called asked = call({"clean", "results/small", "--yes"});
  for (const std::string& name : left) {
    EXPECT_THAT(asked.out, HasSubstr("removed " + name));
    EXPECT_FALSE(fs::exists(name));
    write(name, "x");
  }
  EXPECT_THAT(asked.out, HasSubstr("removed 3 of 3, 3 B"));
  EXPECT_EQ(done({"small.yaml"}), 0);
  for (const std::string& name : left) EXPECT_FALSE(fs::exists(name)) << name << " stays after the next run";
  EXPECT_EQ(read("results/small/.new-notes.txt"), "mine");
}

// As versions wrote them that numbered their runs.
TEST_F(ResultsTest, NumberedRunsAreKeptAndNotJoined) {
  write("results/small/manifest.json",
        R"({"program": "kvlab 0.1.0", "experiment": "small", "file": "small.yaml", "runs": [{"run": "0001"}]})");
  write("results/small/summary.csv", "run,seed,requests\n0001,1,60\n");
  write("results/small/runs/0001/manifest.json", R"({"run": "0001", "input_key": "ab"})");
  write("results/small/runs/0001/summary.csv", "run,seed,requests\n0001,1,60\n");
  EXPECT_EQ(done({"small.yaml"}), 2);
  EXPECT_EQ(read_csv("results/small/summary.csv").rows.size(), 2U);
  EXPECT_EQ(read("results/small/runs/0001/summary.csv"), "run,seed,requests\n0001,1,60\n");
  EXPECT_THAT(call({"clean", "results/small", "--yes"}).out, HasSubstr("runs/0001  "));
  EXPECT_FALSE(fs::exists("results/small/runs/0001"));
}

TEST_F(ResultsTest, ADamagedRunIsDoneAgain) {
  ASSERT_EQ(done({"small.yaml"}), 2);
  const auto whole = contents("results/small/runs");
  const fs::path run = run_folder("results/small");
  const std::vector<std::pair<std::string, std::function<void()>>> damages = {
      {"requests.csv has 100 of ", [&] { fs::resize_file(run / "requests.csv", 100); }},
      {"requests.csv is missing", [&] { fs::remove(run / "requests.csv"); }},
      {"summary.csv has 0 of ", [&] { fs::resize_file(run / "summary.csv", 0); }},
      {"timeline.csv has other bytes", [&] {
         std::string text = read(run / "timeline.csv");
         text.back() = ' ';
         write(run / "timeline.csv", text);
       }}};
  for (const auto& [what, damage] : damages) {
    damage();
    const Called called = call_ok({"run", "small.yaml"});
    EXPECT_THAT(called.err, HasSubstr("kvlab: run " + run.string() + " is damaged (" + what));
    EXPECT_THAT(called.out, HasSubstr("1 of 2 runs were there already"));
    auto again = contents("results/small/runs");
    for (const auto& [name, bytes] : whole) EXPECT_TRUE(name.ends_with("manifest.json") || again[name] == bytes) << name;
  }
  // Without its manifest nothing says that it is kvlab's.
  fs::resize_file(run / "manifest.json", 0);
  EXPECT_THAT(call({"run", "small.yaml"}).err, HasSubstr("has no manifest of kvlab: it is kept as " + run.string() + ".aside1"));
  EXPECT_EQ(read(run.string() + ".aside1/requests.csv"), whole.at(run.filename().string() + "/requests.csv"));
}

// ---- inputs that change ----

struct ChangedInput : ResultsTest {
  ChangedInput() {
    write("trace.jsonl", kOneRequest);
    fs::copy_file(KVLAB_SOURCE_DIR "/profiles/hardware/h100.yaml", "card.yaml");
    write("two.yaml",
          "model: llama-3.1-8b\nhardware: card.yaml\nscheduler: [vllm_v1, sarathi]\ntrace: {file: trace.jsonl, block_size: 512}\n");
  }
};

TEST_F(ChangedInput, AlsoWhereTheBytesAreTheSameAgain) {
  const Experiment experiment = load_experiment("two.yaml", {});
  InputFiles files(experiment);
  const std::vector<std::string> ids = run_ids(experiment, files);
  EXPECT_NO_THROW(files.require_unchanged(experiment.runs[0]));
  write("new.jsonl", kOneRequest);
  fs::rename("new.jsonl", "trace.jsonl");
  EXPECT_THROW(files.require_unchanged(experiment.runs[1]), InputError);
  InputFiles again(experiment);
  EXPECT_EQ(run_ids(experiment, again), ids);
  EXPECT_NO_THROW(again.require_unchanged(experiment.runs[0]));
  write("card.yaml", read("card.yaml") + "\n");
  EXPECT_THROW(again.require_unchanged(experiment.runs[0]), InputError);
  InputFiles other(experiment);
  EXPECT_NE(run_ids(experiment, other), ids);
}

// The trace is replaced while the first of two runs reads it: neither is kept, and the same command does both.
TEST_F(ChangedInput, ARunThatReadsItIsNotKept) {
  std::string rows;
  for (int i = 0; i < (short_run() ? 1000 : 20000); ++i) rows += kOneRequest;
  write("trace.jsonl", rows);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::error_code none;
    const auto is_at_work = [&] { return fs::exists("results/two/runs", none) && !fs::is_empty("results/two/runs", none); };
    for (int i = 0; i < 20000 && !is_at_work(); ++i) ::usleep(200);
    write("new.jsonl", rows);
    fs::rename("new.jsonl", "trace.jsonl");
    ::_exit(0);
  }
  const Called called = call({"run", "two.yaml", "--jobs", "1"});
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(called.status, 2) << called.out;
  EXPECT_THAT(called.err, has_all({"kvlab: run 0001 (scheduler=vllm_v1 seed=1) failed: trace.jsonl: has changed since the sweep began",
                                   "kvlab: run 0002 (scheduler=sarathi seed=1) failed: trace.jsonl: has changed since the sweep began"}));
  EXPECT_EQ(num_runs("results/two"), 0U);
  EXPECT_EQ(done({"two.yaml"}), 2);
}

TEST_F(ChangedInput, FilesInATracesFolderCount) {
  const std::string session =
      R"({"id": "a", "block_size": 64, "requests": [{"t": 0, "in": 130, "out": 10, "hash_ids": [1, 2], "api_time": 1}]})";
  write("sessions/a.json", session);
  write("folder.yaml",
        "model: llama-3.1-8b\nhardware: card.yaml\nscheduler: vllm_v1\ntrace: {file: sessions, arrival: {poisson: {rate_per_s: 1}}}\n");
  EXPECT_EQ(done({"folder.yaml"}), 1);
  EXPECT_EQ(done({"folder.yaml"}), 0);
  write("sessions/b.json", session);
  EXPECT_EQ(done({"folder.yaml"}), 1);
}

TEST_F(ChangedInput, ARecipeByItsNameCounts) {
  fs::copy(KVLAB_SOURCE_DIR "/policies/kv/recipes", "recipes");
  ::setenv("KVLAB_RECIPES", "recipes", 1);
  const std::vector<std::string> run{"small.yaml", "--set", "scheduler=vllm_v1", "--set", "kv_policy=kivi2"};
  EXPECT_EQ(done(run), 1);
  EXPECT_EQ(done(run), 0);
  write("recipes/kivi2.yaml", read("recipes/kivi2.yaml") + "# another\n");
  EXPECT_EQ(done(run), 1);
  ::unsetenv("KVLAB_RECIPES");
}

TEST_F(ResultsTest, RunsOfOtherCodeAreDoneAgain) {
  ASSERT_EQ(done({"small.yaml"}), 2);
  const fs::path manifest = run_folder("results/small", 1) / "manifest.json";
  auto root = nlohmann::ordered_json::parse(read(manifest));
  ASSERT_TRUE(root["code"].contains("policies/scheduler/sarathi.cpp"));
  ASSERT_FALSE(root["code"].contains("policies/scheduler/vllm_v1.cpp"));
  root["code"]["policies/scheduler/sarathi.cpp"] = "another";
  write(manifest, root.dump());
  EXPECT_THAT(call({"run", "small.yaml"}).out,
              has_all({"1 run is done again, since policies/scheduler/sarathi.cpp changed\n", "1 of 2 runs were there already"}));
  EXPECT_EQ(done({"small.yaml"}), 0);
}

}  // namespace
}  // namespace kvlab
