#include <sys/stat.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/safetensors.h"
#include "kernels/device/cuda/memory.h"
#include "tests/app/app_fixture.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

const std::string kProbeFolder = KVLAB_SOURCE_DIR "/engine/probe";

struct LogitsCli : AppTest {
  // Output of `kvlab logits`, on success or not.
  static std::string logits(const std::vector<std::string>& arguments, const std::string& model = kProbeFolder) {
    const Called called = call({"logits", "--model", model, "--out", "out.safetensors"}, arguments);
    EXPECT_EQ(called.status, called.err.empty() ? 0 : 2);
    return called.out + called.err;
  }
  static void write_ids(const std::string& name, const std::vector<std::int32_t>& ids) {
    write_safetensors("ids.safetensors", {{name, "I32", {std::ssize(ids)}, ids.data()}}, {});
  }
  static std::string logits_error(const std::vector<std::int32_t>& ids) {
    write_ids("0.ids", ids);
    return logits({"--ids", "ids.safetensors"});
  }
};

float difference(const std::string& name, const SafetensorsFile& a, const SafetensorsFile& b) {
  const std::vector<float> x = a.floats(name), y = b.floats(name, a.info(name).shape);
  float worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::fabs(x[i] - y[i]));
  return worst;
}

// The two shorter prompts of the probe's golden file; the third, of 2,866 tokens, is the engine's own test's.
TEST_F(LogitsCli, TheProbesGoldenPrompts) {
  const SafetensorsFile golden = SafetensorsFile::open(kProbeFolder + "/logits_golden.safetensors");
  const std::vector<std::int32_t> a = golden.ints("0.ids"), b = golden.ints("1.ids");
  write_safetensors(
      "ids.safetensors",
      {{"0.ids", "I32", {std::ssize(a)}, a.data()}, {"1.ids", "I32", {std::ssize(b)}, b.data()}, {"note", "I32", {1}, a.data()}}, {});
  const std::vector<std::string> whole{"--ids", "ids.safetensors"}, chunks{"--ids", "ids.safetensors", "--chunk-tokens", "100"};
  for (const std::vector<std::string>& arguments : {whole, chunks}) {
    EXPECT_EQ(logits(arguments),
              "wrote out.safetensors: 2 prompts, " + std::to_string(a.size() + b.size()) + " tokens, vocabulary of 264\n");
    const SafetensorsFile written = SafetensorsFile::open("out.safetensors");
    EXPECT_EQ(written.tensors().size(), 2U);
    for (const char* name : {"0.logits", "1.logits"}) EXPECT_LE(difference(name, golden, written), 2e-4F) << name;
  }
}

TEST_F(LogitsCli, ErrorsAreOneLine) {
  EXPECT_EQ(logits({"--ids", "none"}), "kvlab: none: cannot be opened: No such file or directory\n");
  EXPECT_EQ(logits({"--ids", "none"}, "nowhere"), "kvlab: nowhere/config.json: cannot be read\n");
  EXPECT_EQ(logits_error({}), "kvlab: ids.safetensors: tensor '0.ids' holds no ids\n");
  EXPECT_EQ(logits_error({256, 264}), "kvlab: ids.safetensors: tensor '0.ids' has id 264 at [1], outside [0, 264) of model 'probe'\n");
  EXPECT_EQ(logits_error({-1}), "kvlab: ids.safetensors: tensor '0.ids' has id -1 at [0], outside [0, 264) of model 'probe'\n");
  EXPECT_EQ(logits_error(std::vector<std::int32_t>(4097, 1)),
            "kvlab: ids.safetensors: tensor '0.ids' has 4097 ids, model 'probe' takes at most 4096 tokens\n");
  write_ids("ids", {1});
  EXPECT_EQ(logits({"--ids", "ids.safetensors"}),
            "kvlab: ids.safetensors: has no tensor with token ids; they are named '0.ids', '1.ids', ... and are I32 or I64\n");
  const float real = 1;
  write_safetensors("ids.safetensors", {{"0.ids", "F32", {1}, &real}}, {});
  EXPECT_EQ(logits({"--ids", "ids.safetensors"}), "kvlab: ids.safetensors: tensor '0.ids' has dtype F32, expected I32 or I64\n");
  const std::vector<std::int32_t> square{1, 2, 3, 4};
  write_safetensors("ids.safetensors", {{"0.ids", "I32", {2, 2}, square.data()}}, {});
  EXPECT_EQ(logits({"--ids", "ids.safetensors"}), "kvlab: ids.safetensors: tensor '0.ids' has shape [2, 2], expected [any]\n");
}

