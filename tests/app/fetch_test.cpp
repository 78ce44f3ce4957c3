// `kvlab trace fetch` with file:// addresses, which curl reads without a network.
#include <cstdlib>

#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

struct FetchTest : AppTest {
  static bool has_curl() { return std::system("command -v curl >/dev/null 2>&1") == 0; }
  void write_list(const std::string& sha256, const std::string& address = "") {
    write("there.csv", "abc");
    const std::string at = address.empty() ? "file://" + std::filesystem::absolute("there.csv").string() : address;
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
  EXPECT_NE(first.out.find("wrote public/mine.csv: 3 bytes"), std::string::npos) << first.out;
  EXPECT_FALSE(std::filesystem::exists("public/mine.csv.part"));
  EXPECT_NE(call({"trace", "fetch", "mine", "--list", "list.yaml"}).out.find("is there already"), std::string::npos);
  EXPECT_NE(call({"trace", "fetch", "--list", "list.yaml"}).out.find("A trace (fetched)"), std::string::npos);
}

TEST_F(FetchTest, AnInterruptedDownloadGoesOn) {
  if (!has_curl()) GTEST_SKIP() << "curl is absent";
  write_list(kSumOfAbc);
  std::filesystem::create_directories("public");
  write("public/mine.csv.part", "ab");
  EXPECT_EQ(call({"trace", "fetch", "mine", "--list", "list.yaml"}).status, 0);
  EXPECT_EQ(read("public/mine.csv"), "abc");
}

TEST_F(FetchTest, AWrongSumIsNotKeptAndAnUnknownOneIsPrinted) {
  if (!has_curl()) GTEST_SKIP() << "curl is absent";
  write_list(std::string(64, '0'));
  EXPECT_THAT(error_of_call({"trace", "fetch", "mine", "--list", "list.yaml"}), HasSubstr(std::string("is ") + kSumOfAbc + ", not 0000"));
  EXPECT_FALSE(std::filesystem::exists("public/mine.csv"));
  EXPECT_FALSE(std::filesystem::exists("public/mine.csv.part"));
  write_list("unknown");
  EXPECT_NE(call({"trace", "fetch", "mine", "--list", "list.yaml"}).out.find(std::string("sha256 ") + kSumOfAbc), std::string::npos);
}

TEST_F(FetchTest, WithoutAConnectionItSaysWhereToPutTheFile) {
  write_list("unknown", "file:///nonexistent/there.csv");
  EXPECT_THAT(error_of_call({"trace", "fetch", "mine", "--list", "list.yaml"}),
              HasSubstr("save it elsewhere and put it at public/mine.csv"));
  EXPECT_EQ(call({"trace", "fetch", "mien", "--list", "list.yaml"}).err, "kvlab: unknown public trace 'mien'; did you mean 'mine'?\n");
}

TEST_F(FetchTest, TheShippedListCanBeRead) {
  EXPECT_NE(call({"trace", "fetch"}).out.find("azure2023_conv"), std::string::npos);
  EXPECT_THAT(call({"trace", "inspect", "mooncake_conversation"}).err, HasSubstr("mooncake_conversation"));
}

}  // namespace
}  // namespace kvlab
