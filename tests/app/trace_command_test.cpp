// `kvlab trace` of experiments, through the front.
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

using TraceCli = AppTest;

TEST_F(TraceCli, ATraceThatIsSeveralIsRefused) {
  const std::string text = std::string(kSmall) + "scheduler: [vllm_v1, sarathi]\n";
  write("lists.yaml", text);
  EXPECT_EQ(call({"trace", "inspect", "lists.yaml"}).status, 0);  // lists elsewhere make no difference
  std::string several = text;
  several.replace(several.find("requests: 60"), 12, "requests: [60, 70]");
  write("lists.yaml", several);
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"trace", "inspect", "lists.yaml"}, {"trace", "generate", "lists.yaml", "out.csv"}}) {
    const std::string error = error_of_call(command);
    EXPECT_EQ(
        error,
        "kvlab: lists.yaml: its trace is several, by the list 'trace.generate.requests': choose with --set generate.requests=VALUE\n");
  }
  EXPECT_FALSE(std::filesystem::exists("out.csv"));
  EXPECT_EQ(call({"trace", "inspect", "lists.yaml", "--set", "generate.requests=[70]"}).status, 0);
  EXPECT_EQ(call_ok({"trace", "generate", "lists.yaml", "out.csv", "--set", "generate.requests=70"}).out, "wrote out.csv: 70 requests\n");
}

TEST_F(TraceCli, AListOfTracesIsRefused) {
  write("lists.yaml", "trace: [{file: a.csv}, {file: b.csv}]\n");
  EXPECT_EQ(call({"trace", "inspect", "lists.yaml"}).err,
            "kvlab: lists.yaml: its trace is several, by the list 'trace': name a file, or leave one in the list\n");
}

}  // namespace
}  // namespace kvlab
