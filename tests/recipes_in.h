#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/params.h"
#include "policies/kv/recipe.h"

namespace kvlab {

// A recipe as an experiment would write it: `{recipe: snapkv, budget_tokens: 64}`.
inline Recipe recipe_of(const std::string& text) {
  Params p = Params::from_text(text, "kv_policy");
  return read_recipe(p);
}

// Names of the recipes that run in each of these hosts.
inline std::vector<std::string> recipes_in(std::initializer_list<const char*> hosts) {
  std::vector<std::string> names = recipe_names();
  std::erase_if(names, [&](const std::string& name) {
    const Recipe recipe = load_recipe(name);
    return !std::all_of(hosts.begin(), hosts.end(), [&](const char* host) { return recipe.runs_in(host); });
  });
  return names;
}

}  // namespace kvlab
