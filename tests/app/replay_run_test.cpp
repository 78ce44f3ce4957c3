// Replays through the front: the columns of summary.csv, the shipped attention trace, and the experiments that are shipped.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "app/runs/accuracy/attention_samples.h"
#include "app/runs/plan/kv_memory.h"
#include "app/runs/sweep/experiment.h"
#include "tests/app/app_fixture.h"
#include "tests/short_run.h"
#include "traces/attention_trace.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

constexpr const char* kSample = KVLAB_SOURCE_DIR "/traces/samples/probe_niah.safetensors";
constexpr const char* kFileExperiment = KVLAB_SOURCE_DIR "/experiments/replay_file.yaml";

struct ReplayRun : AppTest {
  // The rows of kFileExperiment.
  static CsvTable summary_of(const std::string& out = "out") { return summary_after({kFileExperiment, "--out", out}); }
};

// Heads and steps average to the summary.
TEST_F(ReplayRun, SummaryHasARowPerRecipeAndBudget) {
  const CsvTable table = summary_of();
  const auto after_seed = table.columns.begin() + static_cast<std::ptrdiff_t>(table.at("seed")) + 1;
  EXPECT_EQ(
      std::vector<std::string>(after_seed, after_seed + 6),
      (std::vector<std::string>{"recipe", "budget_tokens", "attention_mass", "output_rel_err", "topk_recall", "resident_bytes_frac"}));
  ASSERT_EQ(table.rows.size(), 13U);
  std::set<std::string> pairs;
  for (const auto& row : table.rows) pairs.insert(row[table.at("recipe")] + " " + row[table.at("budget_tokens")]);
  EXPECT_EQ(pairs.size(), 13U);
  EXPECT_TRUE(pairs.contains("full 514") && pairs.contains("keydiff 64"));
  for (const char* file : {"out/heads.csv", "out/steps.csv"}) {
    const CsvTable parts = read_csv(file);
    std::map<std::string, std::pair<double, int>> sums;
    for (const auto& row : parts.rows) {
      auto& [sum, count] = sums[row[0]];
      sum += std::stod(row[parts.at("attention_mass")]), ++count;
    }
    for (std::size_t r = 0; r < table.rows.size(); ++r) {
      const auto& [sum, count] = sums.at(table.rows[r][0]);
      EXPECT_NEAR(sum / count, number(table, "attention_mass", r), 1e-6) << file;
    }
  }
}

// The others continue, and the front door is told of a folder to draw.
TEST_F(ReplayRun, ARefusedRecipeIsReportedWithItsPlace) {
  write("e.yaml", std::string("host: replay\nsamples: {niah: {file: ") + kSample +
                      "}}\nkv_policy:\n  - full\n  - {recipe: snapkv, budget_tokens: 8}\n  - {recipe: knorm, budget_tokens: 64}\n");
  ::setenv("KVLAB_RESULT_FILE", "told", 1);
  EXPECT_THAT(error_of_call({"run", "e.yaml"}),
              has_all({" failed: e.yaml:5:5: recipe 'snapkv' cannot run: a budget of 8 tokens",
                       "kvlab: 1 of 3 runs failed (kv_policy=snapkv 8 seed=1); tables and figures are of the others\n"}));
  EXPECT_EQ(read_csv("results/e/summary.csv").rows.size(), 2U);
  EXPECT_THAT(read("told"), HasSubstr("results/e"));
  ::unsetenv("KVLAB_RESULT_FILE");
}

