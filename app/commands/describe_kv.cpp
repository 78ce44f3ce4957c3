#include <fmt/format.h>

#include <map>
#include <set>

#include "app/commands/describe.h"
#include "base/text.h"
#include "policies/kv/policy/policy.h"
#include "sim/kv_cost/shape_run.h"

namespace kvlab {

namespace {

// Llama-3.1-8B and a prompt of 8,192 tokens.
constexpr ModelShape kShape{32, 32, 8, 128, 4096, 2, 5e5};
constexpr std::int32_t kPromptTokens = 8192;

std::string observes(const Needs& n) {
  std::vector<std::string> words;
  const auto add = [&](bool needed, const std::string& word) {
    if (needed) words.push_back(word);
  };
  add(n.step_queries, n.prompt_queries ? "each step's queries, of all of the prompt" : "each step's queries");
  add(n.window_queries > 0, fmt::format("the prompt's last {} queries", n.window_queries));
  add(n.pre_rope_queries, "the prompt's queries before RoPE");
  add(n.pre_rope_keys, "keys before RoPE");
  add(n.output_weights, "the output projection");
  add(n.hidden, "the attention layer's input");
  add(n.guessed_query, "the input of the layer before, and W_q");
  add(n.token_ids, "token ids");
  add(n.question, "where the question begins");
  add(n.future_queries, "future queries");
  add(!n.pass.empty(), "the extra forward pass '" + n.pass + "'");
  return words.empty() ? "keys and values" : "keys, values, " + fmt::format("{}", fmt::join(words, ", "));
}

std::string found_prefixes(const KvPolicy& policy) {
  if (policy.recipe().prefix_reuse == Recipe::PrefixReuse::kNone) return "nothing, and leaves none";
  if (!policy.shares_prefixes()) return "nothing, since it observes more of every prompt token than its K and V";
  const std::int32_t fresh = policy.fresh_tokens();
  return fresh > 1 ? fmt::format("all but the prompt's last {} tokens, which it observes", fresh) : "all but the prompt's last token";
}

std::string cost_of(const std::vector<SummedCall>& calls) {
  std::int64_t bytes = 0, flops = 0, launches = 0;
  std::vector<std::string> names;
  for (const SummedCall& c : calls) {
    if (c.call.op == "attend") continue;
    bytes += c.call.bytes, flops += c.call.flops, launches += c.launches;
    names.emplace_back(c.call.op);
  }
  if (names.empty()) return "nothing";
  return fmt::format("{:.1f} MB, {:.2f} GFLOP, {} calls: {}", static_cast<double>(bytes) * 1e-6, static_cast<double>(flops) * 1e-9,
                     launches, fmt::join(names, ", "));
}

std::string pairs_of(const std::vector<OpCall>& calls) {
  double flops = 0;
  std::string_view attention = "sparse_prefill";
  for (const OpCall& c : calls) {
    if (c.op == "chosen_prefill") attention = c.op;
    if (c.op == attention || c.op == "delta_rows") flops += static_cast<double>(c.flops);
  }
  const double causal = 2.0 * kPromptTokens * (kPromptTokens + 1.0) * kShape.head_dim * kShape.q_heads * kShape.num_layers;
  return fmt::format("{:.1f} % of the query-key pairs, as costs assume ({}, which takes the place of attention)", 100 * flops / causal,
                     attention);
}

std::string computed_share(const KvPolicy& policy) {
  std::int64_t tokens = 0;
  for (std::int32_t l = 0; l < kShape.num_layers; ++l) tokens += policy.step_tokens({0, 0, kPromptTokens, kPromptTokens, -1}, l);
  return fmt::format("{:.1f} % of a prompt of 8,192 tokens, mean over layers",
                     100 * static_cast<double>(tokens) / (double{kPromptTokens} * kShape.num_layers));
}

// "": none.
std::string eviction_of(const Recipe& r) {
  if (!r.make_scorer || !r.make_trigger()->in_decode() || !r.make_disposal()->shrinks()) return "";
  const std::string why = why_compacts(r);
  return why.empty() ? "in place: the last token of a row takes the place of one that goes" : "by moving all that stay, since " + why;
}

void add_costs(const Recipe& recipe, Item& item) {
  try {
    ExpectedRun run(recipe, kShape);
    ShapeRun::Seq seq{0, kPromptTokens, kPromptTokens, {0}, {kPromptTokens - 64, 64, {{64, kPromptTokens, 0, kPromptTokens}}}};
    const ShapeRun::Result prompt = run.step(seq);
    seq.seen_tokens = kPromptTokens, seq.new_tokens = 1, seq.held = prompt.held;
    const ShapeRun::Result decode = run.step(seq);
    if (const std::string_view reason = run.shapes().policy().needs().cpu_only; !reason.empty())
      item.facts.emplace_back("backend cuda", fmt::format("no: it {}", reason));
    if (recipe.prunes()) item.facts.emplace_back("computes in prefill", computed_share(run.shapes().policy()));
    if (const PromptRewriter* const rewriter = run.shapes().policy().rewriter()) {
      const PromptRewriter::Scan scan = rewriter->scan(kShape);
      item.facts.emplace_back("scans longer prompts", fmt::format("by the first {} of {} layers, in chunks of {} tokens, with {}",
                                                                  scan.layers, kShape.num_layers, scan.chunk_tokens, scan.policy));
    }
    item.facts.emplace_back("adds to an 8,192-token prompt", cost_of(summed(prompt.calls)));
    if (recipe.selects_in_prompts()) item.facts.emplace_back("computes of its attention", pairs_of(prompt.calls));
    item.facts.emplace_back("adds to a decode step", cost_of(summed(decode.calls)));
    if (const std::string way = eviction_of(recipe); !way.empty()) item.facts.emplace_back("evicts in decode", way);
    const double full = 2.0 * kPromptTokens * kShape.num_layers * kShape.kv_heads * kShape.head_dim * kShape.kv_bytes;
    const char* const bound = recipe.make_allocator()->depends_on_data() ? "at most " : "";  // data may leave less
    item.facts.emplace_back(
        "holds then", fmt::format("{}{:.1f} % of the KV bytes on the GPU, {:.1f} % in host memory", bound,
                                  100 * static_cast<double>(prompt.after.gpu) / full, 100 * static_cast<double>(prompt.after.host) / full));
    item.facts.emplace_back("attends in decode", fmt::format("{}{:.0f} tokens per layer and KV head", bound, decode.attended_tokens));
  } catch (const InputError& e) {
    item.facts.emplace_back("costs", e.what());
  }
}

std::string budget_text(const Recipe& r) {
  if (!r.has_budget) return "none of its own";
  return r.budget.tokens > 0 ? fmt::format("{} tokens per layer and KV head", r.budget.tokens)
                             : fmt::format("{} of the prompt, {} of {} tokens", r.budget.frac, r.budget.of(kPromptTokens), kPromptTokens);
}

Item recipe_item(const std::string& name, const Recipe& r) {
  Item item{"recipe", name, r.summary, r.paper, {}};
  item.hosts = r.hosts;
  item.confidence = r.confidence;
  for (const auto& [kind, part] : r.parts) item.facts.emplace_back(kind, part);
  item.facts.emplace_back("budget", budget_text(r));
  item.facts.emplace_back("positions", name_of(Recipe::kPositions, r.positions));
  item.facts.emplace_back("in serving", fmt::format("prefix_reuse {}, on_preempt {}", name_of(Recipe::kPrefixReuse, r.prefix_reuse),
                                                    name_of(Recipe::kOnPreempt, r.on_preempt)));
  if (!r.weights_from.empty()) item.facts.emplace_back("weights", r.weights_from);
  item.facts.emplace_back("hosts", fmt::format("{}", fmt::join(r.hosts, ", ")));
  item.facts.emplace_back("described", r.confidence);
  if (!r.claims.empty()) item.facts.emplace_back("claims", r.claims);
  if (!r.notes.empty()) item.facts.emplace_back("notes", r.notes);
  return item;
}

// By (kind, name) of a part.
using Uses = std::map<std::pair<std::string, std::string>, std::vector<const Item*>>;

// are_compiled: built in, else added at run time.
template <class Part>
void add_parts(const std::string& kind, bool are_compiled, const Uses& uses, std::vector<Item>& items) {
  for (const auto& [name, entry] : Registry<Part>::table_view()) {
    if (entry.is_compiled != are_compiled) continue;
    Item item{kind, name, entry.card.summary, entry.card.source, {}};
    std::set<std::string> confidence, hosts;
    std::vector<std::string> recipes;
    if (const auto at = uses.find({kind, name}); at != uses.end()) {
      for (const Item* r : at->second) {
        confidence.insert(r->confidence);
        hosts.insert(r->hosts.begin(), r->hosts.end());
        recipes.push_back(r->name);
      }
    }
    item.hosts.assign(hosts.begin(), hosts.end());
    item.confidence = fmt::format("{}", fmt::join(confidence, ", "));
    if (!recipes.empty()) item.facts.emplace_back("in recipes", fmt::format("{}", fmt::join(recipes, ", ")));
    add_parameters(entry, item);
    items.push_back(std::move(item));
  }
}

void add_all_parts(bool are_compiled, const Uses& uses, std::vector<Item>& items) {
  add_parts<Scorer>("scorer", are_compiled, uses, items);
  add_parts<Allocator>("allocator", are_compiled, uses, items);
  add_parts<Trigger>("trigger", are_compiled, uses, items);
  add_parts<Disposal>("disposal", are_compiled, uses, items);
  add_parts<Format>("format", are_compiled, uses, items);
  add_parts<Selector>("selector", are_compiled, uses, items);
  add_parts<PrefillSelector>("prefill_selector", are_compiled, uses, items);
  add_parts<PromptPruner>("prompt_pruner", are_compiled, uses, items);
  add_parts<PromptRewriter>("prompt_rewriter", are_compiled, uses, items);
}

std::vector<Item> read_kv_items() {
  std::vector<Item> recipes;
  std::vector<std::vector<std::pair<std::string, std::string>>> parts;
  for (const std::string& name : recipe_names()) {
    const Recipe recipe = load_recipe(name);
    recipes.push_back(recipe_item(name, recipe));
    parts.push_back(recipe.part_names());
  }
  Uses uses;
  for (std::size_t i = 0; i < recipes.size(); ++i)
    for (const auto& part : parts[i]) uses[part].push_back(&recipes[i]);
  std::vector<Item> items = recipes;
  add_all_parts(true, uses, items);
  return items;
}

}  // namespace

const std::set<std::string>& kv_kinds() {
  static const std::set<std::string> kinds{"recipe", "scorer",   "allocator",        "trigger",       "disposal",
                                           "format", "selector", "prefill_selector", "prompt_pruner", "prompt_rewriter"};
  return kinds;
}

void add_kv_details(Item& item) {
  if (item.kind != "recipe") return;
  const Recipe recipe = load_recipe(item.name);
  try {
    const KvPolicy policy(recipe, kShape);
    item.facts.emplace_back("observes", observes(policy.needs()));
    if (recipe.runs_in("cost")) item.facts.emplace_back("finds of a cached prefix", found_prefixes(policy));
  } catch (const InputError& e) {
    item.facts.emplace_back("observes", e.what());
  }
  if (recipe.runs_in("cost")) add_costs(recipe, item);
}

std::vector<Item> kv_items() {
  static const std::vector<Item> built_in = read_kv_items();
  std::vector<Item> items = built_in;
  add_all_parts(false, {}, items);
  return items;
}

}  // namespace kvlab
