#include <fmt/format.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

using RunTest = SmallTest;

TEST_F(RunTest, WritesTheFilesOfTheResultsFolder) {
  write("small.yaml", std::string(kSmall) + "scheduler: [vllm_v1, sarathi: {budget_tokens: 256}]\nseeds: 2\n");
  EXPECT_THAT(call_ok({"run", "small.yaml"}).out, has_all({"wrote results/small\n", "credibility: step time 0.0 % measured"}));
  const CsvTable summary = read_csv("results/small/summary.csv");
  EXPECT_EQ(std::tuple(summary.columns[0], summary.columns[1], summary.columns[2]), std::tuple("run", "scheduler", "seed"));
  EXPECT_THAT(column(summary, "scheduler"), ElementsAre("vllm_v1", "vllm_v1", "sarathi", "sarathi"));
  EXPECT_THAT(column(summary, "seed"), ElementsAre("1", "2", "1", "2"));
  for (const auto& [name, value] : {std::pair{"completed", "60"}, {"kv_blocks", "600"}, {"kv_blocks_source", "given"}})
    EXPECT_EQ(column(summary, name), std::vector<std::string>(4, value));
  for (const std::string& run : column(summary, "run")) EXPECT_TRUE(fs::exists("results/small/runs/" + run + "/requests.csv"));
  EXPECT_EQ(read_csv("results/small/requests.csv").rows.size(), 240U);
  EXPECT_GT(read_csv("results/small/timeline.csv").rows.size(), 4U);
  const auto manifest = nlohmann::json::parse(read("results/small/manifest.json"));
  EXPECT_EQ(std::tuple(manifest["runs"].size(), manifest["seeds"]), std::tuple(4U, nlohmann::json({1, 2})));
}

TEST_F(RunTest, SameSeedSameBytesWithAndWithoutFastForwardAndInParallel) {
  write("small.yaml", std::string(kSmall) + "scheduler: [vllm_v1, sarathi, vllm_v0]\n");
  // Little memory, so that preemption happens.
  const auto run = [](const std::vector<std::string>& more) {
    call_ok({"run", "small.yaml", "--set", "memory.num_blocks=60", "--set", "max_model_len=800"}, more);
  };
  run({"--out", "a", "--jobs", "1"});
  run({"--out", "b", "--jobs", "3"});
  run({"--out", "c", "--fast-forward=off"});
  for (const char* name : {"summary.csv", "requests.csv", "timeline.csv"}) {
    EXPECT_FALSE(read(fs::path("a") / name).empty());
    EXPECT_EQ(read(fs::path("a") / name), read(fs::path("b") / name)) << name;
    EXPECT_EQ(read(fs::path("a") / name), read(fs::path("c") / name)) << name;
  }
}

constexpr const char* kRow = "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}\n";

// An experiment in a folder of its own, with one trace and a GPU; another trace is in the working directory.
TEST_F(RunTest, ResolvedRunsFromAnywhereAndGivesTheSame) {
  fs::create_directories("own/exp");
  fs::create_directories("elsewhere/sub");
  fs::current_path("own");
  write("exp/beside.jsonl", kRow);
  write("here.jsonl", std::string(kRow) + kRow);
  fs::copy_file(KVLAB_SOURCE_DIR "/profiles/hardware/h100.yaml", "exp/card.yaml");
  write("exp/two.yaml",
        "model: llama-3.1-8b\nhardware: card.yaml\nscheduler: vllm_v1\nseeds: 2\nreplicas: 2\nrouter: random\ntrace: {file: [here.jsonl, "
        "beside.jsonl], block_size: 512}\n");
  call_ok({"run", "exp/two.yaml"});
  fs::current_path("../elsewhere/sub");
  write("here.jsonl", "another trace of the same name\n");
  const Called again = call_ok({"run", "../../own/results/two/resolved.yaml", "--out", "again"});
  const fs::path first = "../../own/results/two";
  for (const char* file : {"summary.csv", "requests.csv", "timeline.csv"})
    EXPECT_EQ(read(fs::path("again") / file), read(first / file)) << file;
  // The same inputs, so nothing is done again, neither there nor for the file that this run wrote.
  EXPECT_THAT(call({"run", "again/resolved.yaml", "--out", first.string(), "--join"}).out, HasSubstr("4 of 4 runs were there already"));
  call_ok({"run", (run_folder(first, 2) / "resolved.yaml").string(), "--out", "one"});
  const CsvTable one = read_csv("one/summary.csv"), all = read_csv(first / "summary.csv");
  EXPECT_EQ(std::tuple(text(one, "e2e_max_ms"), text(one, "requests")), std::tuple(text(all, "e2e_max_ms", 2), "1"));
  // All of it can be moved.
  fs::current_path("../..");
  fs::rename("own", "moved");
  EXPECT_EQ(call({"run", "moved/results/two/resolved.yaml", "--out", "third"}).status, 0);
  EXPECT_EQ(read("third/summary.csv"), read("moved/results/two/summary.csv"));
}

