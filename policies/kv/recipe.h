#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/params.h"
#include "policies/kv/part.h"
#include "policies/kv/prefill_selector.h"
#include "policies/kv/prompt_pruner.h"
#include "policies/kv/prompt_rewriter.h"

namespace kvlab {

// A named point in the grid of parts, as policies/kv/recipes/NAME.yaml writes it down, with what an experiment overrides.
struct Recipe {
  std::string name, summary, paper, confidence, notes, claims;
  std::vector<std::string> hosts;  // of replay, cost, engine

  std::string weights, weights_from;  // file of trained tensors in use, and where one can be had; "": none, not stated

  std::string text;  // as in the experiment: equal texts, equal recipes

  Budget budget;
  bool has_budget = false;
  enum class PrefixReuse : std::uint8_t { kNone, kFullCopy, kSamePolicy } prefix_reuse = PrefixReuse::kFullCopy;
  static constexpr std::initializer_list<Named<PrefixReuse>> kPrefixReuse{
      {"none", PrefixReuse::kNone}, {"full_copy", PrefixReuse::kFullCopy}, {"same_policy", PrefixReuse::kSamePolicy}};
  enum class OnPreempt : std::uint8_t { kSwap, kRecomputeChunked } on_preempt = OnPreempt::kSwap;
  static constexpr std::initializer_list<Named<OnPreempt>> kOnPreempt{{"swap", OnPreempt::kSwap},
                                                                      {"recompute_chunked", OnPreempt::kRecomputeChunked}};
  // Places that keys take after others were dropped, or not selected: their own, or consecutive ones (recipe_positions.h).
  enum class Positions : std::uint8_t { kOriginal, kRenumbered } positions = Positions::kOriginal;
  static constexpr std::initializer_list<Named<Positions>> kPositions{{"original", Positions::kOriginal},
                                                                      {"renumbered", Positions::kRenumbered}};
  [[nodiscard]] bool renumbers() const { return positions == Positions::kRenumbered; }
  bool peer_ties = false;  // mirrors how a peer breaks ties

  // The parts by name ("" for no scorer, prefill selector, pruner or rewriter), and makers of fresh ones: parts have state, so every run
  // takes its own.
  std::string scorer, allocator, trigger, disposal, format, selector, prefill_selector, prompt_pruner, prompt_rewriter;
  std::function<std::unique_ptr<Scorer>()> make_scorer;  // empty: no scorer
  std::function<std::unique_ptr<Allocator>()> make_allocator;
  std::function<std::unique_ptr<Trigger>()> make_trigger;
  std::function<std::unique_ptr<Disposal>()> make_disposal;
  std::function<std::unique_ptr<Format>()> make_format;
  std::function<std::unique_ptr<Selector>()> make_selector;
  std::function<std::unique_ptr<PrefillSelector>()> make_prefill_selector;  // empty: prompts attend to every token
  std::function<std::unique_ptr<PromptPruner>()> make_prompt_pruner;        // empty: no pruner
  std::function<std::unique_ptr<PromptRewriter>()> make_prompt_rewriter;    // empty: no rewriter

  std::vector<std::pair<std::string, std::string>> parts;  // kind and what was chosen, as YAML on one line
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> part_names() const;

  [[nodiscard]] bool runs_in(const std::string& host) const;
  // Properties of the parts.
  bool acts = false, only_drops = true, is_native = true, selects_all = true;
  [[nodiscard]] bool selects_in_prompts() const { return make_prefill_selector != nullptr; }
  // Prompts are replaced by some of their tokens before they are computed.
  [[nodiscard]] bool rewrites() const { return make_prompt_rewriter != nullptr; }
  // Tokens of a prompt leave before or between the layers that compute it.
  [[nodiscard]] bool prunes() const { return make_prompt_pruner != nullptr || rewrites(); }
  // Every token of a prompt is computed in every layer, and attends to all before it.
  [[nodiscard]] bool computes_whole_prompts() const { return !selects_in_prompts() && !prunes(); }
  // The part that makes them leave, as an experiment names it.
  [[nodiscard]] const char* pruning_part() const { return rewrites() ? "prompt_rewriter" : "prompt_pruner"; }
  // Plain KV in the model's own type, all of it attended to.
  [[nodiscard]] bool keeps_everything() const { return !acts && only_drops && is_native && selects_all && computes_whole_prompts(); }
};

// Reads `{recipe: NAME, budget_tokens: N | budget_frac: X | compression_ratio: R, weights: FILE, PART: ...}`: the recipe's file with the
// parts, the tensors and the budget that this mapping overrides. Errors with file:line:column: unknown recipe or part, a budget of 0,
// below 0 or given twice, a budget without use, a combination of parts that cannot work (with the reason).
Recipe read_recipe(Params& p);

// A remark on `over` of `all` prompts (KvPolicy::exceeds_budget), which are called `of`: "requests". "" where there are none.
std::string remark_on_budget(std::uint64_t over, std::uint64_t all, const std::string& of);

// "; to be had: " with the recipe's weights_from, for errors about trained tensors; "" if it states none.
std::string weights_advice(const Recipe& recipe);

// Why a budget would change nothing: no part of the recipe asks for it. "" where one does.
std::string why_no_budget(const Recipe& recipe);

// The recipe as its file has it. `budget_tokens`: 0 takes the file's.
Recipe load_recipe(const std::string& name, std::int32_t budget_tokens = 0);

// All names in the recipes folder, ascending.
std::vector<std::string> recipe_names();

}  // namespace kvlab
