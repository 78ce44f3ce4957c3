// `kvlab trace` of experiments, through the front.
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

using TraceCli = AppTest;

TEST_F(TraceCli, ATraceThatIsSeveralIsRefused) {
  std::string text = std::string(kSmall) + "scheduler: [vllm_v1, sarathi]\n";
  write("lists.yaml", text);
  EXPECT_EQ(call({"trace", "inspect", "lists.yaml"}).status, 0);  // lists elsewhere make no difference
  write("lists.yaml", text.replace(text.find("requests: 60"), 12, "requests: [60, 70]"));
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"trace", "inspect", "lists.yaml"}, {"trace", "generate", "lists.yaml", "out.csv"}}) {
    EXPECT_EQ(
        error_of_call(command),
        "kvlab: lists.yaml: its trace is several, by the list 'trace.generate.requests': choose with --set generate.requests=VALUE\n");
  }
  EXPECT_FALSE(fs::exists("out.csv"));
  EXPECT_EQ(call({"trace", "inspect", "lists.yaml", "--set", "generate.requests=[70]"}).status, 0);
  EXPECT_EQ(call_ok({"trace", "generate", "lists.yaml", "out.csv", "--set", "generate.requests=70"}).out, "wrote out.csv: 70 requests\n");
}

TEST_F(TraceCli, AListOfTracesIsRefused) {
  write("lists.yaml", "trace: [{file: a.csv}, {file: b.csv}]\n");
  EXPECT_EQ(call({"trace", "inspect", "lists.yaml"}).err,
            "kvlab: lists.yaml: its trace is several, by the list 'trace': name a file, or leave one in the list\n");
}

// ---- `kvlab trace fetch` with file:// addresses, which curl reads without a network

struct FetchTest : AppTest {
  static bool has_curl() { return std::system("command -v curl >/dev/null 2>&1") == 0; }
  void write_list(const std::string& sha256, const std::string& address = "") {
    write("there.csv", "abc");
    const std::string at = address.empty() ? "file://" + fs::absolute("there.csv").string() : address;
    write("list.yaml",
          "mine:\n  title: A trace\n  address: " + at + "\n  file: mine.csv\n  sha256: " + sha256 + "\n  licence: none\n  format: azure\n");
  }
};

constexpr const char* kSumOfAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";  // FIPS 180-4's example

TEST_F(FetchTest, DownloadsChecksAndKeeps) {
  if (!has_curl()) GTEST_SKIP() << "curl is absent";
  write_list(kSumOfAbc);
  const Called first = call_ok({"trace", "fetch", "mine", "--list", "list.yaml"});
  EXPECT_EQ(read("public/mine.csv"), "abc");
  EXPECT_THAT(first.out, HasSubstr("wrote public/mine.csv: 3 bytes"));
  EXPECT_FALSE(fs::exists("public/mine.csv.part"));
  EXPECT_THAT(call({"trace", "fetch", "mine", "--list", "list.yaml"}).out, HasSubstr("is there already"));
  EXPECT_THAT(call({"trace", "fetch", "--list", "list.yaml"}).out, HasSubstr("A trace (fetched)"));
}

TEST_F(FetchTest, AnInterruptedDownloadGoesOn) {
  if (!has_curl()) GTEST_SKIP() << "curl is absent";
  write_list(kSumOfAbc);
  write("public/mine.csv.part", "ab");
  EXPECT_EQ(call({"trace", "fetch", "mine", "--list", "list.yaml"}).status, 0);
  EXPECT_EQ(read("public/mine.csv"), "abc");
}

TEST_F(FetchTest, AWrongSumIsNotKeptAndAnUnknownOneIsPrinted) {
  if (!has_curl()) GTEST_SKIP() << "curl is absent";
  write_list(std::string(64, '0'));
  EXPECT_THAT(error_of_call({"trace", "fetch", "mine", "--list", "list.yaml"}), HasSubstr(std::string("is ") + kSumOfAbc + ", not 0000"));
  for (const char* file : {"public/mine.csv", "public/mine.csv.part"}) EXPECT_FALSE(fs::exists(file));
  write_list("unknown");
  EXPECT_THAT(call({"trace", "fetch", "mine", "--list", "list.yaml"}).out, HasSubstr(std::string("sha256 ") + kSumOfAbc));
}

TEST_F(FetchTest, WithoutAConnectionItSaysWhereToPutTheFile) {
  write_list("unknown", "file:///nonexistent/there.csv");
  EXPECT_THAT(error_of_call({"trace", "fetch", "mine", "--list", "list.yaml"}),
              HasSubstr("save it elsewhere and put it at public/mine.csv"));
  EXPECT_EQ(call({"trace", "fetch", "mien", "--list", "list.yaml"}).err, "kvlab: unknown public trace 'mien'; did you mean 'mine'?\n");
}

TEST_F(FetchTest, TheShippedListCanBeRead) {
  EXPECT_THAT(call({"trace", "fetch"}).out, HasSubstr("azure2023_conv"));
  EXPECT_THAT(call({"trace", "inspect", "mooncake_conversation"}).err, HasSubstr("mooncake_conversation"));
}

}  // namespace
}  // namespace kvlab
