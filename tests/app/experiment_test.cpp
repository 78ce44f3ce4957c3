#include "app/runs/sweep/experiment.h"

#include <yaml-cpp/yaml.h>

#include <map>

#include "app/results/results.h"
#include "app/results/run_files.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/input_files.h"
#include "app/runs/sweep/chosen_runs.h"
#include "base/config/config_file.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"

namespace kvlab {

// A kind of run that this file alone defines: the sweep runs it, joins its tables and prints its report.
namespace {

class EchoRun final : public PreparedRun {
 public:
  EchoRun(RunKind& kind, Params& p) : PreparedRun(kind), word_(p.text("word", "what to say")) {
    together = p.flag("together", false, "runs are done as a batch");
    p.reject_unread();
  }
  Findings run(RunFiles& files, const RunOptions& /*options*/) override {
    files.add_file("echo.csv", "run,word\n" + files.id() + "," + word_ + "\n");
    Findings findings;
    findings.rows = {{{"length", std::to_string(word_.size())}, {"in_batch", in_batch ? "1" : "0"}}};
    findings.add_note("an echo");
    return findings;
  }
  bool together = false, in_batch = false;

 private:
  std::string word_;
};

}  // namespace

class Echo final : public RunKind {
 public:
  using RunKind::RunKind;
  std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t /*seed*/) override {
    auto run = std::make_unique<EchoRun>(*this, p);
    together_ = run->together;
    return run;
  }
  [[nodiscard]] std::set<std::string> tables() const override { return {"echo.csv"}; }
  bool run_together(const RunBatch& batch) override {
    if (!together_) return false;
    for (const std::size_t place : batch.places) {
      const RunSpec& spec = batch.experiment.runs[place];
      Params p = batch.experiment.params(spec);
      read_kind(p);
      EchoRun run(*this, p);
      run.in_batch = true;
      execute_prepared(run, {batch.experiment, spec, batch.folder.runs(), batch.origin_of(place), [] {}}, {});
      batch.finish(place, nullptr, 0);
    }
    return true;
  }

 private:
  [[nodiscard]] std::vector<std::string> metrics() const override { return {"length", "in_batch"}; }
  bool together_ = false;
};

KVLAB_REGISTER(RunKind, Echo, "echo", "for this test", "");

