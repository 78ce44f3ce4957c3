#include <sys/stat.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/safetensors.h"
#include "engine/label/label_heads.h"
#include "kernels/device/cuda/memory.h"
#include "policies/kv/recipe/recipe.h"
#include "tests/app/app_fixture.h"
#include "traces/attention_trace.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

// A folder with the probe but for its config.json, which is returned.
nlohmann::json probe_in(const fs::path& folder) {
  const fs::path probe = KVLAB_SOURCE_DIR "/engine/probe";
  fs::create_directory(folder);
  for (const char* name : {"model.safetensors", "tokenizer.json"}) fs::create_symlink(probe / name, folder / name);
  return nlohmann::json::parse(std::ifstream(probe / "config.json"));
}

struct RecordCli : AppTest {
  // Output of `kvlab trace record`, on success or not.
  static std::string record(const std::vector<std::string>& arguments, const std::string& model = KVLAB_SOURCE_DIR "/engine/probe") {
    const Called called = call({"trace", "record", "--model", model, "--out", "out.safetensors"}, arguments);
    EXPECT_EQ(called.status, called.err.empty() ? 0 : 2);
    return called.out + called.err;
  }
  // Writes a file of this text; returns its name.
  static std::string file(const std::string& name, const std::string& text) {
    write(name, text);
    return name;
  }
  static AttentionTrace recorded() { return read_attention_trace("out.safetensors"); }
};

TEST_F(RecordCli, TextIsBytesBehindTheBeginOfSequence) {
  const std::string said = record({"--text", file("t.txt", "\u00e9<s>"), "--decode-tokens", "2", "--dtype", "f32", "--w-o", "--w-q"});
  EXPECT_TRUE(said.starts_with("wrote out.safetensors: 4 prompt tokens, 2 more, 8 layers, ")) << said;
  const AttentionTrace t = recorded();
  EXPECT_EQ(std::vector<std::int32_t>(t.ids.begin(), t.ids.begin() + 4), (std::vector<std::int32_t>{256, 0xC3, 0xA9, 256}));
  EXPECT_EQ(std::tuple(t.layers[0].w_o.size(), t.layers[7].w_q.size()), std::tuple(384U * 512, 512U * 384));
  EXPECT_TRUE(t.layers[7].b_q.empty()) << "the probe's projections have no biases";
  EXPECT_TRUE(t.layers[0].hidden.empty());
}

// A model whose <s> does not follow the bytes: its tokenizer.json reads the text, and config.json says what it begins with.
TEST_F(RecordCli, TextGoesThroughTheModelsTokenizer) {
  nlohmann::json config = probe_in("m");
  config["bos_token_id"] = 1;
  write("m/config.json", config.dump());
  record({"--text", file("t.txt", "a</s>")}, "m");
  EXPECT_EQ(recorded().ids, (std::vector<std::int32_t>{1, 97, 257}));
  EXPECT_EQ(record({"--text", file("u.txt", "a\xff")}, "m"), "kvlab: u.txt: byte 1 is not UTF-8, which a tokenizer reads\n");
}

TEST_F(RecordCli, ASamplesContinuationAndWhatIsKnownAboutIt) {
  record({"--ids",
          file("i.json", R"({"ids": [256, 65, 66], "continuation": [67, 68], "task": "niah", "needles": [[1, 3]], "question_begin": 2})"),
          "--chunk-tokens", "2", "--pass", "lookahead"});
  const AttentionTrace t = recorded();
  EXPECT_EQ(t.ids, (std::vector<std::int32_t>{256, 65, 66, 67, 68}));
  EXPECT_EQ(std::tuple(t.prompt_tokens, t.chunk_ends, t.passes.at("lookahead").num_tokens, t.task, t.needles, t.question_begin),
            std::tuple(3, (std::vector<std::int32_t>{2, 3}), 8, "niah", (std::vector<std::pair<std::int32_t, std::int32_t>>{{1, 3}}), 2));
  record({"--ids", file("i.json", "[256, 65, 66]"), "--prompt-tokens", "2"});
  EXPECT_EQ(recorded().ids, (std::vector<std::int32_t>{256, 65}));
}

TEST_F(RecordCli, APolicysNeedsAreRecordedUnasked) {
  std::string text;
  for (int i = 0; i < 30; ++i) text += "line " + std::to_string(i) + " of a text";
  file("t.txt", text);
  for (const std::string recipe : {"kvpress_kvzip_plus", "expected_attention", "criticalkv"}) {
    const std::string said = record({"--text", "t.txt", "--decode-tokens", "2", "--kv-policy", recipe, "--budget-tokens", "100"});
    ASSERT_TRUE(said.starts_with("wrote out.safetensors: ")) << recipe << ": " << said;
    write("replay.yaml",
          "host: replay\nsamples: {" + recipe + ": {file: out.safetensors}}\nkv_policy: {recipe: " + recipe + ", budget_tokens: 100}\n");
    call_ok({"run", "replay.yaml", "--out", "out", "--quiet", "--force"});
  }
}

