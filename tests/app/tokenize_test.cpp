#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

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

TEST_F(Tokenize, PrintsIdsThatItTurnsBackIntoText) {
  EXPECT_EQ(run({"--model", probe, "--text", file("hi<s>\n")}), "0 [104, 105, 256, 10]\n");
  EXPECT_EQ(run({"--model", probe, "--ids", file("[104, 105, 256, 10]")}), "0 hi<s>\n");
  EXPECT_EQ(run({"--model", probe, "--ids", file("[104, 105, 256, 10]"), "--no-special"}), "0 hi\n");
}

TEST_F(Tokenize, ShowsTokensAndLeavesOutTheTemplate) {
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