namespace {

using RunKindTest = AppTest;

TEST_F(RunKindTest, NewKindIsOneFile) {
  write("echo.yaml", "kind: echo\nword: [a, four]\n");
  EXPECT_THAT(call_ok({"run", "echo.yaml"}).out, has_all({"length", "note (all 2 runs): an echo"}));
  const CsvTable summary = read_csv("results/echo/summary.csv"), echo = read_csv("results/echo/echo.csv");
  ASSERT_EQ(summary.rows.size(), 2U);
  EXPECT_EQ(std::tuple(text(summary, "length", 1), text(summary, "in_batch", 1)), std::tuple("4", "0"));
  ASSERT_EQ(echo.rows.size(), 2U);
  EXPECT_EQ(echo.rows[1], (std::vector<std::string>{run_id("results/echo", 1), "four"}));
  EXPECT_THAT(call({"run", "echo.yaml"}).out, HasSubstr("2 of 2 runs were there already"));
}

TEST_F(RunKindTest, KindMayDoItsRunsTogether) {
  write("echo.yaml", "kind: echo\ntogether: true\nword: [a, four]\n");
  EXPECT_EQ(column(summary_after({"echo.yaml"}), "in_batch"), (std::vector<std::string>{"1", "1"}));
}

TEST_F(RunKindTest, UnknownKindsAreRefusedWithThoseThereAre) {
  write("echo.yaml", "kind: ecco\nword: a\n");
  EXPECT_THAT(error_of_call({"run", "echo.yaml"}), testing::AllOf(HasSubstr("echo.yaml:1:7"), HasSubstr("echo")));
  EXPECT_THAT(call({"run", "echo.yaml", "--set", "kind=echo", "--set", "host=replay"}).err,
              HasSubstr("'host: replay' and 'host: engine' exclude 'kind: echo'"));
}

TEST(Experiment, GridOrderFirstAxisSlowestSeedsFastest) {
  const Experiment e = parse_experiment("replicas: [1, 2]\nscheduler: [b, a]\nseed: 7\nseeds: 2\n", "dir/exp.yaml", {});
  EXPECT_EQ(e.name, "exp");
  EXPECT_EQ(e.axes, (std::vector<std::string>{"replicas", "scheduler"}));
  std::string runs;
  for (const RunSpec& run : e.runs) runs += run.labels.at(0) + run.labels.at(1) + std::to_string(run.seed) + " ";
  EXPECT_EQ(runs, "1b7 1b8 1a7 1a8 2b7 2b8 2a7 2a8 ");
  EXPECT_EQ(e.seeds(), (std::vector<std::uint64_t>{7, 8}));
}

TEST(Experiment, AxesAndTheirLabels) {
  const Experiment e = parse_experiment("scheduler: [a, b: {x: [1, 2]}]\n", "e.yaml", {});
  EXPECT_EQ(e.axes, (std::vector<std::string>{"scheduler", "scheduler.b.x"}));
  ASSERT_EQ(e.runs.size(), 3U);
  EXPECT_EQ(e.runs[0].labels, (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(e.runs[2].labels, (std::vector<std::string>{"b", "2"}));
  const Experiment alike = parse_experiment("scheduler: [{a: {x: 1}}, {a: {x: 2}}, c]\n", "e.yaml", {});
  EXPECT_EQ(std::tuple(alike.runs[0].labels[0], alike.runs[1].labels[0], alike.runs[2].labels[0]), std::tuple("a#1", "a#2", "c"));
  EXPECT_EQ(parse_experiment("search: {rate: [1, 2]}\n", "e.yaml", {}).runs.size(), 1U);
}

TEST(Experiment, ResolvedRunsAsItIs) {
  const Experiment e = parse_experiment("a: {b: [1, 2]}\nseeds: 3\n", "e.yaml", {"c=x"});
  const Experiment again = parse_experiment(e.resolved(e.runs[4]), "again.yaml", {});
  ASSERT_EQ(again.runs.size(), 1U);
  EXPECT_EQ(std::tuple(again.runs[0].seed, again.name), std::tuple(2U, "e"));
  EXPECT_EQ(e.resolved(e.runs[4]), again.resolved(again.runs[0]));
  EXPECT_THAT(e.resolved(e.runs[4]), has_all({"b: 2", "c: x"}));
}

TEST(Experiment, VariablesAreExpandedButNotInWhatIsWrittenDown) {
  ::setenv("KVLAB_TEST_FOLDER", "/some/where", 1);
  const Experiment e = parse_experiment("trace: {file: \"${KVLAB_TEST_FOLDER}/t.csv\"}\n", "e.yaml", {});
  Params p = e.params(e.runs[0]);
  EXPECT_EQ(p.child("trace", "trace").text("file", ""), "/some/where/t.csv");
  EXPECT_NE(e.resolved(e.runs[0]).find("${KVLAB_TEST_FOLDER}"), std::string::npos);
  ::setenv("KVLAB_TEST_OUTER", "${KVLAB_TEST_INNER}", 1);  // the value is text, not another variable
  ::unsetenv("KVLAB_TEST_INNER");
  const Experiment aliases = parse_experiment("a: &x \"${KVLAB_TEST_OUTER}\"\nb: *x\n", "e.yaml", {});
  EXPECT_EQ(aliases.params(aliases.runs[0]).text("b", ""), "${KVLAB_TEST_INNER}");
}

TEST(Experiment, PathsStartInTheFoldersThatAResolvedFileNames) {
  const Experiment e = parse_experiment("paths_from: {working_folder: ../.., experiment_folder: /exp}\n", "a/b/c/r.yaml", {});
  EXPECT_EQ(e.config->folders, (std::vector<std::filesystem::path>{"a/", "/exp"}));
  EXPECT_EQ(e.resolved(e.runs[0]).find("paths_from"), std::string::npos);
  EXPECT_EQ(error_of([] { parse_experiment("paths_from: {working_folder: x}\n", "r.yaml", {}); }),
            "r.yaml:1:13: paths_from needs 'experiment_folder'");
  EXPECT_EQ(error_of([] { parse_experiment("paths_from: [a, b]\n", "r.yaml", {}); }),
            "r.yaml:1:13: 'paths_from': expected 'key: value' lines, found [a, b]");
}

TEST(Experiment, SettingsOfFiguresAreNoPartOfItsRuns) {
  const std::string figures =
      "figures: {all: {names: {\"vllm_v1#1\": \"vLLM, 2,048\"}, format: [pdf, pgf]}, tail: {metric: [ttft, tpot], statistic: p99, x: "
      "rate_per_s, series: scheduler, panel: replicas, only: {scheduler: [a, b]}, max_lines: 4, size: [3.4, 2.4], title: t, x_label: x, "
      "y_label: y, x_range: [0, 1], y_range: [1, 2], x_scale: log, y_scale: linear, slo_lines: false, legend: false, draw: true}}\n";
  const std::string text = "scheduler: [a, b]\n", with = text + figures;
  const Experiment e = parse_experiment(with, "e.yaml", {"figures.tail.size=[7, 3]"}), plain = parse_experiment(text, "e.yaml", {});
  EXPECT_EQ(std::tuple(e.axes, e.runs.size()), std::tuple(plain.axes, 2U));
  EXPECT_EQ(e.resolved(e.runs[0]), plain.resolved(plain.runs[0]));
  InputFiles files(e), plain_files(plain);
  EXPECT_EQ(run_ids(e, files), run_ids(plain, plain_files));
  const YAML::Node all = YAML::Load(e.resolved_in("."));
  EXPECT_EQ(all["figures"]["tail"]["size"][0].Scalar(), "7");
  EXPECT_EQ(all["figures"]["all"]["names"]["vllm_v1#1"].Scalar(), "vLLM, 2,048");
}

TEST(Experiment, WrongSettingsOfFiguresAreToldWithTheirPlace) {
  const auto error = [](const std::string& text) {
    return error_of([&] { parse_experiment("figures: {f: {" + text + "}}\n", "f.yaml", {}); });
  };
  EXPECT_EQ(error("siz: [3, 2]"), "f.yaml:1:15: unknown key 'siz' in the figure 'f'; did you mean 'size'?");
  EXPECT_EQ(error("size: [3]"), "f.yaml:1:21: 'size': expected two numbers, [width, height] in inches");
  EXPECT_EQ(error("y_range: [3, 2]"), "f.yaml:1:24: 'y_range': expected two numbers, the smaller one first");
  EXPECT_EQ(error("x_scale: logg"), "f.yaml:1:24: 'x_scale': unknown value 'logg'; did you mean 'log'?");
  EXPECT_EQ(error("metric: tfft"), "f.yaml:1:23: no metric 'tfft'; did you mean 'ttft'?");
  EXPECT_EQ(error("metric: [ttft, goodputt_per_s]"), "f.yaml:1:23: no metric 'goodputt_per_s'; did you mean 'goodput_per_s'?");
  EXPECT_THAT(error("title: a"), ::testing::HasSubstr("f.yaml:1:14: no figure 'f'; usual figures: cdf_ttft, cdf_tpot"));
  EXPECT_THAT(error("x: replicas"), ::testing::HasSubstr("a figure of your own, 'f', needs 'metric'"));
  const auto named = [](const std::string& text) { return error_of([&] { parse_experiment("figures: {" + text + "}\n", "f.yaml", {}); }); };
  EXPECT_EQ(named("cdf_ttf: {size: [3, 2]}"), "f.yaml:1:20: no figure 'cdf_ttf'; did you mean 'cdf_ttft'?; one of your own needs 'metric'");
  for (const char* const good : {"cdf: {size: [3, 2]}", "cdf_ttft_rate_per_s_2: {draw: false}", "comparison: {statistic: p50}",
                                 "all: {size: [3, 2]}", "mine: {metric: [ttft, search_rate_per_s]}", "timeline_orca: {title: a}"})
    EXPECT_EQ(named(good), "no error") << good;
}

struct SeedsTest : AppTest {
  // Number of runs that are left of three seeds, and the remark.
  static std::pair<std::size_t, std::string> left_of(const std::string& changes) {
    write("trace.csv", "arrival_ns,prompt_tokens,output_tokens\n0,100,5\n1000000000,120,6\n1500000000,90,4\n");
    write("lengths.csv", "num_prefill_tokens,num_decode_tokens\n100,5\n120,6\n");
    Experiment experiment = parse_experiment("model: llama-3.1-8b\nhardware: h100\nseeds: 3\n" + changes, "e.yaml", {});
    std::string remark = drop_idle_seeds(experiment);
    return {experiment.runs.size(), remark};
  }
};

TEST_F(SeedsTest, WhatIsRandomKeepsItsSeeds) {
  const std::string file = "trace: {file: trace.csv}\n", vllm = "scheduler: vllm_v1\n";
  const std::vector<std::pair<std::string, std::size_t>> cases = {
      {vllm + file, 1},
      {"scheduler: [vllm_v0, vllm_v1]\n" + file, 2},
      {vllm + "trace: {file: trace.csv, jitter_ms: 5}\n", 3},
      {vllm + "trace: {file: trace.csv, jitter_ms: [0, 5]}\n", 4},
      {vllm + "trace: {file: lengths.csv, arrival: {poisson: {rate_per_s: 2}}}\n", 3},
      {vllm + "replicas: 2\nrouter: random\n" + file, 3},
      {vllm + "replicas: 1\nrouter: random\n" + file, 1},  // there is nothing to draw from
      {vllm + "replicas: 2\nrouter: [power_of_two, round_robin]\n" + file, 4},
      {vllm + "kv_policy: {recipe: kivi2}\n" + file, 1},
      {"scheduler: {first_skip: {skip_frac: 0.3}}\n" + file, 3},  // layers are drawn
      {vllm + "search: {replicas: [1, 4], ttft_p99_ms: 100}\nrouter: random\n" + file, 3},
      {vllm + "search: {replicas: [1, 4], ttft_p99_ms: 100}\n" + file, 1},
      {vllm + "trace: {generate: {requests: 3, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: 30, output_tokens: 3}}\n", 3},
  };
  for (const auto& [text, count] : cases) EXPECT_EQ(left_of(text).first, count) << text;
}

TEST_F(SeedsTest, TheRemarkNamesConfigurations) {
  const std::string file = "trace: {file: trace.csv}\nscheduler: vllm_v1\n";
  EXPECT_EQ(
      left_of(file).second,
      "note: seeds change nothing in these runs: their requests are recorded and no dispatcher draws. They are done once, so n = 1\n");
  EXPECT_THAT(left_of(file + "replicas: 2\nrouter: [random, round_robin]\n").second,
              HasSubstr("in 1 of 2 configurations (router=round_robin): "));
  EXPECT_EQ(left_of(file + "replicas: 2\nrouter: random\n").second, "");
  write("e.yaml", "model: llama-3.1-8b\nhardware: h100\nseeds: 3\nscheduler: vllm_v1\ntrace: {file: trace.csv}\n");
  const Called called = call_ok({"run", "e.yaml"});
  EXPECT_EQ(called.out.find("note: seeds change nothing"), 0U) << called.out;
  EXPECT_EQ(read_csv("results/e/summary.csv").rows.size(), 1U);
}

const char* const kFolder = KVLAB_SOURCE_DIR "/tests/bad_configs";

std::map<std::string, std::string> expected_messages() {
  std::map<std::string, std::string> expected;
  std::ifstream stream(std::string(kFolder) + "/expected.txt");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t tab = line.find('\t');
    expected[line.substr(0, tab)] = line.substr(tab + 1);
  }
  return expected;
}

std::vector<std::string> config_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFolder))
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class BadConfig : public ::testing::TestWithParam<std::string> {};

