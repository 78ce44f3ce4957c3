#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/read_file.h"

namespace kvlab {
namespace {

struct OpenError : ::testing::Test {
  void SetUp() override {
    std::filesystem::create_directories(folder + "/experiments");
    std::ofstream(folder + "/experiments/quickstart.yaml") << "a: 1\n";
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::string of(const std::string& path) const { return open_error(folder + path).substr(folder.size()); }
  std::string near(const std::string& path) const {
    return ": cannot be opened: No such file or directory; did you mean '" + folder + path + "'?";
  }
  const std::string folder = testing::TempDir() + "kvlab_open_error_" + std::to_string(::getpid());
};

TEST_F(OpenError, NamesWhatThereIs) {
  const std::string whole = "/experiments/quickstart.yaml";
  EXPECT_EQ(of("/experiments/quickstrat.yaml"), "/experiments/quickstrat.yaml" + near(whole));
  EXPECT_EQ(of("/experiment/quickstart.yaml"), "/experiment/quickstart.yaml" + near(whole));
  EXPECT_EQ(of("/experiment/quickstrat.yaml"), "/experiment/quickstrat.yaml" + near(whole));
}

TEST_F(OpenError, NamesNothingThatIsFarOff) {
  EXPECT_EQ(of("/experiments/another.yaml"), "/experiments/another.yaml: cannot be opened: No such file or directory");
  EXPECT_EQ(of("/results/quickstart.yaml"), "/results/quickstart.yaml: cannot be opened: No such file or directory");
  EXPECT_EQ(open_error(""), ": cannot be opened: No such file or directory");
}

TEST_F(OpenError, SaysWhyAFileThatExistsIsNotOpened) {
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

}  // namespace
}  // namespace kvlab
