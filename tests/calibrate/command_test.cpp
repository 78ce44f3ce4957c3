// Mistakes that a person makes with `kvlab calibrate` are answered before anything is measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "app/cli.h"
#include "kernels/device/cuda/memory.h"
#include "tests/sim/cost_support.h"

namespace kvlab {

namespace {

struct Answer {
  int status = 0;
  std::string error;
};

Answer calibrate_with(std::vector<std::string> arguments) {
  const TempFolder folder;
  const std::string out = folder.path() + "/profile";
  arguments.insert(arguments.begin(), "calibrate");
  arguments.insert(arguments.end(), {"--out", out});
  std::ostringstream output, error;
  const int status = run_cli(arguments, output, error);
  EXPECT_FALSE(std::filesystem::exists(out)) << error.str();
  EXPECT_EQ(output.str(), "");
  return {status, error.str()};
}

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
    const Answer answer = calibrate_with(arguments);
    EXPECT_EQ(answer.status, 2) << message;
    EXPECT_THAT(answer.error, testing::HasSubstr(message));
    EXPECT_EQ(std::count(answer.error.begin(), answer.error.end(), '\n'), 1) << answer.error;
  }
}

}  // namespace

}  // namespace kvlab