TEST_P(BadConfig, IsRefusedWithOneLineAndNothingIsWritten) {
  const fs::path before = fs::current_path(), out = fs::temp_directory_path() / ("kvlab_bad_" + std::to_string(::getpid()));
  fs::current_path(kFolder);
  ::setenv("KVLAB_PROFILES", "../../profiles", 1);
  ::setenv("KVLAB_RECIPES", "../../policies/kv/recipes", 1);
  ::setenv("KVLAB_SYSTEMS", "../../policies/systems", 1);
  ::unsetenv("KVLAB_NO_SUCH_VARIABLE");
  std::ostringstream normal, error;
  const int status = run_cli({"run", GetParam(), "--out", out.string()}, normal, error);
  const bool is_written = fs::exists(out);
  fs::remove_all(out);
  fs::current_path(before);
  for (const char* name : {"KVLAB_PROFILES", "KVLAB_RECIPES", "KVLAB_SYSTEMS"}) ::unsetenv(name);
  const auto expected = expected_messages();
  ASSERT_TRUE(expected.contains(GetParam())) << "no line in expected.txt; the message is: " << error.str();
  EXPECT_EQ(error.str(), "kvlab: " + expected.at(GetParam()) + "\n");
  EXPECT_EQ(std::tuple(status, normal.str(), is_written), std::tuple(2, "", false));
}

