#include "policies/kv/recipe/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/read_file.h"
#include "policies/kv/prefill_selector/head_patterns.h"
#include "policies/kv/recipe/trained_tensors.h"

namespace kvlab {

namespace {

template <class Part>
std::unique_ptr<Part> made(const std::function<std::unique_ptr<Part>()>& make) {
  return make ? make() : nullptr;
}

constexpr const char* kInstead = "; write 'positions: original'";

// Parts that saw or stored keys at positions before a cut.
std::string why_cuts_stay(const Recipe& r) {
  const auto scorer = r.make_scorer();
  const auto trigger = r.make_trigger();
  const auto selector = r.make_selector();
  const bool again = trigger->in_decode() || trigger->inside_prefill();
  const auto knows_angles = [](const Needs& n) { return n.turns || n.pre_rope_keys; };
  if (!r.make_disposal()->shrinks()) return fmt::format("disposal '{}' leaves every token in its row", r.disposal);
  if (knows_angles(selector->needs())) return fmt::format("selector '{}' turns keys back by their original positions", r.selector);
  // Some formats encode before the prompt ends.
  if (r.make_format()->encodes()) return fmt::format("format '{}' encodes keys at their old places", r.format);
  if (again && scorer->needs().window_queries > 0)
    return fmt::format("scorer '{}' asks with queries from before earlier cuts of trigger '{}' (trigger 'prefill_end' cuts once)", r.scorer,
                       r.trigger);
  if (again && r.make_allocator()->needs().window_queries > 0)
    return fmt::format("allocator '{}' asks with queries from before earlier cuts of trigger '{}' (trigger 'prefill_end' cuts once)",
                       r.allocator, r.trigger);
  if (r.prefix_reuse == Recipe::PrefixReuse::kSamePolicy) return "its blocks are shared by 'prefix_reuse: same_policy'";
  return "";
}

using Weights = std::shared_ptr<const TrainedTensors>;

template <class Part>
bool give(std::function<std::unique_ptr<Part>()>& make, const Weights& weights) {
  if (!make || make()->takes_weights() == KvPart::TakesWeights::kNo) return false;
  make = [bare = make, weights] {
    auto part = bare();
    part->set_weights(weights);
    return part;
  };
  make();  // throws early
  return true;
}

bool give_all(Recipe& recipe, const Weights& weights) {
  bool taken = give(recipe.make_scorer, weights);
  taken = give(recipe.make_allocator, weights) || taken;
  taken = give(recipe.make_disposal, weights) || taken;
  taken = give(recipe.make_format, weights) || taken;
  return give(recipe.make_selector, weights) || taken;
}

bool give_patterns(Recipe& recipe, const std::string& path) {
  if (!recipe.selects_in_prompts() || !recipe.make_prefill_selector()->takes_patterns()) return false;
  recipe.make_prefill_selector = [bare = recipe.make_prefill_selector, table = read_head_patterns(path)] {
    auto part = bare();
    part->set_patterns(table);
    return part;
  };
  return true;
}

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

RecipeParts::RecipeParts(const Recipe& recipe)
    : scorer(made(recipe.make_scorer)),
      allocator(recipe.make_allocator()),
      trigger(recipe.make_trigger()),
      disposal(recipe.make_disposal()),
      format(recipe.make_format()),
      selector(recipe.make_selector()),
      prefill_selector(made(recipe.make_prefill_selector)),
      pruner(made(recipe.make_prompt_pruner)),
      rewriter(made(recipe.make_prompt_rewriter)) {}

std::vector<KvPart*> RecipeParts::all() const {
  std::vector<KvPart*> all;
  for (KvPart* part : std::initializer_list<KvPart*>{scorer.get(), allocator.get(), trigger.get(), disposal.get(), format.get(),
                                                     selector.get(), prefill_selector.get(), pruner.get(), rewriter.get()})
    if (part != nullptr) all.push_back(part);
  return all;
}

std::string why_no_budget(const Recipe& r) {
  const auto because = [&](const std::string& why) { return fmt::format("recipe '{}' has no use for a budget: {}", r.name, why); };
  if (r.acts)
    return r.make_trigger()->needs_budget()
               ? ""
               : because(fmt::format("its trigger '{}' leaves it to allocator '{}' how many tokens stay", r.trigger, r.allocator));
  const auto selector = r.make_selector();
  if (selector->selects_all()) return because("it keeps and reads every token");
  return selector->takes_budget() ? "" : because(fmt::format("its selector '{}' keeps to parameters of its own", r.selector));
}

bool Recipe::runs_in(const std::string& host) const { return std::find(hosts.begin(), hosts.end(), host) != hosts.end(); }

std::vector<std::pair<std::string, std::string>> Recipe::part_names() const {
  return {{"scorer", scorer},
          {"allocator", allocator},
          {"trigger", trigger},
          {"disposal", disposal},
          {"format", format},
          {"selector", selector},
          {"prefill_selector", prefill_selector},
          {"prompt_pruner", prompt_pruner},
          {"prompt_rewriter", prompt_rewriter}};
}

std::string remark_on_budget(std::uint64_t over, std::uint64_t all, const std::string& of) {
  if (over == 0) return "";
  return fmt::format(
      "{} of {} {} keep more than the policy's budget, which is less of their prompts than what always stays; a prompt no longer than that "
      "stays whole",
      over, all, of);
}

void read_positions(Params& experiment, Params& file, Recipe& recipe) {
  const char* const meaning = "RoPE angles of keys after others were dropped or not selected";
  const Recipe::Positions own = file.choice("positions", Recipe::kPositions, Recipe::Positions::kOriginal, meaning);
  recipe.positions = experiment.choice("positions", Recipe::kPositions, own, meaning);
}

std::string why_not_renumbered(const Recipe& r) {
  if (!r.renumbers()) return "";
  const auto because = [](const std::string& why) { return "keys cannot be renumbered, because " + why + kInstead; };
  if (!r.acts && r.selects_all) return because("no token is dropped or left out");
  if (r.prunes())
    return because(fmt::format("{} '{}' drops tokens of prompts without turning keys", r.pruning_part(),
                               r.rewrites() ? r.prompt_rewriter : r.prompt_pruner));
  if (r.make_disposal()->adds_segments()) return because(fmt::format("disposal '{}' keeps keys outside the cache", r.disposal));
  if (r.make_selector()->adds_segments()) return because(fmt::format("selector '{}' keeps keys outside the cache", r.selector));
  if (!r.acts) return "";
  const std::string why = r.scorer.empty() ? "" : why_cuts_stay(r);
  return why.empty() ? "" : because(why);
}

std::string why_rope_stays(const RopeForm& rope) {
  if (rope.scaling.kind != RopeScaling::Kind::kDynamic) return "";
  return std::string("keys cannot be renumbered, because the model's RoPE scaling 'dynamic' changes angles with the length") + kInstead;
}

bool turns_in_decode(const Recipe& r) { return r.renumbers() && r.acts && r.make_trigger()->in_decode(); }

std::string weights_advice(const Recipe& recipe) { return recipe.weights_from.empty() ? "" : "; to be had: " + recipe.weights_from; }

void read_weights(Params& experiment, Params& file, Recipe& recipe) {
  recipe.weights_from = file.text("weights_from", "", "where trained or calibrated tensors for it can be had");
  constexpr const char* kMeaning = "safetensors file with the recipe's trained or calibrated tensors, or JSON of kvlab label prefill";
  const std::string own = file.text("weights", "", kMeaning), given = experiment.text("weights", "", kMeaning);
  if (own.empty() && given.empty()) return;
  Params& from = given.empty() ? file : experiment;
  const std::string name = given.empty() ? own : given, path = from.resolve_file(name);
  if (!is_file(path)) from.fail_at("weights", fmt::format("'{}': no such file{}", name, weights_advice(recipe)));
  from.reading("weights", [&] {
    const bool is_table = std::filesystem::path(path).extension() == ".json";
    if (is_table ? !give_patterns(recipe, path) : !give_all(recipe, TrainedTensors::open(path)))
      throw InputError(fmt::format("no part of recipe '{}' takes weights: delete the line", recipe.name));
  });
  recipe.weights = path;
}

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