// The front door is told of the folder.
TEST_F(RunTest, ResolvedNamesFoldersRelativeToWhereItLies) {
  ::setenv("KVLAB_RESULT_FILE", "named.txt", 1);
  call_ok({"run", "small.yaml"});
  ::unsetenv("KVLAB_RESULT_FILE");
  EXPECT_EQ(read("named.txt"), (folder_ / "results/small").string() + "\n");
  EXPECT_THAT(read("results/small/resolved.yaml"), HasSubstr("working_folder: ../..\n"));
  EXPECT_THAT(read(run_folder("results/small") / "resolved.yaml"), HasSubstr("working_folder: ../../../..\n"));
  const std::string before = read("results/small/resolved.yaml");
  EXPECT_THAT(call({"run", "results/small/resolved.yaml"}).out, HasSubstr("1 of 1 runs were there already"));
  EXPECT_EQ(read("results/small/resolved.yaml"), before);
}

TEST_F(RunTest, AFailedRunIsReportedAndTheRestFinishes) {
  write("good.jsonl", kRow);
  write("bad.jsonl", std::string(kRow) + "{\"timestamp\": 0, \"input_length\": -4, \"output_length\": 5, \"hash_ids\": [1, 2]}\n");
  write("two.yaml", "model: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\ntrace: {file: [bad.jsonl, good.jsonl], block_size: 512}\n");
  EXPECT_THAT(error_of_call({"run", "two.yaml"}), HasSubstr("kvlab: run 0001 (trace.file=bad.jsonl seed=1) failed: bad.jsonl:2"));
  EXPECT_THAT(column(read_csv("results/two/summary.csv"), "trace.file"), ElementsAre("good.jsonl"));
}

