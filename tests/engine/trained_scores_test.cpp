// The scores trained for the probe (engine/probe/train_scores.py) against SnapKV and untrained Locret, at equal budgets. A random direction
// of the hidden state may rank all digits first: one untrained KVzap model that was tried kept the needles too.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "base/random.h"
#include "engine/grade/grader.h"
#include "policies/kv/recipe/trained_tensors.h"
#include "tests/engine/probe.h"
#include "tests/recipes_in.h"
#include "tests/short_run.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

std::vector<EvalSample> needle_samples() {
  return read_eval_set(kProbeDir + "/eval/dev.jsonl", {{"niah", "multikey"}, {1024}, short_run() ? 1 : 3}, byte_tokens);
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

// Answers of each recipe that are right where the question is not known when the prompt is cut.
std::vector<int> right_answers(const std::vector<Recipe>& recipes, const std::vector<EvalSample>& samples) {
  GradeOptions options;
  options.compresses_question = false;
  const GradeNeeds needs = needs_of(probe_engine(), recipes);
  std::vector<int> right(recipes.size(), 0);
  for (const EvalSample& s : samples) {
    const GradeSample prepared = prepare_sample(probe_engine(), s, options, needs.needs, needs.passes);
    const GradeSample* const one = &prepared;
    for (std::size_t r = 0; r < recipes.size(); ++r)
      for (const GradedAnswer& a : grade(probe_engine(), recipes[r], {&one, 1}, options)) right[r] += a.is_exact() ? 1 : 0;
  }
  return right;
}

TEST(TrainedScores, KeepNeedlesThatOthersLose) {
  const std::string zap = "{recipe: kvzap, scorer: {hidden_surrogate: {sinks_tokens: 4}}, allocator: uniform, trigger: prefill_end, ",
                    locret = "{recipe: locret, scorer: {retaining_heads: {recent_tokens: 32}}, ",
                    at = "budget_tokens: 128, weights: ", zap_file = kProbeDir + "/kvzap.safetensors",
                    locret_file = kProbeDir + "/locret.safetensors";
  const std::vector<EvalSample> samples = needle_samples();
  const std::vector<int> right =
      right_answers({recipe_of("{recipe: snapkv, budget_tokens: 128}"), recipe_of(zap + at + zap_file + "}"),
                     recipe_of(locret + at + locret_file + "}"), recipe_of(locret + at + untrained_like(locret_file, "locret") + "}")},
                    samples);
  const int num = static_cast<int>(samples.size());
  for (const std::size_t trained : {1U, 2U}) EXPECT_GE(4 * right[trained], 3 * num) << trained;
  for (const std::size_t other : {0U, 3U}) EXPECT_LE(2 * right[other], num) << other;
}

}  // namespace
}  // namespace kvlab
