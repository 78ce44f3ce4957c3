#include <fmt/format.h>

#include <filesystem>
#include <tuple>

#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/read_file.h"
#include "base/text.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

namespace {

constexpr std::int32_t kMaxTokens = 1 << 26;

// From the experiment's mapping or else the recipe's.
template <class Part>
std::pair<std::string, std::function<std::unique_ptr<Part>()>> read_part(Params& experiment, Params& file, const std::string& kind,
                                                                         const std::string& fallback) {
  const std::string meaning = "overrides the recipe's " + kind;
  const std::string absent = fallback.empty() ? "none" : fallback;
  auto chosen = file.named(kind, absent, meaning);
  if (experiment.has(kind)) {
    chosen = experiment.named(kind, absent, meaning);
  } else {
    experiment.text(kind, file.inline_text(kind, fallback), meaning);  // records the default
  }
  if (chosen.first == "none" && fallback.empty()) {
    chosen.second.reject_unread();
    return {"", {}};
  }
  if (!Registry<Part>::table_view().contains(chosen.first))
    (experiment.has(kind) ? experiment : file)
        .fail_at(kind, fmt::format("unknown {} '{}'{}", kind, chosen.first, suggestion(chosen.first, Registry<Part>::names())));
  Registry<Part>::make(chosen.first, chosen.second, kind);  // throws early
  return {chosen.first, [chosen, kind]() mutable { return Registry<Part>::make(chosen.first, chosen.second, kind); }};
}

void read_card(Params& file, Recipe& recipe) {
  recipe.summary = file.text("summary", "one line: what it does");
  recipe.paper = file.text("paper", "name, authors, year, equation");
  recipe.confidence =
      file.text("confidence", "how sure the description is: from code, from paper, from abstract, recalled, our definition");
  recipe.notes = file.text("notes", "", "what is our own definition or reading");
  recipe.claims = file.text("claims", "", "the paper's headline");
  recipe.prefix_reuse = file.choice("prefix_reuse", Recipe::kPrefixReuse, Recipe::PrefixReuse::kFullCopy,
                                    "what of the prompt's blocks other requests may reuse");
  recipe.on_preempt =
      file.choice("on_preempt", Recipe::kOnPreempt, Recipe::OnPreempt::kSwap, "how a cut sequence comes back after preemption");
  if (file.has("next_turn")) file.fail_at("next_turn", "'next_turn' had no effect and was removed: delete the line");
  recipe.peer_ties = file.flag("peer_ties", false, "ties fall as in the peer that the recipe mirrors");
  recipe.hosts = file.words("hosts", "hosts it runs in");
  for (const std::string& host : recipe.hosts)
    if (host != "replay" && host != "cost" && host != "engine")
      file.fail_at("hosts", "unknown host '" + host + "'; hosts are replay, cost, engine");
  if (recipe.hosts.empty()) recipe.hosts = {"replay", "cost"};
}

void read_file_budget(Params& file, Recipe& recipe) {
  recipe.has_budget = file.has("budget");
  Params b = file.optional_child("budget", "budget");
  recipe.budget.tokens = b.optional<std::int32_t>("tokens", 0, 0, kMaxTokens, "tokens per layer and KV head, protected ones included");
  recipe.budget.frac = b.optional<double>("frac", 0, 0, 1, "share of the prompt");
  recipe.budget.truncates = b.choice("rounding", {{"down", true}, {"nearest", false}}, true, "how a share becomes tokens");
  b.reject_unread();
  if (recipe.has_budget && (recipe.budget.tokens > 0) == (recipe.budget.frac > 0)) b.fail("a budget is either 'tokens' or 'frac'");
}

void read_budget(Params& p, Recipe& recipe) {
  const int given = int{p.has("budget_tokens")} + int{p.has("budget_frac")} + int{p.has("compression_ratio")};
  if (given > 1) p.fail("give one of 'budget_tokens', 'budget_frac' and 'compression_ratio'");
  const auto note_default = [&](const char* key, const std::string& own) {
    if (!p.has(key)) p.text(key, given == 0 ? own : "", "the recipe's own budget");
  };
  note_default("budget_tokens", recipe.budget.tokens > 0 ? std::to_string(recipe.budget.tokens) : "");
  note_default("budget_frac", recipe.budget.frac > 0 ? number_text(recipe.budget.frac) : "");
  note_default("compression_ratio", "");
  if (given == 0) return;
  recipe.has_budget = true;
  recipe.budget = {0, 0, recipe.budget.truncates};
  if (p.has("budget_tokens"))
    recipe.budget.tokens =
        p.required<std::int32_t>("budget_tokens", 1, kMaxTokens, "tokens kept per layer and KV head, protected ones included");
  if (p.has("budget_frac")) recipe.budget.frac = p.required<double>("budget_frac", 1e-6, 1, "share of the prompt kept");
  if (p.has("compression_ratio")) {
    recipe.budget.dropped = p.required<double>("compression_ratio", 0, 1 - 1e-6, "share of the prompt removed");
    recipe.budget.frac = 1 - recipe.budget.dropped;
  }
}

// K and V of later layers depend on the choosing queries: an experiment's own selector shares no blocks.
void read_prefill_selector(Params& p, Params& file, Recipe& recipe) {
  const std::string kind = "prefill_selector";
  if (!p.has(kind) && !file.has(kind)) return;
  auto [name, make] = read_part<PrefillSelector>(p, file, kind, "all");
  if (make()->selects_all()) return;
  recipe.prefill_selector = name, recipe.make_prefill_selector = std::move(make);
  if (p.has(kind)) recipe.prefix_reuse = Recipe::PrefixReuse::kNone;
}

void refuse_bad_parts(const Params& p, const Recipe& r) {
  if (const std::string why = r.has_budget ? why_no_budget(r) : ""; !why.empty()) p.fail(why);
  std::string why = why_not_together(r);
  if (why.empty()) why = why_not_renumbered(r);
  if (!why.empty()) p.fail(fmt::format("recipe '{}' cannot run: {}", r.name, why));
}

Recipe read_from(Params& p, Params& file, const std::string& name) {
  Recipe recipe;
  recipe.name = name;
  read_card(file, recipe);
  read_file_budget(file, recipe);
  read_budget(p, recipe);
  read_positions(p, file, recipe);
  std::tie(recipe.scorer, recipe.make_scorer) = read_part<Scorer>(p, file, "scorer", "");
  std::tie(recipe.allocator, recipe.make_allocator) = read_part<Allocator>(p, file, "allocator", "uniform");
  std::tie(recipe.trigger, recipe.make_trigger) = read_part<Trigger>(p, file, "trigger", "never");
  std::tie(recipe.disposal, recipe.make_disposal) = read_part<Disposal>(p, file, "disposal", "drop");
  std::tie(recipe.format, recipe.make_format) = read_part<Format>(p, file, "format", "native");
  std::tie(recipe.selector, recipe.make_selector) = read_part<Selector>(p, file, "selector", "all");
  read_prefill_selector(p, file, recipe);
  std::tie(recipe.prompt_pruner, recipe.make_prompt_pruner) = read_part<PromptPruner>(p, file, "prompt_pruner", "");
  std::tie(recipe.prompt_rewriter, recipe.make_prompt_rewriter) = read_part<PromptRewriter>(p, file, "prompt_rewriter", "");
  read_weights(p, file, recipe);
  recipe.acts = recipe.make_trigger()->acts();
  recipe.only_drops = recipe.make_disposal()->only_drops();
  recipe.is_native = recipe.make_format()->is_native();
  recipe.selects_all = recipe.make_selector()->selects_all();
  if (p.has("trigger") && recipe.make_trigger()->inside_prefill()) recipe.prefix_reuse = Recipe::PrefixReuse::kNone;
  if ((p.has("prompt_pruner") || p.has("prompt_rewriter")) && recipe.prunes()) {
    recipe.prefix_reuse = Recipe::PrefixReuse::kNone;
    std::erase(recipe.hosts, "replay");
  }
  for (const auto& [kind, part] : recipe.part_names())
    if (!part.empty()) recipe.parts.emplace_back(kind, (p.has(kind) ? p : file).inline_text(kind, part));
  file.reject_unread();
  p.add_asked(file);
  refuse_bad_parts(p, recipe);
  return recipe;
}

// Rejects `{snapkv: {budget_tokens: 512}}`, `{name: snapkv, ...}` and a table's "snapkv 512".
void refuse_name_as_key(const Params& p) {
  const std::string text = p.inline_text("recipe", "");
  const std::size_t space = text.find(' ');
  if (double budget = 0; space != std::string::npos && parse_real(text.substr(space + 1), budget))
    p.fail_at("recipe", fmt::format("'{}' is no recipe; write 'kv_policy: {{recipe: {}, budget_tokens: {}}}'", text, text.substr(0, space),
                                    text.substr(space + 1)));
  for (const std::string& key : p.keys()) {
    const bool is_word = key == "name";
    if (!is_word && !is_file(std::filesystem::path(recipes_folder()) / (key + ".yaml"))) continue;
    const std::string value = p.inline_text(key, "");
    std::string rest;
    if (double budget = 0; !is_word && (value.starts_with('[') || parse_real(value, budget))) rest = ", budget_tokens: " + value;
    if (!is_word && value.starts_with('{') && value.size() > 2) rest = ", " + value.substr(1, value.size() - 2);
    for (const std::string& other : p.keys())
      if (other != key && other != "recipe") rest += fmt::format(", {}: {}", other, p.inline_text(other, ""));
    p.fail_at(key, fmt::format("'kv_policy' names its recipe by a key: write 'kv_policy: {{recipe: {}{}}}'", is_word ? value : key, rest));
  }
}

}  // namespace

