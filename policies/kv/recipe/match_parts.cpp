#include <fmt/format.h>

#include "policies/kv/recipe/recipe.h"

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

// Needs equally many tokens in a layer's KV heads.
std::string takes_heads_together(const std::string& part) {
  return part + " takes all KV heads of a layer together, but {splitter} lets them keep different numbers of tokens";
}
std::vector<Conflict> of_equal_heads(KvPart::EqualHeads heads, const std::string& part) {
  if (heads == KvPart::EqualHeads::kNotNeeded) return {};
  return {{{Trait::kActs, Trait::kSplitsHeads, Trait::kShrinks}, {}, takes_heads_together(part)}};
}

// Of parts that let prompt tokens leave.
std::vector<Conflict> of_shorter_prompts(const std::string& part, std::initializer_list<Trait> others, const std::string& partners) {
  std::vector<Conflict> all;
  for (const Trait trait : others) all.push_back({{trait}, {}, part + partners});
  all.push_back({{Trait::kSharesPrefixes}, {}, part + "leaves no whole blocks to be shared: prefix_reuse must be none"});
  all.push_back({{Trait::kRecomputes}, {}, part + "takes prompts in one piece: on_preempt must be swap"});
  return all;
}

}  // namespace

Traits Trigger::provides() const {
  constexpr std::int32_t kPrompt = 1 << 16;
  return Traits()
      .set(Trait::kActs, acts())
      .set(Trait::kCutsPrompts, inside_prefill() || target({0, 0, kPrompt, kPrompt, -1}, kPrompt, {1, 0}).has_value())
      .set(Trait::kCutsChunks, inside_prefill())
      .set(Trait::kCutsInDecode, in_decode())
      .set(Trait::kCutsAgain, in_decode() || inside_prefill())
      .set(Trait::kKeepsCounts, keeps_counts());
}

std::vector<Conflict> Trigger::conflicts() const {
  if (!acts()) return {};
  std::vector<Conflict> all{{{}, {Trait::kScores}, "trigger '{trigger}' acts, so there must be a scorer to rank tokens by"}};
  if (needs_budget())
    all.push_back({{}, {Trait::kBudget}, "trigger '{trigger}' acts, so there must be a budget: give budget_tokens or budget_frac"});
  if (inside_prefill())
    all.push_back({{Trait::kSharesPrompts},
                   {},
                   "trigger '{trigger}' cuts the cache inside the prompt, so its blocks cannot be shared: prefix_reuse must be none"});
  return all;
}

Traits Scorer::provides() const {
  return Traits{Trait::kScores}
      .set(Trait::kScalesDiffer, !comparable_across_heads())
      .set(Trait::kRanksAfterCounts, ranks_after_counts())
      .set(Trait::kProtectsShare, protects().recent_frac > 0)
      .set(Trait::kSplitsHeads, splits_heads());
}

std::vector<Conflict> Scorer::conflicts() const {
  std::vector<Conflict> all{{{}, {Trait::kActs}, "scorer '{scorer}' is never asked, because the trigger is 'never'"}};
  const std::string together = takes_heads_together("scorer '{scorer}'");
  if (equal_heads() == EqualHeads::kLeft) all.push_back({{Trait::kActs, Trait::kSplitsHeads}, {}, together});
  if (equal_heads() == EqualHeads::kFound)
    all.push_back({{Trait::kActs, Trait::kSplitsHeads, Trait::kShrinks, Trait::kCutsAgain},
                   {},
                   together + ", and trigger '{trigger}' acts on them again"});
  return all;
}

std::vector<Conflict> Disposal::conflicts() const {
  const std::string changes = "disposal '{disposal}' changes tokens after format '{format}' encoded them";
  if (acts_alone())
    return {{{Trait::kActs}, {}, "disposal '{disposal}' keeps every token, so the trigger must be 'never'"},
            {{Trait::kEncodes}, {}, changes}};
  std::vector<Conflict> all;
  if (!only_drops()) all.push_back({{}, {Trait::kActs}, "disposal '{disposal}' has nothing to do, because the trigger is 'never'"});
  if (!shrinks())
    all.push_back({{Trait::kEncodes},
                   {},
                   "disposal '{disposal}' stores tokens in a precision of its own, so the format must be 'native', not '{format}'"});
  // At the prompt's end merging comes first.
  if (merges()) all.push_back({{Trait::kEncodes, Trait::kCutsAgain}, {}, changes + "; trigger 'prefill_end' merges before"});
  return all;
}

std::vector<Conflict> Allocator::conflicts() const {
  std::vector<Conflict> all;
  if (!is_uniform())
    all.push_back({{}, {Trait::kActs}, "allocator '{allocator}' has nothing to share out, because the trigger is 'never'"});
  if (depends_on_data())
    all.push_back({{Trait::kScalesDiffer},
                   {},
                   "allocator '{allocator}' ranks heads against each other, and scores of '{scorer}' are not comparable between heads"});
  if (fixes_tokens() == FixesTokens::kAll)
    all.push_back({{Trait::kRanksAfterCounts},
                   {},
                   "allocator '{allocator}' chooses the tokens by the scores, and scorer '{scorer}' ranks them anew once counts are known: "
                   "give output_aware 'first_stage: of_budget' (AdaKV over CriticalKV), or ada 'ties: critical_adakv' (CriticalAdaKV) or "
                   "'ties: lower_index'"});
  if (fixes_tokens() != FixesTokens::kNone)
    all.push_back({{Trait::kProtectsShare},
                   {Trait::kPeerTies},
                   "allocator '{allocator}' fixes tokens that stay, and scorer '{scorer}' protects a share of what a row keeps, which is "
                   "known only after that: give scorer '{scorer}' 'recent_frac: 0'"});
  if (!in_decode())
    all.push_back({{Trait::kCutsInDecode},
                   keeps_counts() ? Traits{Trait::kKeepsCounts} : Traits{},
                   "allocator '{allocator}' shares a budget between layers while the prompt runs, but trigger '{trigger}' also acts in "
                   "decode"});
  return all;
}

std::vector<Conflict> PrefillSelector::conflicts() const {
  return {{{Trait::kCutsChunks},
           {},
           "prefill selector '{prefill_selector}' needs all tokens of the prompt, and trigger '{trigger}' cuts the cache inside it"}};
}

std::vector<Conflict> Format::conflicts() const { return of_equal_heads(equal_heads(), "format '{format}'"); }

std::vector<Conflict> Selector::conflicts() const { return of_equal_heads(equal_heads(), "selector '{selector}'"); }

// Layers hold different tokens: no block holds them all.
std::vector<Conflict> PromptPruner::conflicts() const {
  return of_shorter_prompts("prompt_pruner '{prompt_pruner}' ",
                            {Trait::kCutsPrompts, Trait::kKeepsOthers, Trait::kEncodes, Trait::kSelects},
                            "goes with trigger 'never' or one that cuts in decode alone, disposal 'drop', format 'native' and selector "
                            "'all'; write {recipe: full, prompt_pruner: ...}");
}

std::vector<Conflict> PromptRewriter::conflicts() const {
  const std::string self = "prompt_rewriter '{prompt_rewriter}' ";
  std::vector<Conflict> all = of_shorter_prompts(
      self, {Trait::kActs, Trait::kKeepsOthers, Trait::kEncodes, Trait::kSelects},
      "goes with trigger 'never', disposal 'drop', format 'native' and selector 'all'; write {recipe: full, prompt_rewriter: ...}");
  all.insert(all.begin(), Conflict{{Trait::kPrunes}, {}, self + "and a prompt_pruner exclude each other: write 'prompt_pruner: none'"});
  return all;
}

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
