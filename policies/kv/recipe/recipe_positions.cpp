#include <fmt/format.h>

#include "policies/kv/recipe/recipe.h"

namespace kvlab {

namespace {

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

}  // namespace

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

}  // namespace kvlab