Recipe read_recipe(Params& p) {
  refuse_name_as_key(p);
  const std::string name = p.text("recipe", "full", "name in policies/kv/recipes, or a recipe file");
  std::string path;
  try {
    const std::string file = p.resolve_file(name);
    path = find_spec_file(is_file(file) ? file : name, recipes_folder(), "recipe");
  } catch (const InputError& e) {
    p.fail_at("recipe", e.what());
  }
  Params file(shared_config(path), std::make_shared<Choices>(), "recipe '" + name + "'");
  Recipe recipe = read_from(p, file, std::filesystem::path(path).stem().string());
  recipe.text = p.text_of_all();
  p.reject_unread();
  return recipe;
}

Recipe load_recipe(const std::string& name, std::int32_t budget_tokens) {
  const std::string owner = "kv_policy";
  Params p = Params::from_text(
      budget_tokens > 0 ? fmt::format("{{recipe: {}, budget_tokens: {}}}", name, budget_tokens) : fmt::format("{{recipe: {}}}", name),
      owner);
  try {
    return read_recipe(p);
  } catch (const InputError& e) {
    const std::string_view what = e.what();
    if (!what.starts_with("<" + owner + ">:")) throw;
    throw InputError(std::string(what.substr(what.find(": ") + 2)));  // drops the position in generated text
  }
}

std::vector<std::string> recipe_names() { return yaml_names(recipes_folder()); }

}  // namespace kvlab