// The status of a child process that gets a signal once `is_at_work`.
int status_after(int signal, const std::vector<std::string>& arguments, const std::function<bool()>& is_at_work) {
  const pid_t child = ::fork();
  if (child < 0) return child;  // neither exited nor killed
  if (child == 0) {
    std::signal(SIGINT, SIG_DFL);
    std::ostringstream out, err;
    ::_exit(run_cli(arguments, out, err));
  }
  for (int i = 0; i < 30000 && !is_at_work(); ++i) ::usleep(1000);
  ::kill(child, signal);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_F(RunTest, KillLosesTheRunInProgressAtMost) {
  write("many.yaml", std::string(kSmall) + "scheduler: vllm_v1\nseeds: 60\n");
  const std::vector<std::string> run{"run", "many.yaml", "--jobs", "1", "--quiet", "--out", "many"};
  const int status = status_after(SIGKILL, run, [] { return num_runs("many") >= 2; });
  ASSERT_TRUE(WIFSIGNALED(status)) << "the sweep ended before it was killed";
  EXPECT_FALSE(fs::exists("many/summary.csv"));  // never half of one
  std::size_t complete = 0;
  for (const auto& run : fs::directory_iterator("many/runs")) {
    if (run.path().filename().string().starts_with(".")) continue;
    ++complete;
    EXPECT_EQ(read_csv(run.path() / "summary.csv").rows.size(), 1U);
    EXPECT_EQ(read_csv(run.path() / "requests.csv").rows.size(), 60U);
    EXPECT_TRUE(nlohmann::json::accept(read(run.path() / "manifest.json")));
  }
  ASSERT_GE(complete, 2U);
  EXPECT_THAT(call({"run", "many.yaml", "--out", "many"}).out, HasSubstr(std::to_string(complete) + " of 60 runs were there already"));
  EXPECT_EQ(read_csv("many/summary.csv").rows.size(), 60U);
  for (const auto& run : fs::directory_iterator("many/runs")) EXPECT_FALSE(run.path().filename().string().starts_with("."));
}

TEST_F(RunTest, PerfettoTraceIsJsonWithStepsAndLifetimes) {
  write("small.yaml", std::string(kSmall) + "scheduler: vllm_v1\noutput: {perfetto: true}\n");
  call_ok({"run", "small.yaml"});
  const auto trace = nlohmann::json::parse(read("results/small/trace.json"));
  std::map<std::string, int> phases;
  for (const auto& event : trace["traceEvents"]) ++phases[event["ph"].get<std::string>()];
  EXPECT_EQ(std::to_string(phases["X"]), text(read_csv("results/small/summary.csv"), "steps"));
  EXPECT_EQ(std::tuple(phases["b"], phases["e"]), std::tuple(60 * 4, 60 * 4));
}

TEST_F(RunTest, GoodputSearchBracketsTheRate) {
  write("search.yaml", std::string(kSmall) + "scheduler: vllm_v1\nsearch: {rate: [0.5, 500], tolerance_frac: 0.05}\n");
  call_ok({"run", "search.yaml", "--set", "slo.ttft_ms=60"});
  const CsvTable probes = read_csv("results/small/search.csv"), summary = read_csv("results/small/summary.csv");
  double lowest_miss = 1e9, highest_hit = 0;
  for (const auto& row : probes.rows) {
    const double rate = std::stod(row[probes.at("rate_per_s")]), share = std::stod(row[probes.at("slo_attainment_frac")]);
    EXPECT_EQ(row[probes.at("attains")], share >= 0.9 ? "1" : "0");
    if (share >= 0.9)
      highest_hit = std::max(highest_hit, rate);
    else
      lowest_miss = std::min(lowest_miss, rate);
  }
  EXPECT_GT(highest_hit, 0.5);
  EXPECT_LE(lowest_miss - highest_hit, 0.05 * lowest_miss + 1e-6);
  EXPECT_NEAR(number(summary, "search_rate_per_s"), highest_hit, 1e-6);
  EXPECT_GE(number(summary, "slo_attainment_frac"), 0.9);
}

// The P99 of all gaps alone, and beside an SLO: every probe is held to it.
TEST_F(RunTest, GoodputSearchKeepsTheP99OfGaps) {
  std::string text = kSmall;
  text.erase(text.find("slo:"), text.find("timeline") - text.find("slo:"));
  write("search.yaml", text + "scheduler: vllm_v1\nsearch: {rate: [0.5, 5000], tolerance_frac: 0.05, itl_p99_ms: 1000}\n");
  const auto best = [&](const std::string& set) {
    const CsvTable summary = summary_after({"search.yaml", "--out", "out", "--force", "--set", set});
    return std::pair(summary.rows[0][summary.at("search_rate_per_s")], number(summary, "itl_p99_ms"));
  };
  EXPECT_EQ(best("search.itl_p99_ms=1000").first, "5000.000000");
  const double at_most = best("search.itl_p99_ms=1000").second, at_least = best("search.rate=[0.1, 0.5]").second;
  ASSERT_GT(at_most, at_least);
  const double limit = (at_most + at_least) / 2;
  const auto [rate, found] = best(fmt::format("search.itl_p99_ms={}", limit));
  EXPECT_LE(found, limit);
  EXPECT_LT(std::stod(rate), 5000);
  EXPECT_EQ(best("search.itl_p99_ms=0.001").first, "") << "no rate has such gaps";
}

std::atomic<int> num_earlier_signals{0};

extern "C" void count_earlier_signal(int /*signal*/) { ++num_earlier_signals; }

TEST(StopSignals, TheFirstSignalAsksToStopAndTheNextDoesWhatItDidBefore) {
  struct sigaction own = {}, before = {};
  own.sa_handler = count_earlier_signal;
  ::sigaction(SIGINT, &own, &before);
  {
    const StopSignals outer, inner;  // as in sweeps on several threads
    std::raise(SIGINT);
    EXPECT_TRUE(stop_requested());
    EXPECT_EQ(num_earlier_signals, 0);
    std::raise(SIGINT);
    EXPECT_EQ(num_earlier_signals, 1);
  }
  stop_requested() = false;
  std::raise(SIGINT);
  EXPECT_EQ(num_earlier_signals, 2);
  EXPECT_FALSE(stop_requested());
  ::sigaction(SIGINT, &before, nullptr);
}

TEST(Progress, AListenerHearsTheEndAndNothingIsWritten) {
  std::ostringstream err;
  std::vector<SweepProgress> heard;
  {
    Progress progress(err, 2, false, [&](const SweepProgress& at) { heard.push_back(at); });
    progress.requests() += 60;
    progress.run_done();
    progress.run_done();
  }
  ASSERT_FALSE(heard.empty());
  EXPECT_EQ(std::tuple(heard.back().runs_done, heard.back().num_runs, heard.back().requests), std::tuple(2U, 2U, 60U));
  EXPECT_EQ(err.str(), "");
}

TEST_F(RunTest, OnlySweepsHearAnInterrupt) {
  write("many.yaml", std::string(kSmall) + "scheduler: vllm_v1\nseeds: 3000\n");
  const int swept =
      status_after(SIGINT, {"run", "many.yaml", "--jobs", "1", "--quiet", "--out", "many"}, [] { return num_runs("many") >= 2; });
  ASSERT_TRUE(WIFEXITED(swept));
  EXPECT_EQ(WEXITSTATUS(swept), 130);
  const std::size_t complete = read_csv("many/summary.csv").rows.size();
  EXPECT_GE(complete, 2U);
  EXPECT_LT(complete, 3000U);
  const std::string long_trace = "generate.requests=200000000";
  EXPECT_TRUE(WIFSIGNALED(status_after(SIGINT, {"trace", "generate", "many.yaml", "many.csv", "--set", long_trace},
                                       [] { return fs::exists("many.csv.part"); })));
  struct sigaction before {
  }, after{};
  ::sigaction(SIGINT, nullptr, &before);
  call_ok({"run", "many.yaml", "--quiet", "--set", "seeds=1"});
  ::sigaction(SIGINT, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

TEST_F(RunTest, AStoppedSweepSaysSo) {
  write("small.yaml", std::string(kSmall) + "scheduler: vllm_v1\nseeds: 3\n");
  const auto stopped = [](const std::vector<std::string>& more) { return error_when_stopped({"run", "small.yaml", "--quiet"}, more); };
  EXPECT_EQ(stopped({}), "kvlab: stopped before any of 3 runs was done\n");
  EXPECT_FALSE(fs::exists("results/small"));
  call_ok({"run", "small.yaml", "--quiet", "--set", "seeds=1"});
  EXPECT_EQ(stopped({}), "kvlab: stopped; 1 of 3 runs is done and kept in results/small, and the same command does the rest\n");
  EXPECT_THAT(call({"run", "small.yaml"}).out, HasSubstr("1 of 3 runs were there already"));
  EXPECT_EQ(stopped({"--force"}), "kvlab: stopped before any of 3 runs was done\n");
}

TEST_F(RunTest, AShippedTraceIsSaidToBeGenerated) {
  write("sample.yaml", "model: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\ntrace: {file: '" KVLAB_SOURCE_DIR
                       "/traces/samples/azure_like.csv', limit_requests: 5}\n");
  EXPECT_THAT(call({"run", "sample.yaml"}).out, HasSubstr("azure_like.csv is a generated sample and no recording"));
  fs::copy_file(KVLAB_SOURCE_DIR "/traces/samples/azure_like.csv", "own.csv");
  EXPECT_THAT(call({"run", "sample.yaml", "--set", "trace.file=own.csv"}).out, Not(HasSubstr("generated sample")));
}

}  // namespace
}  // namespace kvlab
