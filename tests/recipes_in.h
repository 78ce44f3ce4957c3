#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/config/params.h"
#include "base/error.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

// A recipe as an experiment would write it: `{recipe: snapkv, budget_tokens: 64}`.
inline Recipe recipe_of(const std::string& text) {
  Params p = Params::from_text(text, "kv_policy");
  return read_recipe(p);
}

// A recipe as it is shipped, read once: programs of tests look through all of them for names of cases when they start.
inline const Recipe& shipped_recipe(const std::string& name) {
  static std::map<std::string, Recipe> known;
  const auto found = known.find(name);
  return found != known.end() ? found->second : known.emplace(name, load_recipe(name)).first->second;
}

// True: only its costs are known without a file of trained tensors.
inline bool needs_weights(const std::string& name) {
  const Recipe& recipe = shipped_recipe(name);
  return (recipe.make_scorer && recipe.make_scorer()->needs().weights) || recipe.make_allocator()->needs().weights ||
         recipe.make_disposal()->needs().weights;
}

// Names of the recipes that compute without a file of trained tensors.
inline std::vector<std::string> complete_recipes() {
  std::vector<std::string> names = recipe_names();
  std::erase_if(names, needs_weights);
  return names;
}

// Names of the recipes that run in each of these hosts; if one of them computes, without those that need trained tensors.
inline std::vector<std::string> recipes_in(std::initializer_list<const char*> hosts) {
  const bool computes = std::any_of(hosts.begin(), hosts.end(), [](const std::string& host) { return host != "cost"; });
  std::vector<std::string> names = computes ? complete_recipes() : recipe_names();
  std::erase_if(names, [&](const std::string& name) {
    const Recipe& recipe = shipped_recipe(name);
    return !std::all_of(hosts.begin(), hosts.end(), [&](const char* host) { return recipe.runs_in(host); });
  });
  return names;
}

// Recipes by a name of ours, as YAML, that cut in decode while layers or heads have unequal shares of their 130 tokens.
inline const std::vector<std::pair<std::string, std::string>>& unequal_shares() {
  static const std::vector<std::pair<std::string, std::string>> recipes = [] {
    const std::string scorer = "budget_tokens: 130, scorer: {accumulated_attention: {recent_tokens: 4, recent_frac: 0}}, ";
    const std::string pyramid = "allocator: {pyramid: {window_tokens: 8}}";
    return std::vector<std::pair<std::string, std::string>>{
        {"pyramid", "{recipe: h2o, " + scorer + pyramid + "}"},
        {"table", "{recipe: h2o, " + scorer + "allocator: {table: {unit: budget_frac, values: 0=1.5 1=0.5 2.0=1.75 2.1=0.25}}}"},
        {"sensitivity",
         "{recipe: h2o, " + scorer + "allocator: {sensitivity_layers: {importance: 0=1 1=5 2=2 3=4}}, trigger: {every_n: {steps: 8}}}"},
        {"heads", "{recipe: h2o, " + scorer + "allocator: {head_split: {retrieval_heads: 0.1 2.0}}}"},
        {"when_full", "{recipe: h2o, " + scorer + pyramid + ", trigger: when_full}"},
        {"when_full_little", "{recipe: h2o, " + scorer + pyramid + ", trigger: {when_full: {drop_frac: 0.1}}}"},
        {"chunks", "{recipe: h2o, " + scorer + pyramid + ", trigger: {every_step: {from: every_chunk}}}"},
        {"pages", "{recipe: paged_eviction, budget_tokens: 130, allocator: {table: {unit: budget_frac, values: 0=1.5 1=0.5}}}"},
        {"ada", "{recipe: h2o, " + scorer + "allocator: {ada: {layers: {pyramid: {window_tokens: 8}}}}}"}};
  }();
  return recipes;
}

inline Recipe unequal_shares_of(const std::string& name) {
  for (const auto& [known, text] : unequal_shares())
    if (known == name) return recipe_of(text);
  throw InternalError("no such recipe");
}

// "shares_pyramid" and so on, beside names of recipes.
inline std::vector<std::string> unequal_shares_names() {
  std::vector<std::string> names;
  for (const auto& [name, text] : unequal_shares()) names.push_back("shares_" + name);
  return names;
}

// The recipe with this budget in tokens, or a larger one if it always keeps more; unchanged if it does not use a budget. Or one of the
// unequal shares, "shares_" before its name.
inline Recipe with_budget(const std::string& name, std::int32_t tokens) {
  if (name.starts_with("shares_")) return unequal_shares_of(name.substr(7));
  const Recipe& own = shipped_recipe(name);
  if (!why_no_budget(own).empty()) return own;
  return load_recipe(name, name == "locret" ? std::max(tokens, 2600) : tokens);
}

}  // namespace kvlab
