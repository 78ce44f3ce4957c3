#pragma once

#include "policies/kv/policy/policy.h"
#include "tests/recipes_in.h"

// Recipes whose selectors keep K or V on a lower tier, small enough to choose among a few hundred tokens.
namespace kvlab {

inline bool lies_lower(const Recipe& recipe, const ModelShape& shape) {
  const KvPolicy policy(recipe, shape);
  for (std::int32_t l = 0; l < shape.num_layers; ++l)
    if (policy.lower(l) != Selector::Lower::kNothing) return true;
  return false;
}

inline Recipe small_tiered(const std::string& name) {
  if (name == "rekv")
    return recipe_of("{recipe: rekv, selector: {rekv: {frame_tokens: 16, top_frames: 3, question_tokens: 16, local_tokens: 40}}}");
  if (name == "magicpig") return recipe_of("{recipe: magicpig, selector: {lsh_sampling: {local_tokens: 32, bits: 6, tables: 20}}}");
  return load_recipe(name, 64);
}

// Recipes of the engine with something on a lower tier of a model of this shape.
inline std::vector<std::string> tiered_recipes(const ModelShape& shape) {
  std::vector<std::string> names = recipes_in({"engine"});
  std::erase_if(names, [&](const std::string& name) { return !lies_lower(shipped_recipe(name), shape); });
  return names;
}

}  // namespace kvlab
