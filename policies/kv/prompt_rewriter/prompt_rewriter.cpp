#include "policies/kv/prompt_rewriter/prompt_rewriter.h"

namespace kvlab {

std::vector<Conflict> PromptRewriter::conflicts() const {
  const std::string self = "prompt_rewriter '{prompt_rewriter}' ";
  const std::string partners =
      "goes with trigger 'never', disposal 'drop', format 'native' and selector 'all'; write {recipe: full, prompt_rewriter: ...}";
  std::vector<Conflict> all{{{Trait::kPrunes}, {}, self + "and a prompt_pruner exclude each other: write 'prompt_pruner: none'"}};
  for (const Trait trait : {Trait::kActs, Trait::kKeepsOthers, Trait::kEncodes, Trait::kSelects})
    all.push_back({{trait}, {}, self + partners});
  all.push_back({{Trait::kSharesPrefixes}, {}, self + "leaves no whole blocks to be shared: prefix_reuse must be none"});
  all.push_back({{Trait::kRecomputes}, {}, self + "takes prompts in one piece: on_preempt must be swap"});
  return all;
}

}  // namespace kvlab
