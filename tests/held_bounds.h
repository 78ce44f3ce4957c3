#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tests/recipes_in.h"
#include "tests/short_run.h"

// Cases of "no recipe holds more than it says" (KvPolicy::most_tokens): every recipe with its budgets, and lengths of prompts.
namespace kvlab::test {

inline constexpr std::array<std::int32_t, 4> kBoundPrompts{2, 27, 180, 4000};

// A peer that takes a budget as a share of its chunks keeps whole ones, of which a short prompt has one: it declares no bound in tokens.
inline bool counts_in_chunks(const Recipe& recipe) { return recipe.peer_ties && recipe.scorer == "chunks" && recipe.budget.tokens == 0; }

// The recipe with 64 tokens, 256 tokens and a quarter of the prompt; as it is where it has no use for a budget.
inline std::vector<std::pair<std::string, Recipe>> bound_cases(const std::string& name) {
  if (!why_no_budget(shipped_recipe(name)).empty()) return {{"own", shipped_recipe(name)}};
  std::vector<std::pair<std::string, Recipe>> cases;
  for (const std::string budget : {"budget_tokens: 64", "budget_tokens: 256", "budget_frac: 0.25"}) {
    Recipe recipe = recipe_of("{recipe: " + name + ", " + budget + "}");
    if (!counts_in_chunks(recipe)) cases.emplace_back(budget, std::move(recipe));
  }
  return cases;
}

// The recipe's place among all of them.
inline std::size_t recipe_index(const std::string& name) {
  static const std::vector<std::string> names = recipe_names();
  return static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

// A short run takes every third recipe.
inline bool left_out_of_bounds(const std::string& name) { return short_run() && recipe_index(name) % 3 != 0; }

}  // namespace kvlab::test
