// The scores trained for the probe (engine/probe/train_scores.py) against untrained ones and methods without training, at equal budgets.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "base/random.h"
#include "engine/grade/grader.h"
#include "policies/kv/trained_tensors.h"
#include "tests/engine/probe.h"
#include "tests/recipes_in.h"
#include "tests/short_run.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

std::vector<EvalSample> needle_samples() {
  const auto encode = [](std::string_view text, bool is_start) {
    std::vector<std::int32_t> ids;
    if (is_start) ids.push_back(256);
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  };
  return read_eval_set(kProbeDir + "/eval/dev.jsonl", {{"niah", "multikey"}, {1024}, short_run() ? 2 : 6}, encode);
}

// A file with tensors of the same names and shapes, of independent normal numbers of the size that keeps sums of inputs at 1.
std::string untrained_like(const std::string& file, const std::string& name) {
  const auto trained = TrainedTensors::open(file);
  std::vector<std::vector<float>> data;
  std::vector<TensorToWrite> all;
  for (const std::string& tensor : trained->names()) {
    const std::vector<std::int64_t>& shape = trained->shape(tensor);
    std::vector<float>& x = data.emplace_back(trained->floats(tensor).size());
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(Draw{5, Purpose::kTest, data.size(), i}.normal() / std::sqrt(static_cast<double>(shape.back())));
    all.push_back({tensor, "F32", shape, x.data()});
  }
  const auto path = std::filesystem::temp_directory_path() / ("kvlab_untrained_" + name + std::to_string(::getpid()) + ".safetensors");
  write_safetensors(path.string(), all, {});
  return path.string();
}

// Answers that are right where the question is not known when the prompt is cut to 128 tokens.
int right_answers(const std::vector<EvalSample>& samples, const Recipe& recipe) {
  GradeOptions options;
  options.compresses_question = false;
  const GradeNeeds needs = needs_of(probe_engine(), std::vector<Recipe>{recipe});
  int right = 0;
  for (const EvalSample& s : samples) {
    const GradeSample prepared = prepare_sample(probe_engine(), s, options, needs.needs, needs.passes);
    const GradeSample* const one = &prepared;
    for (const GradedAnswer& a : grade(probe_engine(), recipe, {&one, 1}, options)) right += a.is_exact() ? 1 : 0;
  }
  return right;
}

TEST(TrainedScores, KeepNeedlesThatOthersLose) {
  const std::vector<EvalSample> samples = needle_samples();
  const int snapkv = right_answers(samples, recipe_of("{recipe: snapkv, budget_tokens: 128}"));
  const std::pair<std::string, std::string> recipes[] = {
      {"kvzap",
       "{recipe: kvzap, scorer: {hidden_surrogate: {sinks_tokens: 4}}, allocator: uniform, trigger: prefill_end, budget_tokens: 128, "
       "weights: "},
      {"locret", "{recipe: locret, scorer: {retaining_heads: {recent_tokens: 32}}, budget_tokens: 128, weights: "}};
  for (const auto& [name, recipe] : recipes) {
    const std::string file = kProbeDir + "/" + name + ".safetensors";
    const int trained = right_answers(samples, recipe_of(recipe + file + "}")),
              untrained = right_answers(samples, recipe_of(recipe + untrained_like(file, name) + "}"));
    EXPECT_GE(2 * trained, static_cast<int>(samples.size())) << name;
    EXPECT_GT(trained, untrained) << name;
    EXPECT_GT(trained, snapkv) << name;
  }
}

}  // namespace
}  // namespace kvlab
