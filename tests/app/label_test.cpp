// kvlab label, and recipes that take what it writes.
#include "base/safetensors.h"
#include "engine/label/label_heads.h"
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

constexpr const char* kLabelModel = KVLAB_SOURCE_DIR "/engine/probe";
constexpr const char* kLabelSample = KVLAB_SOURCE_DIR "/traces/samples/probe_niah.safetensors";

struct Label : AppTest {
  static void label(const std::string& what, const std::vector<std::string>& options) {
    EXPECT_THAT(call_ok({"label", what, "--model", kLabelModel, "--out", what + ".safetensors"}, options).out,
                HasSubstr("wrote " + what + ".safetensors: "));
  }
  static void replay(const std::string& policies) {
    write("e.yaml",
          std::string("host: replay\nsamples: {s: {file: ") + kLabelSample + "}}\nkv_policy:" + policies + "\noutput: {kept: true}\n");
    call_ok({"run", "e.yaml", "--out", "out", "--quiet", "--force"});
  }
};

TEST_F(Label, HeadsAreWrittenAndRead) {
  label("heads", {"--probes", "1", "--prompt-tokens", "400"});
  const SafetensorsFile file = SafetensorsFile::open("heads.safetensors");
  for (const char* name : {"retrieval", "semantic", "sink", "echo", "induction"})
    EXPECT_EQ(file.info(name).shape, (std::vector<std::int64_t>{8, 8})) << name;
  for (const char* name : {"gates", "kv_retrieval", "kv_echo", "kv_induction"})
    EXPECT_EQ(file.info(name).shape, (std::vector<std::int64_t>{8, 2})) << name;
  EXPECT_EQ(file.metadata().at("model"), "probe");
  const std::string first = read("heads.safetensors");
  label("heads", {"--probes", "1", "--prompt-tokens", "400"});
  EXPECT_EQ(read("heads.safetensors"), first);
  replay("\n  - {recipe: [duo, razor, razor_compensation, compresskv], budget_tokens: 96, weights: heads.safetensors}");
  const CsvTable table = read_csv("out/summary.csv");
  ASSERT_EQ(table.rows.size(), 4U);
  // Half of 16 rows keep all 514 tokens, the others 96; of razor 2 rows, and the others a fifth of the prompt in addition to the sinks.
  EXPECT_EQ(std::tuple(text(table, "kept_tokens"), text(table, "kept_tokens", 3)), std::tuple("305.00", "96.00"));
}

TEST_F(Label, QueryFiltersAreWrittenAndRead) {
  label("q_filters", {"--calibration-tokens", "600"});
  EXPECT_EQ(SafetensorsFile::open("q_filters.safetensors").info("q_filters").shape, (std::vector<std::int64_t>{8, 2, 64}));
  replay("\n  - {recipe: q_filters, budget_tokens: 128, weights: q_filters.safetensors}\n  - {recipe: random, budget_tokens: 128}");
  const CsvTable table = read_csv("out/summary.csv");
  EXPECT_EQ(text(table, "kept_tokens"), "128.00");
  EXPECT_GT(number(table, "attention_mass"), number(table, "attention_mass", 1));
  write("text.txt", "A text of one's own, with words in it.");
  label("q_filters", {"--text", "text.txt"});
  EXPECT_EQ(SafetensorsFile::open("q_filters.safetensors").metadata().at("calibration_tokens"), "39");
}

TEST_F(Label, PatternsAreWrittenAndRead) {
  EXPECT_THAT(call_ok({"label", "prefill", "--model", kLabelModel, "--out", "p.json", "--probes", "1", "--prompt-tokens", "300",
                       "--flops-frac", "0.6"})
                  .out,
              HasSubstr("wrote p.json: 8 layers of 8 query heads"));
  replay("\n  - {recipe: minference, weights: p.json}\n  - minference");
  const CsvTable table = read_csv("out/prompts.csv");
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_LT(number(table, "pairs_frac"), 0.9);
  EXPECT_EQ(number(table, "pairs_frac", 1), 1);  // without patterns: more tokens than the prompt has
  write("other.yaml",
        std::string("host: replay\nsamples: {s: {file: ") + kLabelSample + "}}\nkv_policy: {recipe: snapkv, weights: p.json}\n");
  EXPECT_THAT(call({"run", "other.yaml"}).err, HasSubstr("no part of recipe 'snapkv' takes weights"));
}

TEST_F(Label, ErrorsComeBeforeTheModelRuns) {
  const auto error = [](const std::string& out) { return call({"label", "heads", "--model", kLabelModel, "--out", out}).err; };
  EXPECT_THAT(error("heads.tsv"), HasSubstr("must end in .safetensors"));
  EXPECT_THAT(error("nowhere/heads.safetensors"), HasSubstr("its folder does not exist"));
  EXPECT_THAT(error(std::string(kLabelModel) + "/heads.safetensors"), HasSubstr("among the model's own"));
  EXPECT_EQ(call({"label", "gates"}).status, 2);
}

}  // namespace
}  // namespace kvlab
