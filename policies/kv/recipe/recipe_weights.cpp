#include <fmt/format.h>

#include <filesystem>

#include "base/read_file.h"
#include "policies/kv/prefill_selector/head_patterns.h"
#include "policies/kv/recipe/recipe.h"
#include "policies/kv/recipe/trained_tensors.h"

namespace kvlab {

namespace {

using Weights = std::shared_ptr<const TrainedTensors>;

template <class Part>
bool give(std::function<std::unique_ptr<Part>()>& make, const Weights& weights) {
  if (!make || make()->takes_weights() == KvPart::TakesWeights::kNo) return false;
  make = [bare = make, weights] {
    auto part = bare();
    part->set_weights(weights);
    return part;
  };
  make();  // throws early
  return true;
}

bool give_all(Recipe& recipe, const Weights& weights) {
  bool taken = give(recipe.make_scorer, weights);
  taken = give(recipe.make_allocator, weights) || taken;
  taken = give(recipe.make_disposal, weights) || taken;
  taken = give(recipe.make_format, weights) || taken;
  return give(recipe.make_selector, weights) || taken;
}

bool give_patterns(Recipe& recipe, const std::string& path) {
  if (!recipe.selects_in_prompts() || !recipe.make_prefill_selector()->takes_patterns()) return false;
  recipe.make_prefill_selector = [bare = recipe.make_prefill_selector, table = read_head_patterns(path)] {
    auto part = bare();
    part->set_patterns(table);
    return part;
  };
  return true;
}

}  // namespace

std::string weights_advice(const Recipe& recipe) { return recipe.weights_from.empty() ? "" : "; to be had: " + recipe.weights_from; }

void read_weights(Params& experiment, Params& file, Recipe& recipe) {
  recipe.weights_from = file.text("weights_from", "", "where trained or calibrated tensors for it can be had");
  constexpr const char* kMeaning = "safetensors file with the recipe's trained or calibrated tensors, or JSON of kvlab label prefill";
  const std::string own = file.text("weights", "", kMeaning), given = experiment.text("weights", "", kMeaning);
  if (own.empty() && given.empty()) return;
  Params& from = given.empty() ? file : experiment;
  const std::string name = given.empty() ? own : given, path = from.resolve_file(name);
  if (!is_file(path)) from.fail_at("weights", fmt::format("'{}': no such file{}", name, weights_advice(recipe)));
  from.reading("weights", [&] {
    const bool is_table = std::filesystem::path(path).extension() == ".json";
    if (is_table ? !give_patterns(recipe, path) : !give_all(recipe, TrainedTensors::open(path)))
      throw InputError(fmt::format("no part of recipe '{}' takes weights: delete the line", recipe.name));
  });
  recipe.weights = path;
}

}  // namespace kvlab
