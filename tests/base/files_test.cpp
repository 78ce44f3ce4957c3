#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/config/spec_file.h"
#include "base/data_root.h"
#include "base/file_memo.h"
#include "base/fresh_file.h"
#include "base/message.h"
#include "base/read_file.h"
#include "base/usage.h"
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

TEST_F(FreshFileTest, TheFileIsOldOrNewAndTwoAtOnceDoNotShareOne) {
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
  FreshFile one(path), other(path);
  one.write("one");
  other.write("other");
  one.keep();
  EXPECT_EQ(read_file(path), "one");
  other.keep();
  EXPECT_EQ(read_file(path), "other");
}

TEST(FileMemo, AValueStaysWhileItsFilesAreUnchanged) {
  const TempFolder folder;
  const std::string link = folder.file("link"), absent = folder.file("absent");
  fs::create_symlink(KVLAB_SOURCE_DIR "/README.md", link);
  FileMemo<int> memo;
  int made = 0;
  const auto get = [&] {
    return *memo.get("key", [&](SeenFiles& seen) {
      seen.add(absent);
      UsageLog::note_file(link);
      return ++made;
    });
  };
  EXPECT_EQ(get(), 1);
  {
    const UsageLog log;
    EXPECT_EQ(get(), 1);
    EXPECT_EQ(log.files(), std::set<std::string>{link});
  }
  fs::remove(link);
  fs::create_symlink(KVLAB_SOURCE_DIR "/LICENSE", link);
  EXPECT_EQ(get(), 2);
  EXPECT_EQ(get(), 2);
  folder.write("absent", "x");
  EXPECT_EQ(get(), 3);
  EXPECT_EQ(get(), 4) << "a file of this moment may change again and keep its times";
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

TEST(Message, LongWordsAreCutAndFilesNamed) {
  EXPECT_EQ(short_message("a 'b c'\nd"), "a 'b c'\nd");
  EXPECT_EQ(short_message("x: '" + std::string(200'000, '1') + "' is no number"),
            "x: '" + std::string(59, '1') + "... (200002 characters) is no number");
  std::string words;
  for (int i = 0; i < 100'000; ++i) words += "word ";
  EXPECT_LT(short_message(words).size(), 4010U);
  std::string message;
  try {
    fs::copy_file("/no/such/file", "/no/such/place");
  } catch (const std::exception& e) {
    message = message_of(e);
  }
  EXPECT_THAT(message, HasSubstr("/no/such/place: cannot copy file: No such file or directory"));
}

struct OpenError : ::testing::Test {
  OpenError() { temporary.write("experiments/quickstart.yaml", "a: 1\n"); }
  std::string of(const std::string& path) const { return open_error(folder + path).substr(folder.size()); }
  std::string near(const std::string& path) const {
    return ": cannot be opened: No such file or directory; did you mean '" + folder + path + "'?";
  }
  const TempFolder temporary;
  const std::string folder = temporary.path();
};

TEST_F(OpenError, NamesWhatIsNearOrWhyAFileIsNotOpened) {
  for (const std::string path : {"/experiments/quickstrat.yaml", "/experiment/quickstart.yaml", "/experiment/quickstrat.yaml"})
    EXPECT_EQ(of(path), path + near("/experiments/quickstart.yaml"));
  for (const std::string path : {"/experiments/another.yaml", "/results/quickstart.yaml"})
    EXPECT_EQ(of(path), path + ": cannot be opened: No such file or directory");
  EXPECT_EQ(open_error(""), ": cannot be opened: No such file or directory");
  errno = EACCES;
  EXPECT_EQ(of("/experiments/quickstart.yaml"), "/experiments/quickstart.yaml: cannot be opened: Permission denied");
  EXPECT_EQ(of("/experiments/quickstart.yaml/x"), "/experiments/quickstart.yaml/x: cannot be opened: No such file or directory");
}

TEST(OpenErrorHere, ARelativePathIsLookedForInTheCurrentFolder) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(KVLAB_SOURCE_DIR);
  EXPECT_EQ(open_error("READMEE.md"), "READMEE.md: cannot be opened: No such file or directory; did you mean 'README.md'?");
  EXPECT_EQ(open_error("./experiments/quickstrat.yaml"),
            "./experiments/quickstrat.yaml: cannot be opened: No such file or directory; did you mean './experiments/quickstart.yaml'?");
  std::filesystem::current_path(before);
}

namespace fs = std::filesystem;

struct DataRoot : ::testing::Test {
  void SetUp() override {
    fs::create_directories("data_root/elsewhere/profiles/hardware");
    fs::current_path("data_root");
    for (const char* variable : {"KVLAB_HOME", "KVLAB_PROFILES"}) ::unsetenv(variable);
  }
  void TearDown() override {
    for (const char* variable : {"KVLAB_HOME", "KVLAB_PROFILES"}) ::unsetenv(variable);
    set_data_root(KVLAB_SOURCE_DIR);
    fs::current_path("..");
    fs::remove_all("data_root");
  }
};

TEST_F(DataRoot, IsTheSourceTreeUnlessItIsSetOrAFolderIsNamedOrHere) {
  EXPECT_EQ(profiles_folder(), KVLAB_SOURCE_DIR "/profiles");
  set_data_root("elsewhere");
  EXPECT_EQ(profiles_folder(), "elsewhere/profiles");
  ::setenv("KVLAB_HOME", "home", 1);
  EXPECT_EQ(profiles_folder(), "home/profiles");
  EXPECT_EQ(systems_folder(), "home/policies/systems");
  fs::create_directories("profiles");
  EXPECT_EQ(profiles_folder(), "home/profiles") << "profiles/ here has no hardware/, so it is another folder of this name";
  fs::create_directories("profiles/hardware");
  EXPECT_EQ(profiles_folder(), "profiles");
  ::setenv("KVLAB_PROFILES", "given", 1);
  EXPECT_EQ(profiles_folder(), "given");
}

TEST_F(DataRoot, ExperimentsAreBesideTheProfiles) {
  fs::create_directories("elsewhere/experiments");
  std::ofstream("elsewhere/experiments/one.yaml") << "name: one\n";
  set_data_root("elsewhere");
  EXPECT_EQ(shipped_yaml_files("experiments"), std::vector<fs::path>{"elsewhere/experiments/one.yaml"});
}

}  // namespace
}  // namespace kvlab
