#pragma once

#include <string>

#include "base/error.h"
#include "tests/cuda/shape_model.h"
#include "tests/recipes_in.h"

namespace kvlab {

// A recipe with a budget that it has to cut the prompt to, where it takes one.
struct Cut {
  Recipe recipe;
  std::int32_t prompt = 72, layers = 2;

  [[nodiscard]] EngineSequence sequence(std::int32_t index = 0) const {
    const std::int32_t tokens = prompt - 9 * index;  // a batch is ragged
    EngineSequence s = sequence_of(index, tiny_ids(tokens + 8, 3 + index), tokens);
    s.question_begin = tokens - 9;
    return s;
  }
};

inline PolicyCache cache_for(const Cut& cut, TensorMemory memory, ElementType type) {
  return PolicyCache(std::make_unique<ShapeModel>(cut.layers, memory, type), cut.recipe, {});
}

inline bool is_accepted(const Cut& cut) {
  try {
    PolicyCache cache = cache_for(cut, TensorMemory(), ElementType::kF32);
    EngineSequence s = cut.sequence();
    cache.start(s);
    cache.policy().refuse_small_budget({0, 0, cut.prompt, cut.prompt, -1});
    cache.release(s);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

inline Cut cut_of(const std::string& name) {
  const Recipe recipe = load_recipe(name);
  if (!why_no_budget(recipe).empty()) return recipe.selector == "all" ? Cut{recipe} : Cut{recipe, 200, 4};
  // Selectors attend to everything in up to three layers, and to what is too short for them.
  const std::int32_t prompt = recipe.selector == "all" ? 72 : recipe.name == "rekv" ? 800 : 200, layers = recipe.selector == "all" ? 2 : 4;
  for (const std::int32_t budget : {16, 24, 40, 56, 72}) {
    const Cut small{load_recipe(name, budget), prompt, layers};
    if (is_accepted(small)) return small;
  }
  return {load_recipe(name, 136), 200};  // it always keeps the latest 128
}

}  // namespace kvlab