TEST_F(ReplayRun, TheFullCacheIsTheTruthAndMoreBudgetKeepsMore) {
  const CsvTable table = summary_of();
  ASSERT_EQ(text(table, "recipe"), "full");
  EXPECT_EQ(text(table, "family"), "reference");
  for (const char* column : {"attention_mass", "topk_recall", "resident_bytes_frac", "needle_kept"})
    EXPECT_EQ(number(table, column), 1) << column;
  for (const char* column : {"output_rel_err", "kl_nats", "host_bytes_frac"}) EXPECT_EQ(number(table, column), 0) << column;
  for (std::size_t r = 1; r < table.rows.size(); ++r) {
    EXPECT_LT(number(table, "attention_mass", r), 1);
    EXPECT_GT(number(table, "output_rel_err", r), 0);
  }
  for (std::size_t r = 2; r < table.rows.size(); ++r) {
    if (text(table, "recipe", r) != table.rows[r - 1][table.at("recipe")]) continue;
    for (const char* grows : {"attention_mass", "resident_bytes_frac"})
      EXPECT_GT(number(table, grows, r), number(table, grows, r - 1)) << grows << " of row " << r;
    EXPECT_LT(number(table, "output_rel_err", r), number(table, "output_rel_err", r - 1)) << "row " << r;
  }
  // Streaming keeps the first 4 and the newest tokens, whatever they hold, so its bytes are known beforehand: per token and KV
  // head 2 x 64 channels of 2 bytes, and 4 bytes for its position.
  const auto streaming =
      std::find_if(table.rows.begin(), table.rows.end(), [&](const auto& row) { return row[table.at("recipe")] == "streaming"; });
  double expected = 0;
  for (int step = 0; step < 15; ++step) expected += 64.0 * (256 + 4) / 256 / (515 + step) / 15;
  EXPECT_NEAR(std::stod((*streaming)[table.at("resident_bytes_frac")]), expected, 1e-6);
  EXPECT_EQ((*streaming)[table.at("attended_tokens")], "65.00");  // with the token that is decoded
}

TEST_F(ReplayRun, SameBytesTwiceAndWithOneJob) {
  EXPECT_THAT(call({"run", kFileExperiment, "--out", "one", "--jobs", "1"}).out,
              HasSubstr("run           recipe     kv_policy.budget_tokens  attention_mass  output_rel_err  needle_kept"));
  summary_of("two");
  for (const char* file : {"summary.csv", "heads.csv", "steps.csv"}) {
    EXPECT_FALSE(read(fs::path("one") / file).empty());
    EXPECT_EQ(read(fs::path("one") / file), read(fs::path("two") / file)) << file;
  }
}

// A replay of 90 made-up tokens.
struct MadeUpReplay : AppTest {
  static void run(const std::string& policy, const std::string& sample = "s") {
    write("made_up.yaml", "host: replay\nsamples: {" + sample +
                              ": {synthetic: {layers: 1, q_heads: 4, kv_heads: 2, head_dim: 32, prompt_tokens: 90, decode_tokens: 3}}}\n"
                              "kv_policy: " +
                              policy + "\n");
    call_ok({"run", "made_up.yaml", "--out", "out", "--quiet", "--force"});
  }
  static std::string defaults() {
    const std::string text = read(run_folder("out") / "resolved.yaml");
    return text.substr(text.find("# defaults in force"));
  }
};

TEST_F(MadeUpReplay, BudgetsAreReportedAsGiven) {
  run("[{recipe: streaming, budget_tokens: 512}, {recipe: streaming, budget_frac: 0.5}, full]");
  EXPECT_EQ(column(read_csv("out/summary.csv"), "budget_tokens"), (std::vector<std::string>{"512", "45", "90"}));
  EXPECT_FALSE(fs::exists(run_folder("out") / "kept.jsonl") || fs::exists("out/kept.jsonl")) << "nothing asks for it";
}

TEST_F(MadeUpReplay, NamesOfSamplesMayHoldCommas) {
  run("full", "\"a, b\"");
  for (const char* file : {"out/heads.csv", "out/steps.csv"}) {
    const CsvTable table = read_csv(file);
    for (const auto& row : table.rows) {
      ASSERT_EQ(row.size(), table.columns.size()) << file;
      EXPECT_EQ(row[table.at("sample")], "a, b");
    }
  }
}

