#include "policies/kv/recipe/recipe.h"

#include <fmt/format.h>

#include <algorithm>

namespace kvlab {

namespace {

template <class Part>
std::unique_ptr<Part> made(const std::function<std::unique_ptr<Part>()>& make) {
  return make ? make() : nullptr;
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

}  // namespace kvlab
