#include "policies/kv/prompt_pruner/prompt_pruner.h"

namespace kvlab {

// Layers hold different tokens: no block holds them all.
std::vector<Conflict> PromptPruner::conflicts() const {
  const std::string self = "prompt_pruner '{prompt_pruner}' ";
  const std::string partners =
      "goes with trigger 'never' or one that cuts in decode alone, disposal 'drop', format 'native' and selector 'all'; write {recipe: "
      "full, "
      "prompt_pruner: ...}";
  std::vector<Conflict> all;
  for (const Trait trait : {Trait::kCutsPrompts, Trait::kKeepsOthers, Trait::kEncodes, Trait::kSelects})
    all.push_back({{trait}, {}, self + partners});
  all.push_back({{Trait::kSharesPrefixes}, {}, self + "leaves no whole blocks to be shared: prefix_reuse must be none"});
  all.push_back({{Trait::kRecomputes}, {}, self + "takes prompts in one piece: on_preempt must be swap"});
  return all;
}

}  // namespace kvlab