// Lines of kept.jsonl, the positions by [layer][KV head], of one sample.
std::vector<std::vector<std::vector<int>>> kept_positions(const std::string& text) {
  std::vector<std::vector<std::vector<int>>> kept;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    EXPECT_EQ(json.at("sample"), "s");
    const std::size_t layer = json.at("layer"), head = json.at("kv_head");
    if (layer == kept.size()) kept.emplace_back();
    EXPECT_EQ(layer + 1, kept.size());
    EXPECT_EQ(head, kept[layer].size());
    kept[layer].push_back(json.at("kept"));
  }
  return kept;
}

std::vector<int> numbers(int begin, int end) {
  std::vector<int> all(static_cast<std::size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

// The prompt has 90 tokens; the 3 decoded ones are not in the list, and streaming has not made room for them yet.
TEST_F(MadeUpReplay, KeptPositionsByHand) {
  run("[{recipe: sliding_window, budget_tokens: 20}, {recipe: streaming, budget_tokens: 24}]\noutput: {kept: true}");
  const std::vector<int> window = numbers(70, 90);
  EXPECT_EQ(kept_positions(read(run_folder("out", 0) / "kept.jsonl")), (std::vector<std::vector<std::vector<int>>>{{window, window}}));
  std::vector<int> ends = numbers(0, 4);
  ends.insert(ends.end(), window.begin(), window.end());
  EXPECT_EQ(kept_positions(read(run_folder("out", 1) / "kept.jsonl")), (std::vector<std::vector<std::vector<int>>>{{ends, ends}}));
  const std::string first = read("out/kept.jsonl").substr(0, read("out/kept.jsonl").find('\n'));
  EXPECT_THAT(first, HasSubstr("\"run\":\"" + run_id("out") + "\",\"recipe\":\"sliding_window\",\"budget_tokens\":20,\"sample\":\"s\""));
  EXPECT_EQ(read("out/kept.jsonl"), read(run_folder("out", 0) / "kept.jsonl") + read(run_folder("out", 1) / "kept.jsonl"));
}

TEST_F(MadeUpReplay, KeptPositionsOfUnequalHeads) {
  run("{recipe: adakv, budget_tokens: 40}\noutput: {kept: true}");
  const auto kept = kept_positions(read(run_folder("out") / "kept.jsonl"));
  ASSERT_EQ(kept.size(), 1U);
  ASSERT_EQ(kept[0].size(), 2U);
  EXPECT_EQ(kept[0][0].size() + kept[0][1].size(), 80U);
  EXPECT_NE(kept[0][0].size(), kept[0][1].size());
  EXPECT_EQ(text(read_csv("out/summary.csv"), "kept_tokens"), "40.00");
  for (const std::vector<int>& head : kept[0]) {
    EXPECT_TRUE(std::is_sorted(head.begin(), head.end()));
    EXPECT_GE(head.front(), 0);
    EXPECT_LT(head.back(), 90);
  }
}

// Of 90 prompt tokens the newest 20 stay, and after each of 3 decode steps the newest 20 again.
TEST_F(MadeUpReplay, KeptPositionsOfDecodeSteps) {
  run("{recipe: sliding_window, budget_tokens: 20}\noutput: {kept_steps: true}");
  std::istringstream lines(read("out/kept_steps.jsonl"));
  int at = 0;
  for (std::string line; std::getline(lines, line); ++at) {
    const nlohmann::json json = nlohmann::json::parse(line);
    const int step = at / 2 + 1;  // two KV heads of one layer
    EXPECT_EQ(std::tuple(json.at("step"), json.at("kv_head"), json.at("kept")), std::tuple(step, at % 2, numbers(70 + step, 90 + step)));
  }
  EXPECT_EQ(at, 6);
  EXPECT_FALSE(fs::exists("out/kept.jsonl"));
}

TEST_F(MadeUpReplay, DefaultsInForceAreTheRecipesParts) {
  run("{recipe: kivi2}");
  for (const char* text : {"kv_policy.scorer:", "budget"}) EXPECT_THAT(defaults(), Not(HasSubstr(text)));
  EXPECT_THAT(defaults(),
              has_all({"kv_policy.format: {kivi: {bits: 2, group_tokens: 32, residual_tokens: 128}}\n", "kv_policy.trigger: never\n"}));
  run("{recipe: streaming, scorer: key_norm}");
  EXPECT_THAT(defaults(), Not(HasSubstr("kv_policy.scorer:")));
  EXPECT_THAT(defaults(), has_all({"kv_policy.trigger: {every_step: {from: prompt_end}}\n", "kv_policy.budget_tokens: 1024\n"}));
  EXPECT_THAT(defaults(), Not(HasSubstr("budget_frac")));
  run("{recipe: streaming, budget_frac: 0.5}");
  EXPECT_THAT(defaults(), Not(HasSubstr("budget")));
}

TEST(ShippedAttentionTrace, HasANeedle) {
  EXPECT_LE(fs::file_size(kSample), 8U << 20);
  const AttentionTrace trace = read_attention_trace(kSample);
  EXPECT_EQ(std::tuple(trace.prompt_tokens, trace.num_tokens, trace.kv_heads, trace.layers.size()), std::tuple(514, 529, 2, 8U));
  ASSERT_EQ(trace.needles.size(), 1U);
  std::string needle;
  for (std::int32_t i = trace.needles[0].first; i < trace.needles[0].second; ++i)
    needle += static_cast<char>(trace.ids[static_cast<std::size_t>(i)]);
  EXPECT_EQ(needle, "274916");
}

// The shipped file is the output of the README's command; it has half precision.
TEST_F(ReplayRun, TheShippedTraceIsRecordedAgain) {
  call_ok({"trace", "record", "--model", KVLAB_SOURCE_DIR "/engine/probe", "--ids", KVLAB_SOURCE_DIR "/traces/samples/probe_niah.json",
           "--decode-tokens", "8", "--out", "again.safetensors"});
  const AttentionTrace shipped = read_attention_trace(kSample), again = read_attention_trace("again.safetensors");
  EXPECT_EQ(std::tuple(shipped.ids, shipped.needles, shipped.question_begin), std::tuple(again.ids, again.needles, again.question_begin));
  ASSERT_EQ(shipped.layers.size(), again.layers.size());
  for (std::size_t l = 0; l < shipped.layers.size(); ++l) {
    ASSERT_EQ(shipped.layers[l].k.size(), again.layers[l].k.size());
    for (std::size_t i = 0; i < shipped.layers[l].k.size(); ++i)
      ASSERT_NEAR(shipped.layers[l].k[i], again.layers[l].k[i], 0.02) << l << " " << i;
  }
}

TEST(ShippedReplays, EveryRecipeOfTheProbesExperimentCanBeRead) {
  const Experiment experiment = load_experiment(KVLAB_SOURCE_DIR "/experiments/replay_probe.yaml", {});
  std::map<std::string, int> runs;
  for (const RunSpec& run : experiment.runs) {
    Params p = experiment.params(run);
    ++runs[read_named_recipe(p, "replay").name];
  }
  EXPECT_GE(runs.size(), 30U);
  for (const auto& [recipe, count] : runs) EXPECT_TRUE(count == 1 || count == 4) << recipe << " has " << count << " budgets";
  EXPECT_EQ(std::tuple(runs.at("snapkv"), runs.at("full")), std::tuple(4, 1));
}

// Samples that an experiment makes and keeps in a file.

const char* const kMade = "synthetic: {layers: 1, q_heads: 4, kv_heads: 2, head_dim: 32, prompt_tokens: 90, decode_tokens: 3";

struct SampleFile : AppTest {
  static Called run(const std::string& sample, const std::string& more = "") {
    fs::remove_all("out");
    write("kept.yaml", "host: replay\nsamples: {s: {" + sample + "}}\nkv_policy: {recipe: streaming, budget_tokens: 32}\n" + more);
    return call({"run", "kept.yaml", "--out", "out", "--quiet", "--jobs", "1"});
  }
  static Called synthetic(const std::string& parameters, const std::string& more = "") {
    return run(kMade + parameters + "}, file: kept.safetensors", more);
  }
  static Called recording(const std::string& parameters) {
    return run("record: {model: " KVLAB_SOURCE_DIR "/engine/probe, eval: " KVLAB_SOURCE_DIR
               "/engine/probe/eval/dev.jsonl, task: niah, length_tokens: 1024, " +
               parameters + "}, file: kept.safetensors");
  }
  // Another sample takes the place of the last run's.
  static void forget_samples() { ASSERT_EQ(run(std::string(kMade) + ", needles: 0}").status, 0); }
  // Without the column that says which run it is.
  static std::string steps() {
    std::string all;
    for (std::vector<std::string> row : read_csv("out/steps.csv").rows) all += csv_line({row.begin() + 1, row.end()});
    return all;
  }
  static std::string refused(const std::string& why) { return "holds another sample: " + why + "; delete it, or name another file\n"; }
  // The kept file as versions before this one wrote it; it will be read again.
  static void forget_settings() {
    forget_samples();
    AttentionTrace trace = read_attention_trace("kept.safetensors");
    trace.made_for.clear();
    write_attention_trace("kept.safetensors", trace, TraceFloat::kF32);
  }
};

TEST_F(SampleFile, IsFoundAgainByTheSameSettings) {
  ASSERT_EQ(synthetic("").status, 0);
  const std::string kept = read("kept.safetensors"), first = steps();
  forget_samples();
  EXPECT_EQ(synthetic(", needles: 2").status, 0) << "the default";
  EXPECT_EQ(read("kept.safetensors"), kept);
  EXPECT_EQ(steps(), first);
}

TEST_F(SampleFile, IsRefusedForOtherParametersAndSeeds) {
  const Called called = synthetic("", "seed: [1, 2]\n");
  EXPECT_NE(called.status, 0);
  EXPECT_THAT(called.err, HasSubstr(refused("it was made for 'seed = 1', and here it is 'seed = 2'")));
  ASSERT_EQ(synthetic("").status, 0);
  const Called other = synthetic(", needles: 1");
  EXPECT_EQ(other.status, 2);
  EXPECT_TRUE(other.err.ends_with("kept.safetensors " + refused("it was made for 'needles = 2', and here it is 'needles = 1'")))
      << other.err;
  EXPECT_TRUE(synthetic("", "seed: 2\n").err.ends_with(refused("it was made for 'seed = 1', and here it is 'seed = 2'")));
}

TEST_F(SampleFile, IsRefusedForAnotherPrompt) {
  if (short_run()) GTEST_SKIP() << "recording the probe several times takes too long with KVLAB_SHORT set";
  ASSERT_EQ(recording("decode_tokens: 2").status, 0);
  forget_samples();
  EXPECT_EQ(recording("decode_tokens: 2, index: 0").status, 0);
  EXPECT_TRUE(recording("decode_tokens: 2, index: 1").err.ends_with(refused("it was made for 'index = 0', and here it is 'index = 1'")));
  EXPECT_TRUE(
      recording("decode_tokens: 3").err.ends_with(refused("it was made for 'decode_tokens = 2', and here it is 'decode_tokens = 3'")));
  forget_settings();
  EXPECT_EQ(recording("decode_tokens: 2").status, 0);
  EXPECT_TRUE(recording("decode_tokens: 3").err.find("decoded tokens, and here it is") != std::string::npos);
  EXPECT_THAT(recording("decode_tokens: 2, index: 1").err, HasSubstr("holds another sample: it"));
}

TEST_F(SampleFile, WithoutSettingsIsComparedByWhatCanBeSeen) {
  ASSERT_EQ(synthetic("").status, 0);
  forget_settings();
  EXPECT_EQ(synthetic("").status, 0);
  EXPECT_TRUE(synthetic(", needles: 1").err.ends_with(refused("its needles are elsewhere")));
  EXPECT_TRUE(run(std::string(kMade) + "4}, file: kept.safetensors").err.ends_with(refused("it has 3 decoded tokens, and here it is 34")));
}

std::shared_ptr<const AttentionSample> sample_of(const std::string& text, std::uint64_t seed) {
  Params p = Params::from_text("{s: {" + text + "}}", "samples");
  return read_attention_samples(p, seed).front();
}

TEST(Samples, OnlyMadeUpOnesDifferBetweenSeeds) {
  const std::string file = "file: " KVLAB_SOURCE_DIR "/traces/samples/probe_niah.safetensors";
  EXPECT_EQ(sample_of(file, 1), sample_of(file, 2));
  const auto first = sample_of(std::string(kMade) + "}", 1);
  EXPECT_EQ(first, sample_of(std::string(kMade) + "}", 1));
  EXPECT_NE(first, sample_of(std::string(kMade) + "}", 2));
}

TEST(Samples, AreGivenBackWithTheNextRun) {
  const std::string made = std::string(kMade) + "}";
  const std::weak_ptr<const AttentionSample> first = sample_of(made, 11);
  EXPECT_FALSE(first.expired()) << "the next run may ask for it again";
  const std::weak_ptr<const AttentionSample> second = sample_of(made, 12);
  EXPECT_TRUE(first.expired());
  EXPECT_FALSE(second.expired());
}

// ---- a damaged file, through `kvlab run`; tests/traces has every kind of damage

struct BadSample : AppTest {
  // The message of `kvlab run` about sample.safetensors: one line, and nothing is written.
  static std::string message() {
    write("replay.yaml", "host: replay\nsamples: {s: {file: sample.safetensors}}\nkv_policy: full\n");
    const Called called = call({"run", "replay.yaml", "--out", "out"});
    EXPECT_FALSE(fs::exists("out"));
    EXPECT_EQ(std::tuple(called.status, called.out), std::tuple(2, ""));
    const std::string before = "kvlab: run 0001 (seed=1) failed: ";
    EXPECT_TRUE(called.err.starts_with(before)) << called.err;
    EXPECT_EQ(std::count(called.err.begin(), called.err.end(), '\n'), 1) << called.err;
    return called.err.substr(std::min(before.size(), called.err.size()));
  }
  // A trace of 6 tokens with one layer.
  static void write_sample(const std::string& prompt_tokens, std::int64_t keys = 6) {
    const std::vector<float> zeros(1000);
    write_safetensors(
        "sample.safetensors",
        {{"L0.k", "F32", {keys, 2, 8}, zeros.data()}, {"L0.q", "F32", {6, 4, 8}, zeros.data()}, {"L0.v", "F32", {6, 2, 8}, zeros.data()}},
        {{"format", "kvlab-attention-trace-1"}, {"model", "m"}, {"prompt_tokens", prompt_tokens}, {"rope_base", "0"}});
  }
};

TEST_F(BadSample, IsRefusedInOneLine) {
  fs::create_directory("sample.safetensors");
  EXPECT_EQ(message(), "sample.safetensors: is not a regular file; a safetensors file is expected\n");
  fs::remove("sample.safetensors");
  write_sample("5", 5);
  EXPECT_EQ(message(), "sample.safetensors: tensor 'L0.k' has shape [5, 2, 8], expected [6, 2, 8]\n");
  write_sample("5");
  fs::resize_file("sample.safetensors", fs::file_size("sample.safetensors") - 1);
  EXPECT_EQ(message(), "sample.safetensors: cut short: tensor 'L0.v' ends at byte 1536 of the data, which is 1535 bytes long\n");
  write_sample("6");
  EXPECT_EQ(message(), "replay.yaml:2:14: the sample has no token after the prompt, so there is nothing to measure\n");
}

TEST_F(BadSample, TheGoodOneRuns) {
  write_sample("5");
  write("replay.yaml", "host: replay\nsamples: {s: {file: sample.safetensors}}\nkv_policy: [{recipe: snapkv, budget_tokens: 40}, full]\n");
  call_ok({"run", "replay.yaml", "--out", "out"});
}

}  // namespace
}  // namespace kvlab