INSTANTIATE_TEST_SUITE_P(All, BadConfig, ::testing::ValuesIn(config_names()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
});

TEST(BadConfigs, ThereAreFortyAndEachMessageHasItsFile) {
  EXPECT_GE(config_names().size(), 40U);
  EXPECT_EQ(expected_messages().size(), config_names().size());
}

using BadCommand = SmallTest;

TEST_F(BadCommand, NamesLongerThanAPath) {
  const std::string name(5000, 'x');
  for (const std::string& set :
       {"model=" + name, "hardware=" + name, "system=" + name, "scheduler=" + name, "kv_policy=" + name, "kv_policy={" + name + ": 1}",
        "kv_policy={recipe: kvzap, weights: " + name + "}", "trace={file: " + name + "}", "trace={file: samples/" + name + "}"}) {
    const Called called = call({"run", "small.yaml", "--set", set});
    EXPECT_EQ(called.status, 2) << set.substr(0, 40);
    EXPECT_THAT(called.err, Not(HasSubstr("filesystem error"))) << set.substr(0, 40);
  }
}

TEST_F(BadCommand, SetMistakes) {
  const std::map<std::string, std::string> cases = {
      {"replicas", "kvlab: --set replicas: expected --set key.key=value\n"},
      {"replicas=two", "kvlab: --set replicas=two: 'replicas': not a whole number: 'two'\n"},
      {"replicas=[1, 0]", "kvlab: --set replicas=[1, 0]: 'replicas' = 0 is outside [1, 100000]\n"},
      {"scheduler=sarati", "kvlab: --set scheduler=sarati: unknown scheduler 'sarati'; did you mean 'sarathi'?\n"},
      {"memory.num_block=3", "kvlab: --set memory.num_block=3: unknown key 'num_block' in memory; did you mean 'num_blocks'?\n"},
  };
  for (const auto& [set, message] : cases) {
    const Called called = call({"run", "small.yaml", "--set", set});
    EXPECT_EQ(std::tuple(called.status, called.err), std::tuple(2, message));
    EXPECT_FALSE(fs::exists("results"));
  }
}

