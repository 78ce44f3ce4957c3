#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/cache/policy_cache.h"
#include "policies/kv/policy/policy.h"
#include "tests/recipes_in.h"

namespace kvlab {

inline bool is_packed(const Recipe& recipe) { return recipe.format != "native" || recipe.disposal == "low_precision"; }

// The recipes that encode tokens in the engine.
inline std::vector<std::string> packed_recipes() {
  std::vector<std::string> names = recipes_in({"engine"});
  std::erase_if(names, [](const std::string& name) { return !is_packed(shipped_recipe(name)); });
  return names;
}

// Dense on the GPU, or with a code that the engine has no decoder for: the prompt's keys of all heads as one product.
inline bool stays_in_pages(const std::string& recipe) { return recipe == "cachegen" || recipe == "shadowkv" || recipe == "shadowkv_keys"; }

// Bytes held for K and V beyond those counted, per layer and KV head: divisors of channels, which are counted in 16 bits or not at all
// (where the paper folds them into weights) and held in 32, once for each number of bits.
inline std::int64_t divisor_bytes(const std::string& recipe, std::int64_t head_dim) {
  const std::map<std::string, std::int64_t> bytes{{"qserve_kv4", 4}, {"fireq", 2}, {"mikv", 2},
                                                  {"zipcache", 6},   {"zipvl", 6}, {"zipvl_prefill", 6}};
  return bytes.contains(recipe) ? bytes.at(recipe) * head_dim : 0;
}

// K and V as they are counted: without positions and statistics.
inline std::int64_t counted_kv(PolicyCache& cache, EngineSequence& s) {
  const std::string name = cache.policy().recipe().name;
  std::int64_t tokens = 0;
  for (const auto& row : cache.positions(s)) tokens += std::ssize(row);
  const bool has_word = name == "zipcache" || name.starts_with("zipvl") || name == "mikv",
             has_position = name == "snapkv_kivi2" || name == "knorm_int4";
  return cache.resident(s).gpu - 4 * tokens * (has_word || has_position ? 1 : 0);
}

// Recipes whose selectors keep K or V on a lower tier, small enough to choose among a few hundred tokens.
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
