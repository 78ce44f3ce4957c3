#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/app/app_fixture.h"
#include "tests/recipes_in.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

// Every recipe that serves, on GPUs of four generations, in memory that full attention fills.
class EveryRecipeServes : public AppTest, public testing::WithParamInterface<std::size_t> {};

constexpr std::array<const char*, 4> kGpus{"l4", "a100-40gb", "h100", "b200"};

// All of them; every ninth in a short run.
std::vector<std::string> recipes_to_serve() {
  const std::vector<std::string> all = recipes_in({"cost"});
  std::vector<std::string> chosen;
  for (std::size_t i = 0; i < all.size(); i += short_run() ? 9 : 1) chosen.push_back(all[i]);
  if (std::find(chosen.begin(), chosen.end(), "full") == chosen.end()) chosen.emplace_back("full");
  return chosen;
}

TEST_P(EveryRecipeServes, InMemoryThatBinds) {
  ::setenv("KVLAB_RECIPES", KVLAB_SOURCE_DIR "/policies/kv/recipes", 1);
  const std::vector<std::string> recipes = recipes_to_serve();
  write("every.yaml",
        fmt::format("name: every\nmodel: llama-3.1-8b\nhardware: {}\nmax_model_len: 4096\nmemory: {{num_blocks: 400}}\n"
                    "trace: {{generate: {{requests: 8, arrival: {{poisson: {{rate_per_s: 50}}}}, prompt_tokens: {{uniform: {{min: "
                    "100, max: 2400}}}}, output_tokens: {{uniform: {{min: 10, max: 60}}}}}}}}\n"
                    "scheduler: vllm_v1\nkv_policy: [{}]\n",
                    kGpus.at(GetParam()), fmt::join(recipes, ", ")));
  const Called called = call({"run", "every.yaml"});
  ASSERT_EQ(called.status, 0) << called.err;
  const CsvTable s = read_csv("results/every/summary.csv");
  ASSERT_EQ(s.rows.size(), recipes.size());
  for (const std::vector<std::string>& row : s.rows) {
    const std::string& name = row[s.at("kv_policy")];
    const auto count = [&](const char* column) { return std::stod(row[s.at(column)]); };
    EXPECT_EQ(count("completed") + count("rejected"), 8) << name;
    EXPECT_GE(count("completed"), 4) << name << ": a request is refused where its prompt alone does not fit";
    EXPECT_GT(count("kv_used_peak_frac"), 0) << name;
    EXPECT_LE(count("kv_used_peak_frac"), 1) << name;
    if (name == "full") {
      EXPECT_GT(count("kv_used_peak_frac"), 0.9) << "memory does not bind";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpus, EveryRecipeServes, testing::Range(std::size_t{0}, kGpus.size()),
                         [](const auto& info) { return std::string(1, *kGpus.at(info.param)) + std::to_string(info.param); });

}  // namespace
}  // namespace kvlab
