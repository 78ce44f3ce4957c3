#include "policies/kv/recipe/match_parts.h"

#include <fmt/format.h>

namespace kvlab {

namespace {

Traits traits_of(const Recipe& recipe, const RecipeParts& parts) {
  Traits traits;
  for (const KvPart* part : parts.all()) traits |= part->provides();
  traits.set(Trait::kBudget, recipe.has_budget);
  traits.set(Trait::kPeerTies, recipe.peer_ties);
  traits.set(Trait::kSharesPrompts, recipe.prefix_reuse == Recipe::PrefixReuse::kFullCopy);
  traits.set(Trait::kSharesPrefixes, recipe.prefix_reuse != Recipe::PrefixReuse::kNone);
  traits.set(Trait::kRecomputes, recipe.on_preempt == Recipe::OnPreempt::kRecomputeChunked);
  return traits;
}

void replace_all(std::string& text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) text.replace(at, what.size(), by);
}

std::string with_names(std::string text, const Recipe& recipe, const RecipeParts& parts) {
  for (const auto& [kind, name] : recipe.part_names()) replace_all(text, "{" + kind + "}", name);
  const bool by_allocator = parts.allocator->splits_heads();
  replace_all(text, "{splitter}",
              by_allocator ? fmt::format("allocator '{}'", recipe.allocator) : fmt::format("scorer '{}'", recipe.scorer));
  return text;
}

}  // namespace

std::string why_not_together(const Recipe& recipe) {
  const RecipeParts parts(recipe);
  const Traits traits = traits_of(recipe, parts);
  for (const KvPart* part : std::initializer_list<const KvPart*>{parts.trigger.get(), parts.scorer.get(), parts.disposal.get(),
                                                                 parts.allocator.get(), parts.prefill_selector.get(), parts.format.get(),
                                                                 parts.selector.get(), parts.rewriter.get(), parts.pruner.get()}) {
    if (part == nullptr) continue;
    for (const Conflict& conflict : part->conflicts())
      if (traits.has_all(conflict.with) && !traits.has_any(conflict.without)) return with_names(conflict.why, recipe, parts);
  }
  return "";
}

}  // namespace kvlab
