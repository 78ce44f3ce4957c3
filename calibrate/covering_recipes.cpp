#include "calibrate/covering_recipes.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/error.h"
#include "calibrate/recipe_ops.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "sim/kv_cost/shape_run.h"

namespace kvlab {

namespace {

using Names = std::set<std::string>;

std::map<std::string, Names> operations_by_recipe(std::string_view backend, const ModelConfig& model) {
  std::map<std::string, Names> all;
  for (const std::string& name : recipe_names()) {
    try {
      const Recipe recipe = timed_recipe(load_recipe(name));
      require_timed(backend, recipe, model);
      all[name] = operations_of(recipe, model);
    } catch (const InputError&) {  // it does not run there, or needs tensors
    }
  }
  return all;
}

std::size_t count_new(const Names& names, const Names& known) {
  return static_cast<std::size_t>(std::count_if(names.begin(), names.end(), [&](const std::string& n) { return !known.contains(n); }));
}

// With expected counts where data decides; a footprint charges their bounds, at which some recipes drop nothing.
Names operations_of_prompt(const Recipe& recipe, const ModelShape& shape, std::int32_t tokens) {
  ExpectedRun run(recipe, shape);
  ShapeRun::Seq seq{0, tokens, tokens, {}};
  seq.inputs = input_sizes(run.shapes().policy().needs(), seq.as_step());
  Names names;
  for (const OpCall& call : run.step(seq).calls) names.emplace(call.op);
  return names;
}

}  // namespace

Recipe timed_recipe(const Recipe& recipe) {
  constexpr std::int32_t kBudget = 256;
  return recipe.has_budget || !why_no_budget(recipe).empty() ? recipe : load_recipe(recipe.name, kBudget);
}

std::set<std::string> operations_of(const Recipe& recipe, const ModelConfig& m) {
  constexpr std::int32_t kPrompt = 8192, kDecodeSteps = 4, kBytes = 4, kBlock = 16;  // as calibration runs recipes
  const ModelShape shape{m.layers, m.q_heads, m.kv_heads, m.head_dim, m.hidden_dim, kBytes, {m.rope_base, m.rope_scaling}};
  RecipeFootprint footprint(recipe, shape, kBlock, KvReads::kUnpacked);
  SeqState seq{.prompt_tokens = kPrompt};
  Names names = operations_of_prompt(recipe, shape, kPrompt);
  for (std::int32_t step = 0; step <= kDecodeSteps; ++step) {
    PolicyWork work;
    SeqState batch[] = {seq.taking(step == 0 ? kPrompt : 1)};
    const FootprintStep done = footprint.step(batch[0]);
    footprint.charge(batch, work);
    for (const PolicyOp& op : work.ops) names.emplace(op.name);
    seq = done.after(batch[0]);
  }
  return names;
}

std::vector<std::string> covering_recipes(std::string_view backend, const ModelConfig& model) {
  const std::map<std::string, Names> all = operations_by_recipe(backend, model);
  std::vector<std::string> chosen;
  Names known;
  while (true) {
    const auto best = std::max_element(
        all.begin(), all.end(), [&](const auto& a, const auto& b) { return count_new(a.second, known) < count_new(b.second, known); });
    if (best == all.end() || count_new(best->second, known) == 0) return chosen;
    chosen.push_back(best->first);
    known.insert(best->second.begin(), best->second.end());
  }
}

}  // namespace kvlab