TEST_F(RecordCli, ErrorsAreOneLine) {
  const std::string ids = file("i.json", "[256, 65]");
  EXPECT_EQ(record({"--ids", ids}, "none"), "kvlab: none/config.json: cannot be read\n");
  EXPECT_EQ(record({"--ids", "none"}), "kvlab: none: cannot be opened: No such file or directory\n");
  EXPECT_EQ(record({"--ids", file("a.json", "{}")}), "kvlab: a.json: missing key 'ids'\n");
  EXPECT_EQ(record({"--ids", file("b.json", "[256, 264]")}),
            "kvlab: b.json: '[1]' = 264 is not supported; supported: an integer in [0, 263]\n");
  EXPECT_EQ(record({"--ids", file("c.json", "[6.5]")}), "kvlab: c.json: '[0]' = 6.5 is not supported; supported: an integer in [0, 263]\n");
  EXPECT_EQ(record({"--ids", file("deep.json", std::string(1'000'000, '[') + std::string(1'000'000, ']'))}),
            "kvlab: deep.json: values in it are nested deeper than 64 levels\n");
  EXPECT_EQ(record({"--ids", file("d.json", "[]")}), "kvlab: the prompt has no tokens\n");
  EXPECT_EQ(record({"--ids", file("e.json", "7")}), "kvlab: e.json: neither a JSON list of token ids nor an object\n");
  EXPECT_EQ(record({"--ids", file("f.json", R"({"ids": [1], "tusk": "x"})")}), "kvlab: f.json: unknown key 'tusk'; did you mean 'task'?\n");
  EXPECT_EQ(record({"--ids", file("g.json", R"({"ids": [1], "needles": [[0]]})")}),
            "kvlab: g.json: 'needles[0]' = [0] is not supported; supported: [begin, end]\n");
  EXPECT_EQ(record({"--ids", file("h.json", R"({"ids": [1], "needles": [[0, 2]]})")}),
            "kvlab: h.json: needle 0-2 is no span of the prompt's 1 tokens\n");
  EXPECT_EQ(record({"--ids", file("j.json", R"({"ids": [1, 2], "continuation": [3]})"), "--prompt-tokens", "1"}),
            "kvlab: --prompt-tokens 1 would cut a gap before the continuation\n");
  EXPECT_EQ(record({"--text", file("long.txt", std::string(4096, 'a'))}),
            "kvlab: a prompt of 4097 tokens and 0 decoded tokens do not fit into the context of 4096 of model 'probe'\n");
  EXPECT_EQ(record({"--ids", ids, "--prompt-tokens", "3"}), "kvlab: --prompt-tokens 3 is more than the 2 tokens there are\n");
  EXPECT_EQ(record({"--ids", ids, "--pass", "look"}), "kvlab: unknown pass 'look'; did you mean 'lookahead'?\n");
  EXPECT_EQ(record({"--ids", ids, "--decode-tokens", "-1"}),
            "kvlab: --decode-tokens: Value -1 not in range 0 to 268435456 (kvlab --help shows what there is)\n");
  EXPECT_FALSE(fs::exists("out.safetensors"));
  const std::string on_gpu = record({"--ids", ids, "--backend", "cuda"});
  EXPECT_TRUE(on_gpu.starts_with(num_gpus() > 0 ? "wrote out.safetensors: 2 prompt tokens" : "kvlab: backend cuda: ")) << on_gpu;
}

// ---- a model with layers that attend within a window

struct WindowRecord : AppTest {
  // The probe as a Mistral model with a window.
  void make_model(int window) {
    model_ = "window_" + std::to_string(window);  // a program keeps models and samples by their folders
    nlohmann::json config = probe_in(model_);
    config["model_type"] = "mistral";
    config["architectures"] = {"MistralForCausalLM"};
    config["sliding_window"] = window;
    for (const char* key : {"attention_bias", "mlp_bias"}) config.erase(key);
    write(model_ + "/config.json", config.dump());
  }
  Called replay(const std::string& kv_policy) {
    write("r.yaml", std::string("name: r\nhost: replay\nsamples: {s: {record: {model: ") + model_ +
                        ", eval: " KVLAB_SOURCE_DIR
                        "/engine/probe/eval/dev.jsonl, task: niah, length_tokens: 1024, decode_tokens: 1}}}\nkv_policy: " +
                        kv_policy + "\n");
    return call({"run", "r.yaml", "--out", "out"});
  }

 private:
  std::string model_;
};

// The pass of KVzip repeats the prompt after itself, which the first window has no room for; recipes that read none do not need it.
TEST_F(WindowRecord, WhatTheWindowHasNoRoomForIsLeftOutOrRefused) {
  make_model(1200);
  const Called plain = replay("[{recipe: snapkv, budget_tokens: 80}, {recipe: tova, budget_tokens: 80}, {recipe: laq, budget_tokens: 80}]");
  EXPECT_EQ(plain.status, 0) << plain.err;
  const Called reads_pass = replay("{recipe: kvzip, budget_tokens: 80}");
  EXPECT_EQ(reads_pass.status, 2);
  EXPECT_THAT(reads_pass.err,
              has_all({"observes the extra pass 'reconstruct'", "of a model with windows, a prompt that is shorter than the window"}));
  make_model(4000);
  EXPECT_EQ(replay("{recipe: kvzip, budget_tokens: 80}").status, 0);
  make_model(500);
  const Called too_long = replay("{recipe: snapkv, budget_tokens: 80}");
  EXPECT_EQ(too_long.status, 2);
  EXPECT_THAT(too_long.err, HasSubstr("attends within a window of 500 tokens"));
  EXPECT_THAT(too_long.err,
              testing::ContainsRegex("the prompt's [0-9]+ tokens and [0-9]+ decoded ones are more; take a prompt of at most "));
}

// kvlab label, and recipes that take what it writes.

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
