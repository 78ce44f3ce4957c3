#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <map>
#include <set>

#include "app/commands/describe.h"
#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "base/hugging_face.h"
#include "base/text.h"
#include "policies/kv/policy/policy.h"
#include "sim/cost/make_cost_model.h"
#include "sim/cost/model_spec.h"
#include "sim/kv_cost/shape_run.h"

namespace kvlab {

namespace fs = std::filesystem;

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

std::string format_text(const WeightFormat& format) {
  std::string text = fmt::format("{:.4g} bits", format.bits);
  for (std::size_t t = 0; t < kNumDtypes; ++t)
    if (format.share[t] > 0)
      text += fmt::format(", {}computed in {}", format.share[t] < 1 ? fmt::format("{:.0f} % ", 100 * format.share[t]) : "",
                          dtype_name(static_cast<Dtype>(t)));
  return text;
}

std::string attention_text(const ModelSpec& m, const AttentionClass& layers) {
  switch (layers.kind) {
    case AttentionKind::kWindow:
      return fmt::format("attention to {} tokens", layers.window);
    case AttentionKind::kLatent:
      return fmt::format("latent attention, {} + {} values per token", m.latent.kv_rank, m.latent.rope);
    case AttentionKind::kLinear:
      return fmt::format("linear attention, a state of {} values", m.linear.state_values());
    default:
      return "full attention";
  }
}

std::string layers_text(const ModelSpec& m) {
  const std::int64_t routed = m.num_expert_layers(), dense = m.layers - routed;
  std::string text;
  for (const AttentionClass& layers : attention_classes(m))
    text += fmt::format("{}{} with {}", text.empty() ? "" : ", ", layers.count, attention_text(m, layers));
  if (dense > 0) text += fmt::format("; {} with a dense MLP of {}", dense, m.intermediate);
  if (routed > 0)
    text += fmt::format("; {} with {} experts of {}, {} per token", routed, m.experts, m.moe_intermediate, m.experts_per_token);
  if (routed > 0 && m.shared_intermediate > 0) text += fmt::format(", and a shared one of {}", m.shared_intermediate);
  return text;
}

// If its bytes are not linear in its length.
void add_long_sequence(const ModelSpec& m, Item& item) {
  constexpr std::int64_t kTokens = 32'768, kBlock = 16;
  const KvLayout layout = kv_layout(m, Parallel{}, kBlock);
  if (layout.is_one_group()) return;
  const auto bytes = static_cast<double>(sequence_bytes(layout, kBlock, kTokens - 1, 1));
  item.facts.emplace_back("KV groups", fmt::format("{} of {} layers: {} full, {} with a window, {} with a state", layout.groups(),
                                                   layout.group_layers, layout.full_groups, layout.window_groups, layout.state_groups));
  item.facts.emplace_back("KV of 32768 tokens", fmt::format("{:.3f} GB, of {:.3f} without windows and states", bytes * 1e-9,
                                                            static_cast<double>(kTokens * kv_bytes_per_token(m)) * 1e-9));
}

void add_facts(const ModelSpec& m, Item& item) {
  const auto weights = static_cast<double>(weight_bytes(m));
  std::string parameters = fmt::format("{:.3f} B", static_cast<double>(total_parameters(m)) * 1e-9);
  if (m.is_moe()) parameters += fmt::format(", {:.3f} B of them used by a token", static_cast<double>(active_parameters(m)) * 1e-9);
  item.facts.emplace_back("parameters", parameters);
  item.facts.emplace_back("weights", fmt::format("{:.2f} GB ({:.2f} GiB){}", weights * 1e-9, weights / (1 << 30),
                                                 m.quantization.empty() ? "" : ", quantized by " + m.quantization));
  item.facts.emplace_back("KV bytes per token", fmt::format("{} in {}", kv_bytes_per_token(m), dtype_name(m.kv_dtype)));
  add_long_sequence(m, item);
  item.facts.emplace_back("layers", layers_text(m));
  item.facts.emplace_back("longest text", m.max_tokens > 0 ? fmt::format("{} tokens", m.max_tokens) : "not known");
  if (!m.quantization.empty()) {
    item.facts.emplace_back("weights of attention", format_text(m.attention_weights));
    if (m.num_expert_layers() < m.layers || m.shared_intermediate > 0)
      item.facts.emplace_back("weights of MLPs", format_text(m.mlp_weights));
    if (m.is_moe()) item.facts.emplace_back("weights of experts", format_text(m.expert_weights));
  }
  for (const std::string& remark : m.remarks) item.facts.emplace_back("remark", remark);
}

Item item_of(const ModelSpec& m, const std::string& name) {
  Item item{
      "models",
      name,
      fmt::format("{}: {:.1f} B parameters, {} layers, {} query and {} KV heads of {}, {} KV bytes per token", m.family,
                  static_cast<double>(total_parameters(m)) * 1e-9, m.layers, m.q_heads, m.kv_heads, m.head_dim, kv_bytes_per_token(m)),
      m.file,
      {}};
  add_facts(m, item);
  return item;
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

std::vector<Item> model_items(const std::string& folder) {
  std::vector<Item> items;
  for (const fs::path& file : yaml_files(folder)) {
    const std::string name = file.stem().string();
    try {
      items.push_back(item_of(load_model_spec(file.string(), folder), name));
    } catch (const InputError& e) {
      items.push_back({"models", name, std::string("cannot be used: ") + e.what(), file.string(), {}});
    }
  }
  return items;
}

bool is_model_path(const std::string& name) {
  std::error_code error;
  const fs::path path(name);
  if (path.extension() == ".json" || is_hub_id(name)) return true;
  if (fs::is_directory(path, error)) return fs::exists(path / "config.json", error);
  if (!fs::is_regular_file(path, error) || (path.extension() != ".yaml" && path.extension() != ".yml")) return false;
  const YAML::Node root = load_config(name)->root;
  return root["model_type"].IsDefined() || root["hidden_size"].IsDefined();
}

Item model_at_path(const std::string& path) {
  const ModelSpec m = load_model_spec(path, profiles_folder() + "/models");
  return item_of(m, m.name);
}

}  // namespace kvlab
