// 'host: engine' with 'eval:', through the front.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/results/results.h"
#include "app/runs/accuracy/accuracy.h"
#include "kernels/device/cuda/memory.h"
#include "tests/app/app_fixture.h"
#include "tests/test_files.h"

namespace kvlab {
namespace {

struct GradedRun : AppTest {
  GradedRun() {
    const std::string turn = R"({"question":[5,6],"answer":[7,8,9]})";
    write("eval.jsonl", sample(0, turn) + sample(1, turn));
    write("graded.yaml",
          "name: graded\n"
          "host: engine\n"
          "model: " KVLAB_SOURCE_DIR
          "/tests/parity/models/llama_gqa\n"
          "eval: eval.jsonl\n"
          "kv_policy: [{recipe: full}, {recipe: snapkv, budget_tokens: 4}, {recipe: streaming, budget_tokens: 40}]\n");
  }
  // The first and the second sample have other prompts.
  static std::string sample(int s, const std::string& turns) {
    std::string prompt = "0";
    for (int i = 1; i < 90; ++i) prompt += "," + std::to_string(2 + (i * i * 7 + i * s) % 120);
    return R"({"task":"a","length":90,"prompt":[)" + prompt + R"(],"turns":[)" + turns + "]}\n";
  }
  // The folder of a sweep that was cut off.
  static void make_partial() {
    const ResultsFolder folder("out", load_experiment("graded.yaml", {}), ResultsFolder::Joins::kNo);
    fs::create_directories(folder.partial());
  }
  static std::string key_of(const fs::path& run) { return nlohmann::json::parse(read(run / "manifest.json")).at("input_key"); }
};

// The others continue, and their answers are there.
TEST_F(GradedRun, ARecipeThatTheModelCannotRunIsToldOfBeforeTheRunStarts) {
  const Called called = call({"run", "graded.yaml", "--out", "out"});
  EXPECT_EQ(called.status, 2);
  EXPECT_THAT(called.err, HasSubstr("(kv_policy=snapkv 4 seed=1) failed: graded.yaml:5:29: recipe 'snapkv' cannot run: "));
  EXPECT_THAT(called.out, HasSubstr("2 samples, 2 policies: about"));
  const CsvTable answers = read_csv("out/answers.csv");
  EXPECT_THAT(column(answers, "recipe"), ElementsAre("full", "full", "streaming", "streaming"));
  EXPECT_EQ(text(answers, "first_diverging"), "-1");
}

TEST_F(GradedRun, WhatAnEvaluationCannotBeIsToldOfBeforeTheRun) {
  EXPECT_THAT(error_of_call({"run", "graded.yaml", "--set", "eval={file: eval.jsonl, lengths: [90, 90.7]}", "--out", "out"}),
              HasSubstr(": 'lengths': not a whole number: '90.7'\n"));
  call_ok({"run", "graded.yaml", "--set", "eval={file: eval.jsonl, lengths: [90]}", "--set", "kv_policy=full", "--out", "lengths"});
  write("eval.jsonl", read("eval.jsonl") + R"({"task":"a","prompt":[1,2,9999],"turns":[{"question":[5],"answer":[7]}]})");
  const std::string error = error_of_call({"run", "graded.yaml", "--out", "out"});
  EXPECT_THAT(error, HasSubstr("eval.jsonl:3: 'prompt' has token id 9999, outside [0, "));
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << error;
  EXPECT_FALSE(fs::exists("out"));
}

TEST_F(GradedRun, ATaskWithACommaIsOneField) {
  write("eval.jsonl", R"({"task":"qa, \"hard\"","prompt":[1,2,3],"turns":[{"question":[5],"answer":[7]}]})");
  call_ok({"run", "graded.yaml", "--set", "kv_policy=full", "--out", "out"});
  EXPECT_THAT(column(read_csv("out/answers.csv"), "task"), ElementsAre("qa, \"hard\""));
}

// If only a part of a block of samples was graded, the whole block is graded again: bytes may be counted over the block.
TEST_F(GradedRun, WhatWasLeftOfABlockIsNotMixedWithTheRest) {
  call_ok({"run", "graded.yaml", "--set", "kv_policy=full", "--out", "whole"});
  const fs::path partial = "out/partial/" + key_of(run_folder("whole")) + ".txt";
  make_partial();
  write(partial, "0 1 0 3 3 -1 -1 3 1 9 9 9 end\n");
  write("out/partial/of_other_settings.txt", "0 1 0 3 3 -1 -1 3 1 9 9 9 end\n");
  call_ok({"run", "graded.yaml", "--set", "kv_policy=full", "--out", "out"});
  EXPECT_EQ(read("out/answers.csv"), read("whole/answers.csv"));
  EXPECT_FALSE(fs::exists(partial));
  EXPECT_TRUE(fs::exists("out/partial/of_other_settings.txt"));  // of a run that may continue
  // A block that is there as a whole is taken.
  fs::remove_all(run_folder("out"));
  write(partial, "0 1 0 3 3 -1 -1 3 1 9 9 9 end\n1 1 0 3 3 -1 -1 3 1 9 9 9 end\n");
  call_ok({"run", "graded.yaml", "--set", "kv_policy=full", "--out", "out"});
  EXPECT_THAT(read("out/answers.csv"), HasSubstr(",9.000000,"));
}

TEST_F(GradedRun, AFolderWithAnswersOfARunThatWasStoppedStays) {
  for (const bool has_answers : {false, true}) {
    {
      ResultsFolder folder("out", load_experiment("graded.yaml", {}), ResultsFolder::Joins::kNo);
      SampleGrades sample;
      sample.answers.emplace_back();
      if (has_answers) PartialAnswers(folder.partial() / "key.txt").add(sample);
      folder.remove_if_new();
    }
    EXPECT_EQ(fs::exists("out"), has_answers);
  }
}

TEST_F(GradedRun, WithoutAGpuCudaIsRefusedWhereItIsNamed) {
  if (num_gpus() > 0) GTEST_SKIP() << "this machine has a GPU";
  const std::string from_option = error_of_call({"run", "graded.yaml", "--set", "backend=cuda", "--out", "out"});
  EXPECT_EQ(from_option.find("kvlab: --set backend=cuda: backend cuda: "), 0U) << from_option;
  EXPECT_THAT(from_option, HasSubstr(why_no_gpu()));
  write("named.yaml", read("graded.yaml") + "backend: cuda\n");
  EXPECT_EQ(call({"run", "named.yaml", "--out", "out"}).err.find("kvlab: named.yaml:6:10: backend cuda: "), 0U);
  EXPECT_FALSE(fs::exists("out"));
}

// Evaluation files may have different tasks; what varies besides the policy has a column.
TEST_F(GradedRun, TheTableHasADashForATaskThatARunDoesNotHave) {
  write("b.jsonl", R"({"task":"b","prompt":[1,2,3,4],"turns":[{"question":[5],"answer":[7,8]}]})");
  const Called called = call_ok({"run", "graded.yaml", "--set", "eval=[eval.jsonl, b.jsonl]", "--set",
                                 "kv_policy=[full, {recipe: streaming, budget_tokens: 40, allocator: pyramid}]", "--out", "out"});
  const std::string header = "run           recipe     budget                eval        bytes     kl  a     b      mean\n";
  ASSERT_NE(called.out.find(header), std::string::npos) << called.out;
  const std::string table = called.out.substr(called.out.find(header));
  EXPECT_THAT(table,
              has_all({"\n" + run_id("out") + "  full                             eval.jsonl   1.00  0.000  0.00  -     0.000\n",
                       "\n" + run_id("out", 3) + "  streaming  40 allocator pyramid  b.jsonl      1.03  0.000  -     0.00  0.000\n"}));
}

// An only answer of one token takes no step: the bytes are those at the prompt's end, and the answer is the full cache's.
TEST_F(GradedRun, AnswersOfOneToken) {
  std::string samples;
  for (const char* const answer : {"[7]", "[7]", "[7,8]"})
    samples += read("eval.jsonl").substr(0, read("eval.jsonl").find("\"answer\":") + 9) + answer + "}]}\n";
  write("eval.jsonl", samples);
  const std::string policies = "kv_policy=[full, {recipe: streaming, budget_tokens: 40}]";
  const Called called = call_ok({"run", "graded.yaml", "--set", policies, "--out", "out"});
  EXPECT_THAT(called.out, HasSubstr("\n2 of 3 first answers have one token, which is predicted before the policy acts: they say nothing "
                                    "about it; 'question: decoded' asks after it acted\n"));
  const CsvTable answers = read_csv("out/answers.csv");
  ASSERT_EQ(answers.rows.size(), 6U);
  for (const std::size_t row : {0U, 3U}) {
    const char* const frac = row == 0 ? "1.000000" : "0.448370";  // 40 of 92 tokens, and their positions
    EXPECT_EQ(std::tuple(text(answers, "first_diverging", row), text(answers, "resident_bytes_frac", row)), std::tuple("-1", frac));
  }
  EXPECT_THAT(call({"run", "graded.yaml", "--set", policies, "--set", "question=decoded", "--out", "decoded"}).out,
              Not(HasSubstr("first answers")));
}

// Other files in the model's folder do not count: results may be written there.
TEST_F(GradedRun, AModelIsWhatTheEngineReadsOfItsFolder) {
  fs::copy(KVLAB_SOURCE_DIR "/tests/parity/models/llama_gqa", "llama-3.1-8b");  // also a name of profiles/models
  const auto run = [] {
    return call({"run", "graded.yaml", "--set", "model=llama-3.1-8b", "--set", "kv_policy=full", "--out", "llama-3.1-8b/out"}).out;
  };
  const std::string again = "1 of 1 runs were there already";
  EXPECT_THAT(run(), Not(HasSubstr(again)));
  write("llama-3.1-8b/README.md", "a model");
  EXPECT_THAT(run(), HasSubstr(again));
  std::string weights = read("llama-3.1-8b/model.safetensors");
  weights[weights.size() - 3] = static_cast<char>(weights[weights.size() - 3] ^ 1);
  write("llama-3.1-8b/model.safetensors", weights);
  EXPECT_THAT(run(), Not(HasSubstr(again)));
  EXPECT_THAT(run(), HasSubstr(again));
}

TEST_F(GradedRun, ReplayTellsOfEveryAnswerWhetherItIsFound) {
  const auto held = [](int at, const std::string& end = ",1") {  // three tokens of the prompt and an end
    std::string ids;
    for (int i = at; i < at + 3; ++i) ids += (i == at ? "" : ",") + std::to_string(2 + (i * i * 7) % 120);
    return "[" + ids + end + "]";
  };
  const auto turn = [](const std::string& answer) { return R"({"question":[5,6],"answer":)" + answer + "}"; };
  write("eval.jsonl", sample(0, turn(held(20)) + "," + turn(held(80)) + "," + turn("[124,125,126,1]") + "," + turn(held(20))) +
                          sample(0, turn(held(20))));
  call_ok({"run", "graded.yaml", "--set", "kv_policy=[{recipe: full}, {recipe: streaming, budget_tokens: 40}]", "--set",
           "replay={per_task: 1, steps: 18}", "--out", "out"});
  const CsvTable answers = read_csv("out/answers.csv");
  // The third is not in the prompt, the fourth's last steps are not recorded, and the second sample is not replayed.
  EXPECT_EQ(column(answers, "needle_found"), (std::vector<std::string>{"1", "1", "", "", "", "0", "1", "", "", ""}));
  const CsvTable summary = read_csv("out/summary.csv");
  EXPECT_EQ(column(summary, "needle_found_frac"), (std::vector<std::string>{"1.000000", "0.500000"}));
  // Three tokens that the prompt continues with are looked for whole, and need no end marker; two of it are too few.
  write("eval.jsonl", sample(0, turn(held(20, "")) + "," + turn("[" + std::to_string(2 + 7) + "," + std::to_string(2 + 28) + ",1]")));
  call_ok({"run", "graded.yaml", "--set", "kv_policy=full", "--set", "replay={per_task: 1, steps: 18}", "--out", "whole"});
  EXPECT_EQ(column(read_csv("whole/answers.csv"), "needle_found"), (std::vector<std::string>{"1", ""}));
}

TEST_F(GradedRun, AStoppedRunSaysThatItsAnswersAreKept) {
  call_ok({"run", "graded.yaml", "--set", "kv_policy=full", "--out", "whole"});
  make_partial();
  write("out/partial/of_other_settings.txt", "0 1 0 3 3 -1 -1 3 1 9 9 9 end\n");
  const auto stopped = [] { return error_when_stopped({"run", "graded.yaml", "--set", "kv_policy=full", "--out", "out"}); };
  EXPECT_EQ(stopped(), "kvlab: stopped before any of 1 runs was done\n");
  write("out/partial/" + key_of(run_folder("whole")) + ".txt", "0 1 0 3 3 -1 -1 3 1 9 9 9 end\n");
  EXPECT_EQ(stopped(), "kvlab: stopped before any of 1 runs was done; answers are kept in out, and the same command goes on from them\n");
}

// One task's answers have three tokens, the other's one: the table weights both alike, and says so.
TEST_F(GradedRun, TheTableSaysWhatItsKlIs) {
  std::string other = read("eval.jsonl");
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"\"a\"", "\"b\""}, {"[7,8,9]", "[7]"}})
    for (std::size_t at = other.find(from); at != std::string::npos; at = other.find(from, at)) other.replace(at, from.size(), to);
  write("eval.jsonl", read("eval.jsonl") + other);
  const Called called = call_ok(
      {"run", "graded.yaml", "--set", "kv_policy={recipe: streaming, budget_tokens: 40}", "--set", "question=decoded", "--out", "out"});
  const CsvTable summary = read_csv("out/summary.csv");
  ASSERT_EQ(summary.rows.size(), 2U);
  const double kl = sum(summary, "kl_to_full");
  EXPECT_GT(kl, 0.001);
  EXPECT_THAT(called.out, HasSubstr(fmt::format("  {:.3f}  ", kl / 2)));
  EXPECT_THAT(called.out, HasSubstr("kl: nats per token to the full cache, a mean of tasks and lengths weighted by their answers\n"));
}

