#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/app/app_fixture.h"
#include "tests/recipes_in.h"
#include "tests/short_run.h"

namespace kvlab {
namespace {

// Every recipe that serves, on GPUs of four generations, in memory that full attention fills.
class EveryRecipeServes : public AppTest, public testing::WithParamInterface<std::size_t> {
 protected:
  void serve(const std::string& scheduler, const std::vector<std::string>& recipes) const;
};

constexpr std::array<const char*, 4> kGpus{"l4", "a100-40gb", "h100", "b200"};

// A quarter of them on each GPU, so that each serves on one; with KVLAB_FULL all of them on each, in a short run fewer.
std::vector<std::string> recipes_to_serve(std::size_t gpu) {
  const std::vector<std::string> all = recipes_in({"cost"});
  std::vector<std::string> chosen;
  for (std::size_t i = full_run() ? 0 : gpu; i < all.size(); i += full_run() ? 1 : short_run() ? 9 : kGpus.size()) chosen.push_back(all[i]);
  if (std::find(chosen.begin(), chosen.end(), "full") == chosen.end()) chosen.emplace_back("full");
  return chosen;
}

// Runs the recipes and checks each one's row.
void EveryRecipeServes::serve(const std::string& scheduler, const std::vector<std::string>& recipes) const {
  const std::string name_of_all = "every_" + scheduler;
  write("every.yaml",
        fmt::format("name: {}\nmodel: llama-3.1-8b\nhardware: {}\nmax_model_len: 4096\nmemory: {{num_blocks: 400}}\n"
                    "trace: {{generate: {{requests: 8, arrival: {{poisson: {{rate_per_s: 50}}}}, prompt_tokens: {{uniform: {{min: "
                    "100, max: 2400}}}}, output_tokens: {{uniform: {{min: 10, max: 60}}}}}}}}\n"
                    "scheduler: {}\nkv_policy: [{}]\n",
                    name_of_all, kGpus.at(GetParam()), scheduler, fmt::join(recipes, ", ")));
  call_ok({"run", "every.yaml"});
  const CsvTable s = read_csv("results/" + name_of_all + "/summary.csv");
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

TEST_P(EveryRecipeServes, InMemoryThatBinds) {
  ::setenv("KVLAB_RECIPES", KVLAB_SOURCE_DIR "/policies/kv/recipes", 1);
  std::vector<std::string> whole, others;  // whole: they take prompts in one piece, which vllm_v1 cuts
  for (const std::string& name : recipes_to_serve(GetParam())) (shipped_recipe(name).prunes() ? whole : others).push_back(name);
  serve("vllm_v1", others);
  if (!whole.empty()) serve("vllm_v0", whole);
}

INSTANTIATE_TEST_SUITE_P(Gpus, EveryRecipeServes, testing::Range(std::size_t{0}, kGpus.size()),
                         [](const auto& info) { return std::string(1, *kGpus.at(info.param)) + std::to_string(info.param); });

}  // namespace
}  // namespace kvlab