TEST_F(LogitsCli, WhatCannotBeWrittenIsFoundOutFirst) {
  write_ids("0.ids", {256});
  const auto error = [](const std::string& out) {
    return call({"logits", "--model", kProbeFolder, "--ids", "ids.safetensors", "--out", out}).err;
  };
  EXPECT_EQ(error("no/where.safetensors"), "kvlab: no/where.safetensors: its folder does not exist\n");
  EXPECT_EQ(error(""), "kvlab: --out: a file's name is expected\n");
  ASSERT_EQ(::mkfifo("pipe", 0600), 0);
  EXPECT_EQ(error("pipe"), "kvlab: pipe: is not a regular file and is not replaced by one\n");
  EXPECT_EQ(error("./ids.safetensors"), "kvlab: ./ids.safetensors: --out would replace the file of --ids\n");
}

TEST_F(LogitsCli, LogitsBeyondFloatsAreTheModelsFault) {
  fs::create_directory("huge");
  nlohmann::json config = nlohmann::json::parse(std::ifstream(kProbeFolder + "/config.json"));
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4}, {"attention_factor", 1e300}};
  std::ofstream("huge/config.json") << config;
  fs::create_symlink(kProbeFolder + "/model.safetensors", "huge/model.safetensors");
  write_ids("0.ids", {256, 1});
  EXPECT_EQ(logits({"--ids", "ids.safetensors"}, "huge"),
            "kvlab: huge: the logits of tensor '0.ids' at [0] are not finite; weights or RoPE scaling go beyond float32\n");
}

TEST_F(LogitsCli, CudaRunsOrIsRefused) {
  write_ids("0.ids", {256});
  const std::string said = logits({"--ids", "ids.safetensors", "--backend", "cuda"});
  EXPECT_TRUE(said.starts_with(num_gpus() > 0 ? "wrote out.safetensors: 1 prompts, 1 tokens" : "kvlab: backend cuda: ")) << said;
}

struct Tokenize : AppTest {
  // Status, standard output, standard error.
  static std::string run(const std::vector<std::string>& arguments) {
    const Called called = call({"tokenize"}, arguments);
    return std::to_string(called.status) + " " + called.out + called.err;
  }
  static std::string file(const std::string& text) {
    write("input", text);
    return "input";
  }
  const std::string llama2 = KVLAB_SOURCE_DIR "/tests/parity/tokenizer/llama2", probe = KVLAB_SOURCE_DIR "/engine/probe";
};

TEST_F(Tokenize, PrintsIdsTextsAndTokens) {
  EXPECT_EQ(run({"--model", probe, "--text", file("hi<s>\n")}), "0 [104, 105, 256, 10]\n");
  EXPECT_EQ(run({"--model", probe, "--ids", file("[104, 105, 256, 10]")}), "0 hi<s>\n");
  EXPECT_EQ(run({"--model", probe, "--ids", file("[104, 105, 256, 10]"), "--no-special"}), "0 hi\n");
  EXPECT_TRUE(run({"--model", llama2, "--text", file("a"), "--tokens"}).starts_with("0 1 \"<s>\"\n"));
  EXPECT_FALSE(run({"--model", llama2, "--text", file("a"), "--tokens", "--no-special"}).starts_with("0 1 \"<s>\"\n"));
  const std::string quoted = run({"--model", llama2, "--text", file("a\"\n"), "--tokens"});
  EXPECT_TRUE(quoted.ends_with("264 \"\\\"\"\n261 \"\\n\"\n")) << quoted;
}

TEST_F(Tokenize, SaysWhatIsWrong) {
  const std::string ids = file("[1, -2]");
  EXPECT_EQ(run({"--model", probe, "--ids", ids}),
            "2 kvlab: " + ids + ": '[1]' = -2 is not supported; supported: an integer in [0, 2147483647]\n");
  EXPECT_EQ(run({"--model", probe, "--ids", file("{}")}), "2 kvlab: " + ids + ": not a JSON list of token ids\n");
  EXPECT_EQ(run({"--model", probe, "--ids", file(std::string(1'000'000, '[') + std::string(1'000'000, ']'))}),
            "2 kvlab: " + ids + ": values in it are nested deeper than 64 levels\n");
  EXPECT_EQ(run({"--model", probe, "--ids", file("[300]")}),
            "2 kvlab: " + probe + "/tokenizer.json: no token has id 300; ids lie in [0, 259)\n");
  EXPECT_EQ(run({"--model", probe, "--text", file("\xff")}), "2 kvlab: " + ids + ": byte 0 is not UTF-8, which a tokenizer reads\n");
  EXPECT_EQ(run({"--modle", probe, "--text", ids}), "2 kvlab: unknown option '--modle' of 'tokenize'; did you mean '--model'?\n");
  EXPECT_EQ(run({"--model", probe, "--txt=" + ids}), "2 kvlab: unknown option '--txt' of 'tokenize'; did you mean '--text'?\n");
  EXPECT_EQ(run({"--model", probe, "--ids", file("[104]"), "--tokens"}),
            "2 kvlab: --tokens excludes --ids (kvlab --help shows what there is)\n");
  EXPECT_EQ(run({"--model", probe}), "2 kvlab: Exactly 1 option from [--text,--ids] is required (kvlab --help shows what there is)\n");
}

}  // namespace
}  // namespace kvlab
