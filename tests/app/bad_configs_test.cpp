#include <map>

#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

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