SampleGrades graded(std::int32_t number) {
  SampleGrades sample;
  for (std::int32_t turn = 0; turn < 3; ++turn) {
    GradedAnswer a;
    a.sample = number, a.turn = turn, a.tokens = 7, a.bytes = 9, a.first_wrong = turn - 1, a.first_diverging = 2, a.agreeing = 5;
    a.is_full_exact = turn != 1, a.bits = 1.0 / 3, a.kl_nats = 1e-9, a.resident_bytes_frac = 0.25;
    sample.answers.push_back(a);
  }
  Fidelity f;
  f.attention_mass = 0.1, f.output_rel_err = 0.2, f.topk_recall = 0.3, f.kl = 0.4;
  f.far_mass = 0.5, f.far_mass_kept = 0.6, f.needle_mass = 0.7, f.needle_mass_kept = 1.0 / 7;
  sample.replayed = f;
  sample.found = {true, std::nullopt, false};
  return sample;
}

struct PartialAnswersFile : ::testing::Test {
  const TempFolder folder_;
  const std::string file_ = folder_.file("0001.txt");
};

TEST_F(PartialAnswersFile, GivesBackWhatWasGraded) {
  SampleGrades plain = graded(8);
  plain.replayed.reset(), plain.found.clear();
  {
    PartialAnswers answers(file_);
    answers.add(graded(4));
    answers.add(plain);
  }
  const PartialAnswers again(file_);
  ASSERT_EQ(again.by_sample().size(), 2U);
  const SampleGrades &known = again.by_sample().at(4), expected = graded(4);
  ASSERT_EQ(known.answers.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const GradedAnswer &a = known.answers[i], &b = expected.answers[i];
    EXPECT_EQ(std::tie(a.sample, a.turn, a.tokens, a.bytes, a.first_wrong, a.first_diverging, a.agreeing, a.is_full_exact),
              std::tie(b.sample, b.turn, b.tokens, b.bytes, b.first_wrong, b.first_diverging, b.agreeing, b.is_full_exact));
    EXPECT_EQ(std::tie(a.bits, a.kl_nats, a.resident_bytes_frac), std::tie(b.bits, b.kl_nats, b.resident_bytes_frac));
  }
  ASSERT_TRUE(known.replayed);
  EXPECT_EQ(std::tuple(known.replayed->attention_mass, known.replayed->needle_mass_kept), std::tuple(0.1, 1.0 / 7));
  EXPECT_EQ(known.found, expected.found);
  EXPECT_FALSE(again.by_sample().at(8).replayed);
  EXPECT_TRUE(again.by_sample().at(8).found.empty());
}

TEST_F(PartialAnswersFile, LinesThatWereCutOffAreGradedAgain) {
  {
    PartialAnswers answers(file_);
    answers.add(graded(4));
    answers.add(graded(5));
  }
  const std::string whole = read_file(file_);
  const std::size_t second = whole.find('\n') + 1;
  for (std::size_t end = second; end < whole.size() - 1; ++end) {
    std::ofstream(file_) << whole.substr(0, end);
    PartialAnswers again(file_);
    EXPECT_EQ(again.by_sample().count(4), 1U);
    EXPECT_EQ(again.by_sample().count(5), 0U) << whole.substr(second, end - second);
    again.add(graded(6));  // begins a line of its own
    const PartialAnswers third(file_);
    ASSERT_EQ(third.by_sample().size(), 2U) << whole.substr(second, end - second);
    EXPECT_EQ(third.by_sample().count(6), 1U);
  }
}

}  // namespace
}  // namespace kvlab