TEST_F(BadCommand, AnExperimentIsFoundByItsNameAndNamedByItsFile) {
  write("my exp.yaml", "scheduler: vllm_v1\n");
  EXPECT_EQ(call({"run", "my exp.yaml"}).err,
            "kvlab: my exp.yaml:1:1: 'name': 'my exp' names a folder: letters, digits, '_', '-' and '.' only; it is taken from the file's "
            "name: write 'name: my_exp' in the file\n");
  write("experiments/quick.yaml", std::string(kSmall) + "scheduler: vllm_v1\n");
  EXPECT_EQ(call({"run", "quick", "--out", "out"}).status, 0);
  EXPECT_EQ(call({"trace", "inspect", "quick.yaml"}).status, 0);
  EXPECT_EQ(call({"run", "Quick"}).err, "kvlab: there is no file 'Quick', and no experiment of this name; did you mean 'quick'?\n");
}

TEST_F(BadCommand, WhatPeopleTypeIsAnsweredWithWhatToTypeInstead) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"describe", "H2O"}, "nothing is called 'H2O'; did you mean 'h2o'?"},
      {{"describe", "a100"}, "nothing is called 'a100'; did you mean 'a100-40gb' (hardware) or 'a100-80gb' (hardware)"},
      {{"describe", "b700"}, "nothing is called 'b700'; did you mean 'b200' (hardware) or 'b300' (hardware)?"},
      {{"trace", "record", "--model", "meta-llama/Llama-3.1-8B", "--text", "x", "--out", "y"},
       "no folder 'meta-llama/Llama-3.1-8B', and nothing in the cache of Hugging Face; for a model of Hugging Face type 'hf download "
       "meta-llama/Llama-3.1-8B', after asking for access on https://huggingface.co/meta-llama/Llama-3.1-8B and 'hf auth login'"},
      {{"trace", "inspect", "x.csv", "--seed", "-1"}, "--seed: Value -1 not in range"},
      {{"trace", "inspect", "x.csv", "--seed", "99999999999999999999"}, "--seed: Value 99999999999999999999 not in range"},
      {{"trace", "inspect", "x.csv", "--seed", "1e20"}, "--seed: Value 1e20 not in range"},
      {{"compare", "a", "b", "--requests", "-1"}, "--requests: Value -1 not in range"},
      {{"trace", "inspect", "no.csv"}, "kvlab: no.csv: cannot be opened: No such file or directory\n"},
  };
  for (const auto& [arguments, message] : cases) {
    const Called called = call(arguments);
    EXPECT_EQ(called.status, 2) << message;
    EXPECT_THAT(called.err, HasSubstr(message));
    EXPECT_EQ(std::count(called.err.begin(), called.err.end(), '\n'), 1) << called.err;
  }
}

