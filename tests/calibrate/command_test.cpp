// Mistakes that a person makes with `kvlab calibrate` are answered before anything is measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "app/cli.h"
#include "kernels/device/cuda/memory.h"
#include "tests/sim/cost_support.h"

namespace kvlab {

namespace {

TEST(CalibrateCommand, MistakesAreAnsweredInOneLine) {
  const std::pair<std::vector<std::string>, const char*> mistakes[] = {
      {{}, "Exactly 1 option from [--cpu,--gpu] is required"},
      {{"--cpu", "--gpu", "0"}, "Exactly 1 option from [--cpu,--gpu] is required"},
      {{"--cpu", "--minutes", "0"}, "--minutes 0 is outside (0, 1440]; about 10 give a GPU's profile"},
      {{"--cpu", "--minutes", "-1"}, "--minutes -1 is outside"},
      {{"--cpu", "--minutes", "soon"}, "--minutes"},
      {{"--cpu", "--model", "llama-3.1-8B"}, "unknown model 'llama-3.1-8B'"},
      {{"--cpu", "--model", "mixtral-8x7b"}, "mixtral-8x7b has experts, which calibrate does not time"},
      {{"--cpu", "--kv-policy", "snapvk"}, "unknown recipe 'snapvk'; did you mean 'snapkv'?"},
      {{"--cpu", "--kv-policy", "kivi2", "oracle"}, "recipe 'oracle' does not run in the engine"},
      {{"--cpu", "--hardware", "h1OO"}, "unknown hardware 'h1OO'"},
      {{"--gpu", "99"}, num_gpus() == 0 ? "--gpu 99: no GPU: " : "--gpu 99: no GPU 99"},
  };
  for (const auto& [arguments, message] : mistakes) {
    const TempFolder folder;
    const std::string out = folder.path() + "/profile";
    std::vector<std::string> words{"calibrate", "--out", out};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::ostringstream output, error;
    EXPECT_EQ(run_cli(words, output, error), 2) << message;
    EXPECT_FALSE(std::filesystem::exists(out)) << error.str();
    EXPECT_EQ(output.str(), "");
    EXPECT_THAT(error.str(), testing::HasSubstr(message));
    EXPECT_EQ(std::ranges::count(error.str(), '\n'), 1) << error.str();
  }
}

}  // namespace

}  // namespace kvlab
