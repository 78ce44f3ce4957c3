#include "base/fresh_file.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/message.h"
#include "base/read_file.h"
#include "tests/error_of.h"
#include "tests/test_files.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct FreshFileTest : ::testing::Test {
  [[nodiscard]] std::size_t num_files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  const TempFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(FreshFileTest, TheFileIsOldOrNew) {
  const fs::path path = folder_ / "a.txt";
  write_file(path, "old");
  {
    FreshFile file(path);
    file.write("new");
    EXPECT_EQ(read_file(path), "old");
  }
  EXPECT_EQ(read_file(path), "old");
  FreshFile file(path);
  file.write("new");
  file.keep();
  EXPECT_EQ(read_file(path), "new");
  EXPECT_EQ(num_files(), 1U);
}

TEST_F(FreshFileTest, TwoAtOnceDoNotShareAFile) {
  FreshFile one(folder_ / "a.txt"), other(folder_ / "a.txt");
  one.write("one");
  other.write("other");
  one.keep();
  EXPECT_EQ(read_file(folder_ / "a.txt"), "one");
  other.keep();
  EXPECT_EQ(read_file(folder_ / "a.txt"), "other");
}

TEST_F(FreshFileTest, FilesOfKilledProcessesAreRemoved) {
  constexpr int kNoProcess = 4'194'305;  // above the largest number of a process
  const std::string dead = "a.txt.new" + std::to_string(kNoProcess), running = "a.txt.new" + std::to_string(::getpid());
  for (const std::string& name : {dead, running, std::string("a.txt.newer")}) write_file(folder_ / name, "x");
  write_file(folder_ / "a.txt", "y");
  EXPECT_FALSE(fs::exists(folder_ / dead));
  for (const std::string& stays : {running, std::string("a.txt.newer")}) EXPECT_TRUE(fs::exists(folder_ / stays)) << stays;
  EXPECT_TRUE(is_fresh_name("m.json.new12-3", "m.json"));
  for (const char* name : {"m.json.new12-", "m.json.new"}) EXPECT_FALSE(is_fresh_name(name, "m.json")) << name;
}

TEST_F(FreshFileTest, ErrorsNameTheFileAndLeaveNothing) {
  fs::create_directories(folder_ / "sub");
  EXPECT_EQ(error_of([&] { write_file(folder_ / "sub", "x"); }), (folder_ / "sub").string() + ": cannot be written: Is a directory");
  EXPECT_THAT(error_of([&] { write_file(folder_ / "none" / "a", "x"); }), HasSubstr("none/a: cannot be written: No such file"));
  auto* const before = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{1000, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([&] { write_file(folder_ / "large", std::string(100'000, 'x')); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_EQ(error, (folder_ / "large").string() + ": cannot be written: File too large");
  EXPECT_EQ(num_files(), 1U);  // the folder
}

TEST(Message, LongWordsAreCut) {
  EXPECT_EQ(short_message("a 'b c'\nd"), "a 'b c'\nd");
  EXPECT_EQ(short_message("x: '" + std::string(200'000, '1') + "' is no number"),
            "x: '" + std::string(59, '1') + "... (200002 characters) is no number");
  std::string words;
  for (int i = 0; i < 100'000; ++i) words += "word ";
  EXPECT_LT(short_message(words).size(), 4010U);
}

TEST(Message, ErrorsOfTheFileSystemNameTheFile) {
  std::string message;
  try {
    fs::copy_file("/no/such/file", "/no/such/place");
  } catch (const std::exception& e) {
    message = message_of(e);
  }
  EXPECT_THAT(message, HasSubstr("/no/such/place: cannot copy file: No such file or directory"));
}

}  // namespace
}  // namespace kvlab
