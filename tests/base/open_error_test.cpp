#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "base/read_file.h"
#include "tests/test_files.h"

namespace kvlab {
namespace {

struct OpenError : ::testing::Test {
  OpenError() { temporary.write("experiments/quickstart.yaml", "a: 1\n"); }
  std::string of(const std::string& path) const { return open_error(folder + path).substr(folder.size()); }
  std::string near(const std::string& path) const {
    return ": cannot be opened: No such file or directory; did you mean '" + folder + path + "'?";
  }
  const TempFolder temporary;
  const std::string folder = temporary.path();
};

TEST_F(OpenError, NamesWhatThereIs) {
  for (const std::string path : {"/experiments/quickstrat.yaml", "/experiment/quickstart.yaml", "/experiment/quickstrat.yaml"})
    EXPECT_EQ(of(path), path + near("/experiments/quickstart.yaml"));
}

TEST_F(OpenError, NamesNothingThatIsFarOff) {
  for (const std::string path : {"/experiments/another.yaml", "/results/quickstart.yaml"})
    EXPECT_EQ(of(path), path + ": cannot be opened: No such file or directory");
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
