#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/config/params.h"
#include "policies/kv/allocator/allocator.h"
#include "policies/kv/disposal/disposal.h"
#include "policies/kv/format/format.h"
#include "policies/kv/prefill_selector/prefill_selector.h"
#include "policies/kv/prompt_pruner/prompt_pruner.h"
#include "policies/kv/prompt_rewriter/prompt_rewriter.h"
#include "policies/kv/scorer/scorer.h"
#include "policies/kv/selector/selector.h"
#include "policies/kv/trigger/trigger.h"

namespace kvlab {

// policies/kv/recipes/NAME.yaml, with an experiment's overrides.
struct Recipe {
  std::string name, summary, paper, confidence, notes, claims;
  std::vector<std::string> hosts;  // replay, cost, engine

  std::string weights, weights_from;  // tensor file, and its source; "": none

  std::string text;  // equal texts, equal recipes

  Budget budget;
  bool has_budget = false;
  enum class PrefixReuse : std::uint8_t { kNone, kFullCopy, kSamePolicy } prefix_reuse = PrefixReuse::kFullCopy;
  static constexpr std::initializer_list<Named<PrefixReuse>> kPrefixReuse{
      {"none", PrefixReuse::kNone}, {"full_copy", PrefixReuse::kFullCopy}, {"same_policy", PrefixReuse::kSamePolicy}};
  enum class OnPreempt : std::uint8_t { kSwap, kRecomputeChunked } on_preempt = OnPreempt::kSwap;
  static constexpr std::initializer_list<Named<OnPreempt>> kOnPreempt{{"swap", OnPreempt::kSwap},
                                                                      {"recompute_chunked", OnPreempt::kRecomputeChunked}};
  // Key positions after others were dropped or not selected (read_positions).
  enum class Positions : std::uint8_t { kOriginal, kRenumbered } positions = Positions::kOriginal;
  static constexpr std::initializer_list<Named<Positions>> kPositions{{"original", Positions::kOriginal},
                                                                      {"renumbered", Positions::kRenumbered}};
  [[nodiscard]] bool renumbers() const { return positions == Positions::kRenumbered; }
  bool peer_ties = false;  // breaks ties like a peer

  // Names, "" for none; makers may be empty. Parts have state, so each run makes new ones.
  std::string scorer, allocator, trigger, disposal, format, selector, prefill_selector, prompt_pruner, prompt_rewriter;
  std::function<std::unique_ptr<Scorer>()> make_scorer;
  std::function<std::unique_ptr<Allocator>()> make_allocator;
  std::function<std::unique_ptr<Trigger>()> make_trigger;
  std::function<std::unique_ptr<Disposal>()> make_disposal;
  std::function<std::unique_ptr<Format>()> make_format;
  std::function<std::unique_ptr<Selector>()> make_selector;
  std::function<std::unique_ptr<PrefillSelector>()> make_prefill_selector;
  std::function<std::unique_ptr<PromptPruner>()> make_prompt_pruner;
  std::function<std::unique_ptr<PromptRewriter>()> make_prompt_rewriter;

  std::vector<std::pair<std::string, std::string>> parts;  // kind, one-line YAML
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> part_names() const;

  [[nodiscard]] bool runs_in(const std::string& host) const;
  bool acts = false, only_drops = true, is_native = true, selects_all = true;
  [[nodiscard]] bool selects_in_prompts() const { return make_prefill_selector != nullptr; }
  [[nodiscard]] bool rewrites() const { return make_prompt_rewriter != nullptr; }
  [[nodiscard]] bool prunes() const { return make_prompt_pruner != nullptr || rewrites(); }
  // True: dense attention of all prompt tokens in all layers.
  [[nodiscard]] bool computes_whole_prompts() const { return !selects_in_prompts() && !prunes(); }
  [[nodiscard]] const char* pruning_part() const { return rewrites() ? "prompt_rewriter" : "prompt_pruner"; }
  [[nodiscard]] bool keeps_everything() const { return !acts && only_drops && is_native && selects_all && computes_whole_prompts(); }
};

// null: no such part.
struct RecipeParts {
  explicit RecipeParts(const Recipe& recipe);
  [[nodiscard]] std::vector<KvPart*> all() const;

  std::unique_ptr<Scorer> scorer;
  std::unique_ptr<Allocator> allocator;
  std::unique_ptr<Trigger> trigger;
  std::unique_ptr<Disposal> disposal;
  std::unique_ptr<Format> format;
  std::unique_ptr<Selector> selector;
  std::unique_ptr<PrefillSelector> prefill_selector;
  std::unique_ptr<PromptPruner> pruner;
  std::unique_ptr<PromptRewriter> rewriter;
};

// `{recipe: NAME, budget_tokens: N | budget_frac: X | compression_ratio: R, weights: FILE, PART: ...}` overrides the recipe's file. Throws
// with file:line:column for an unknown recipe or part, a budget that is <= 0, given twice or unused, or conflicting parts.
Recipe read_recipe(Params& p);

// If `over` of `all` prompts, called `of` ("requests"), exceed the budget; or "".
std::string remark_on_budget(std::uint64_t over, std::uint64_t all, const std::string& of);

// "; to be had: " + weights_from, or "".
std::string weights_advice(const Recipe& recipe);

// "": a budget has an effect.
std::string why_no_budget(const Recipe& recipe);

// "" or the first of KvPart::conflicts.
std::string why_not_together(const Recipe& recipe);

// `weights: FILE` and `weights_from`. Throws with file:line:column if the file is missing or unused, or a tensor missing or of another
// type.
void read_weights(Params& experiment, Params& file, Recipe& recipe);

// `positions: renumbered`: kept keys are rotated to consecutive positions before the next token; selected tokens, for the step that reads
// them. KvRows::position stays original.
void read_positions(Params& experiment, Params& file, Recipe& recipe);
// With an alternative, or "".
std::string why_not_renumbered(const Recipe& recipe);
std::string why_rope_stays(const RopeForm& rope);
// True: keys may be rotated in each step and must not be rounded to 16 bits.
bool turns_in_decode(const Recipe& recipe);

// budget_tokens 0: the file's.
Recipe load_recipe(const std::string& name, std::int32_t budget_tokens = 0);

std::vector<std::string> recipe_names();

}  // namespace kvlab
