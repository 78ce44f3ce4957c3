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

}  // namespace kvlab
