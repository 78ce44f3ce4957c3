#include "base/data_root.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/config/spec_file.h"

namespace kvlab {
namespace {

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

TEST_F(DataRoot, IsTheSourceTreeUnlessItIsSet) {
  EXPECT_EQ(profiles_folder(), KVLAB_SOURCE_DIR "/profiles");
  set_data_root("elsewhere");
  EXPECT_EQ(profiles_folder(), "elsewhere/profiles");
  ::setenv("KVLAB_HOME", "home", 1);
  EXPECT_EQ(profiles_folder(), "home/profiles");
  EXPECT_EQ(systems_folder(), "home/policies/systems");
}

TEST_F(DataRoot, ANamedFolderComesFirstThenTheOneHere) {
  ::setenv("KVLAB_HOME", "home", 1);
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
