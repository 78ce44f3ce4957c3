// Samples that an experiment makes and keeps in a file.

#include "app/runs/accuracy/attention_samples.h"
#include "tests/app/app_fixture.h"
#include "tests/short_run.h"
#include "traces/attention_trace.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

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