TEST_F(BadCommand, ListWithoutAKindListsTheKinds) {
  EXPECT_THAT(call_ok({"list"}).out, has_all({"schedulers\n", "experiments\n"}));
  EXPECT_THAT(call({"list", "--json"}).out, HasSubstr("\"hardware\""));
}

TEST_F(BadCommand, OutputThatCannotBeWrittenIsAnError) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"list", "hardware"}, {"describe", "h2o"}, {"--help"}, {"--version"}}) {
    std::ofstream full("/dev/full");
    if (!full) GTEST_SKIP() << "no /dev/full here";
    std::ostringstream error;
    EXPECT_EQ(run_cli(arguments, full, error), 1);
    const std::string line = error.str();
    EXPECT_TRUE(line.starts_with("kvlab: standard output cannot be written")) << line;
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  }
}

TEST_F(BadCommand, UnknownWordsNameTheNearest) {
  EXPECT_EQ(call({"rnu", "x"}).err, "kvlab: unknown command 'rnu'; did you mean 'run'?\n");
  EXPECT_EQ(call({"trace", "inspekt", "x"}).err, "kvlab: unknown command 'inspekt'; did you mean 'inspect'?\n");
  EXPECT_EQ(call({"run", "x", "--job", "2"}).err, "kvlab: unknown option '--job' of 'run'; did you mean '--jobs'?\n");
  EXPECT_EQ(call({"trace", "record", "--modle=x"}).err, "kvlab: unknown option '--modle' of 'record'; did you mean '--model'?\n");
  EXPECT_EQ(call({"list", "scheduler"}).err, "kvlab: unknown kind 'scheduler'; did you mean 'schedulers'?\n");
  EXPECT_EQ(call({"describe", "sarati"}).err, "kvlab: nothing is called 'sarati'; did you mean 'sarathi'?\n");
  EXPECT_EQ(call({"run", "no_such.yaml"}).err, "kvlab: no_such.yaml: cannot be opened: No such file or directory\n");
  EXPECT_EQ(call({"run", "."}).err, "kvlab: .: is a directory; a file is expected\n");
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{}, {"run"}, {"run", "a", "--jobs", "0"}, {"run", "a", "--fast-forward=maybe"}, {"rnu"}}) {
    const std::string error = error_of_call(bad);
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  }
}

}  // namespace
}  // namespace kvlab
