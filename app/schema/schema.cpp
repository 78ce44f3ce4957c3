#include "app/schema/schema.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <set>

#include "app/runs/plan/serving_plan.h"
#include "app/runs/plan/slo.h"
#include "base/config/asked_keys.h"
#include "base/config/params.h"
#include "base/config/registry.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "policies/block_cache/block_cache.h"
#include "policies/dispatcher/dispatcher.h"
#include "policies/kv/recipe/recipe.h"
#include "policies/order/order.h"
#include "policies/predictor/predictor.h"
#include "policies/scheduler/scheduler.h"
#include "traces/arrivals.h"
#include "traces/distributions.h"

namespace kvlab {

using Json = SchemaJson;

namespace {

struct KeyNode {
  AskedKeys::Asked doc;
  bool has_default = true;  // doc.fallback holds in every experiment
  std::map<std::string, KeyNode> below;
};

inline constexpr const char* kUserNamed = "NAME";

// asked_experiments.cpp writes them in capitals.
bool is_user_named(const std::string& key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isupper(c) != 0; });
}

// Readers record a present key's type and range, but only the default text of an absent one.
int rank(const AskedKeys::Asked& a) { return a.type.empty() ? 0 : a.type == "text" ? 1 : 2; }

// A default that differs between experiments depends on other keys.
void join_docs(const AskedKeys::Asked& one, KeyNode& node) {
  if (rank(one) < rank(node.doc) || one.type.empty()) return;
  const bool is_first = rank(one) > rank(node.doc);
  node.has_default = (is_first || node.has_default) && !(rank(one) == rank(node.doc) && one.fallback != node.doc.fallback);
  if (is_first) node.doc = one;
}

void drop_defaults(KeyNode& node) {
  if (!node.has_default) node.doc.fallback.clear();
  for (auto& [key, below] : node.below) drop_defaults(below);
}

// Keys named by users become one node, kUserNamed.
KeyNode key_tree(const std::vector<AskedKeys::Asked>& asked) {
  KeyNode root;
  for (const AskedKeys::Asked& one : asked) {
    KeyNode* at = &root;
    for (std::size_t begin = 0; begin <= one.path.size();) {
      const std::size_t end = std::min(one.path.find('.', begin), one.path.size());
      const std::string key = one.path.substr(begin, end - begin);
      at = &at->below[is_user_named(key) ? kUserNamed : key];
      begin = end + 1;
    }
    join_docs(one, *at);
  }
  drop_defaults(root);
  return root;
}

// Names that a key may take, with parameters: policies of a registry, or distributions.
struct NameKind {
  std::vector<std::string> names;
  std::function<std::string(const std::string& name)> summary;       // one line, or ""
  std::function<void(const std::string& name, Params& p)> describe;  // asks for the parameters
  bool takes_none = false;                                           // also allows `none`
  long long largest_number = 0;                                      // also allows 1 to this; 0: none
};

template <class Interface>
NameKind registered_kind(bool takes_none = false) {
  const auto entry = [](const std::string& name) -> const auto& { return Registry<Interface>::table_view().at(name); };
  return {Registry<Interface>::names(), [entry](const std::string& name) { return entry(name).card.summary; },
          [entry](const std::string& name, Params& p) { entry(name).make(p); }, takes_none};
}

NameKind arrival_kind(std::vector<std::string> names) {
  return {std::move(names), [](const std::string& name) { return mapping_text("arrival." + name); },
          [](const std::string& name, Params& p) { make_arrivals(name, p, 0); }};
}

NameKind length_kind(TraceColumn column) {
  return {count_names(), [](const std::string& name) { return mapping_text("length." + name); },
          [column](const std::string& name, Params& p) { make_counts(name, p, column); }, false, kLargestCount};
}

NameKind wait_kind() {
  return {span_names(), [](const std::string& name) { return mapping_text("wait." + name); },
          [](const std::string& name, Params& p) { make_spans(name, p); }};
}

std::map<std::string, NameKind> all_kinds() {
  std::vector<std::string> generated = arrival_names();
  std::erase(generated, "trace");  // generated requests have no recorded arrivals
  return {{"scheduler", registered_kind<Scheduler>()},
          {"order", registered_kind<Order>()},
          {"predictor", registered_kind<Predictor>()},
          {"dispatcher", registered_kind<Dispatcher>()},
          {"block_cache", registered_kind<BlockCache>()},
          {"scorer", registered_kind<Scorer>(true)},
          {"allocator", registered_kind<Allocator>()},
          {"trigger", registered_kind<Trigger>()},
          {"disposal", registered_kind<Disposal>()},
          {"format", registered_kind<Format>()},
          {"selector", registered_kind<Selector>()},
          {"prefill_selector", registered_kind<PrefillSelector>()},
          {"prompt_pruner", registered_kind<PromptPruner>(true)},
          {"prompt_rewriter", registered_kind<PromptRewriter>(true)},
          {"arrivals", arrival_kind(generated)},
          {"arrivals_of_file", arrival_kind(arrival_names())},
          {"length", length_kind(TraceColumn::kPromptTokens)},
          {"output_length", length_kind(TraceColumn::kOutputTokens)},
          {"wait", wait_kind()}};
}

// "scheduler", "scorer", "length", ...
const std::map<std::string, NameKind>& name_kinds() {
  static const std::map<std::string, NameKind> kinds = all_kinds();
  return kinds;
}

// By mapping or by kind of policy, then key.
const std::map<std::string, std::map<std::string, std::string>> kNameKinds = {
    {"",
     {{"scheduler", "scheduler"},
      {"order", "order"},
      {"predictor", "predictor"},
      {"dispatcher", "dispatcher"},
      {"router", "dispatcher"},
      {"block_cache", "block_cache"},
      {"block_caches", "block_cache"}}},
    {"store", {{"eviction", "block_cache"}}},
    {"trace", {{"arrival", "arrivals_of_file"}}},
    {"trace.generate", {{"arrival", "arrivals"}, {"prompt_tokens", "length"}, {"output_tokens", "output_length"}}},
    {"trace.generate.sessions", {{"turns", "length"}, {"new_tokens", "length"}, {"think_time", "wait"}}},
    {"trace.generate.shared_prefix", {{"tokens", "length"}}},
    {"trace.generate.images", {{"per_request", "length"}}},
    {"kv_policy",
     {{"scorer", "scorer"},
      {"allocator", "allocator"},
      {"trigger", "trigger"},
      {"disposal", "disposal"},
      {"format", "format"},
      {"selector", "selector"},
      {"prefill_selector", "prefill_selector"},
      {"prompt_pruner", "prompt_pruner"},
      {"prompt_rewriter", "prompt_rewriter"}}},
    // Name another policy, by kind of the owner.
    {"arrivals", {{"think_time", "wait"}}},
    {"arrivals_of_file", {{"think_time", "wait"}}},
    {"scheduler", {{"batching", "scheduler"}}},
    {"scorer", {{"of", "scorer"}, {"prompt", "scorer"}}},
    {"allocator", {{"layers", "allocator"}}},
    {"selector", {{"of", "selector"}}},
    {"prefill_selector", {{"of", "prefill_selector"}}}};

// "": none. owner: path of the mapping in the experiment ("": top level), or the kind of the policy that has the parameter.
std::string name_kind_of(const std::string& owner, const std::string& key) {
  const auto keys = kNameKinds.find(owner);
  if (keys == kNameKinds.end()) return "";
  const auto found = keys->second.find(key);
  return found == keys->second.end() ? "" : found->second;
}

// By the last part of a text's path.
const std::map<std::string, std::vector<std::string>>& named_files() {
  static const std::map<std::string, std::vector<std::string>> names = {{"hardware", yaml_names(profiles_folder() + "/hardware")},
                                                                        {"model", yaml_names(profiles_folder() + "/models")},
                                                                        {"encoder", yaml_names(profiles_folder() + "/encoders")},
                                                                        {"recipe", recipe_names()},
                                                                        {"system", system_names()},
                                                                        {"slo", yaml_names(slo_folder())}};
  return names;
}

// Key of named_files(), or "".
std::string files_named_by(const std::string& path) {
  static const std::map<std::string, std::string> files = {{"hardware", "hardware"},
                                                           {"model", "model"},
                                                           {"images.encoder", "encoder"},
                                                           {"images.encoder.name", "encoder"},
                                                           {"kv_policy", "recipe"},
                                                           {"kv_policy.recipe", "recipe"},
                                                           {"slo", "slo"},
                                                           {"slo.preset", "slo"}};
  const auto found = files.find(path);
  return found == files.end() ? "" : found->second;
}

// "p99", "p99.9".
constexpr const char* kPercentile = R"(^p(100|[0-9]{1,2})(\.[0-9]+)?$)";
bool is_percentile(const std::string& key) {
  return key.size() > 1 && key[0] == 'p' && std::isdigit(static_cast<unsigned char>(key[1])) != 0;
}

std::string key_path(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

// Shared schemas are in $defs.
class SchemaMaker {
 public:
  explicit SchemaMaker(const KeyNode& root) : root_(root) {}

  // owner: as for name_kind_of().
  Json mapping(const std::string& owner, const std::string& path, const KeyNode& node) {
    Json properties = Json::object(), patterns = Json::object(), others = false;
    for (const auto& [key, below] : node.below) {
      // A pool inherits the experiment's keys.
      const auto of_root = path == kPool ? root_.below.find(key) : root_.below.end();
      const Json schema = of_root == root_.below.end() ? key_schema(owner, path, key, below) : key_schema("", "", key, of_root->second);
      if (key == kUserNamed)
        others = schema;
      else if (is_percentile(key))
        patterns[kPercentile] = schema;
      else
        properties[key] = schema;
    }
    Json schema = {{"type", "object"}};
    if (!properties.empty()) schema["properties"] = properties;
    if (!patterns.empty()) schema.update({{"patternProperties", patterns}, {"minProperties", 1}, {"maxProperties", 1}});
    schema["additionalProperties"] = others;
    return schema;
  }

  // With file names and environment variables.
  [[nodiscard]] Json defs() const {
    Json all = {
        {"variable", {{"type", "string"}, {"pattern", R"(\$\{[A-Za-z_])"}, {"description", "the value of an environment variable"}}}};
    for (const auto& [files, names] : named_files()) all["file." + files] = name_or_path(names);
    for (const auto& [name, def] : defs_) all[name] = def;
    return all;
  }

 private:
  Json key_schema(const std::string& owner, const std::string& path, const std::string& key, const KeyNode& node) {
    const std::string here = key_path(path, key);
    Json schema = swept_value(owner, here, key, node);
    const std::string documented = description_of(node.doc, key);
    const std::string description = documented.empty() ? mapping_text(here) : documented;
    if (!description.empty()) schema["description"] = description;
    return schema;
  }

  Json swept_value(const std::string& owner, const std::string& path, const std::string& key, const KeyNode& node) {
    if (const std::string kind = name_kind_of(owner, key); !kind.empty()) return ref_to(kind_def(kind));
    const bool is_named = node.doc.type.starts_with("name");
    if (is_named && !node.below.empty()) {
      defs_["one." + path] = named_schema(alternatives(path, node));
      return swept(ref_to("one." + path));
    }
    const std::string files = files_named_by(path);
    const Json value = files.empty() ? value_schema(node.doc) : ref_to("file." + files);
    if (node.below.empty()) return value.is_null() ? Json::object() : swept(value);
    return swept(any_of({value, ref_to(mapping_def(path, node)), {{"type", "null"}}}));
  }

  // Names with or without parameters.
  Json alternatives(const std::string& path, const KeyNode& node) {
    Json all = Json::object();
    for (const auto& [name, below] : node.below) {
      const std::string here = key_path(path, name), own = mapping_text(here);
      all[name] = any_of({mapping(here, here, below), {{"type", "null"}}});
      const std::string description = own.empty() ? mapping_text(key_path(path, kUserNamed)) : own;
      if (!description.empty()) all[name]["description"] = description;
    }
    return all;
  }

  std::string mapping_def(const std::string& path, const KeyNode& node) {
    const std::string def = "keys." + path;
    if (!defs_.contains(def)) defs_[def] = mapping(path, path, node);
    return def;
  }

  // Registers the name first: parameters may name policies of the same kind.
  std::string kind_def(const std::string& kind) {
    if (defs_.contains(kind)) return kind;
    defs_[kind] = nullptr;
    const NameKind& names = name_kinds().at(kind);
    Json by_name = Json::object();
    for (const std::string& name : names.names) by_name[name] = policy(kind, names, name);
    const Json none = names.takes_none ? Json{{"const", "none"}} : Json();
    const Json number = names.largest_number > 0 ? Json{{"type", "integer"}, {"minimum", 1}, {"maximum", names.largest_number}} : Json();
    defs_["one." + kind] = any_of({named_schema(by_name), none, number});
    defs_[kind] = swept(ref_to("one." + kind));
    return kind;
  }

  Json policy(const std::string& kind, const NameKind& names, const std::string& name) {
    std::vector<ParamDoc> docs;
    const std::string owner = kind + " '" + name + "'";
    const AskedKeys asked("<" + owner);
    try {
      Params p = Params::describing(owner, docs);
      names.describe(name, p);
    } catch (const InputError&) {  // defaults refused in combination; keys asked for until then count
    }
    const KeyNode tree = key_tree(asked.all());
    const Json own = mapping(kind, key_path(kind, name), tree);
    // A mapping of user-chosen names may also be a list (base/config/config_file.cpp).
    const bool is_by_name = tree.below.size() == 1 && tree.below.contains(kUserNamed);
    const Json list = is_by_name ? Json{{"type", "array"}, {"items", own["additionalProperties"]}, {"minItems", 1}} : Json();
    Json schema = any_of({own, list, {{"type", "null"}}});
    if (const std::string summary = names.summary(name); !summary.empty()) schema["description"] = summary;
    return schema;
  }

  static constexpr const char* kPool = "pools.NAME";

  const KeyNode& root_;
  std::map<std::string, Json> defs_;
};

// Every system takes the same parts, with the experiment's schemas.
Json system_schema(const Json& experiment, const Json& pool) {
  const auto some_of = [](const Json& properties, const std::set<std::string>& keys) {
    Json some = Json::object();
    for (const std::string& key : keys) some[key] = properties.at(key);
    return Json{{"type", "object"}, {"properties", some}, {"additionalProperties", false}};
  };
  const Json serving = some_of(pool, system_pool_keys()), encoding = some_of(pool, system_encode_pool_keys());
  Json roles = Json::object();
  for (const char* const role : {"prefill", "decode", "both"}) roles[role] = serving;
  roles["encode"] = encoding;
  for (const auto& role : roles.items()) role.value()["description"] = "parts of pools with the role '" + role.key() + "'";
  Json parts = some_of(experiment, system_keys());
  parts["properties"]["pools"] = {
      {"description", "parts of pools, by their role"}, {"type", "object"}, {"properties", roles}, {"additionalProperties", false}};
  return swept(any_of({ref_to("file.system"),
                       {{"type", "object"},
                        {"propertyNames", ref_to("file.system")},
                        {"additionalProperties", any_of({parts, {{"type", "null"}}})},
                        {"minProperties", 1},
                        {"maxProperties", 1}}}));
}

}  // namespace

SchemaJson experiment_schema_json() {
  KeyNode tree = key_tree(asked_of_experiments());
  for (auto& [key, node] : tree.below["kv_policy"].below)
    if (key != "recipe") node.doc.fallback.clear();                // the recipe has the default
  tree.below["pools"].below[kUserNamed].below.erase("kv_policy");  // only asked for to refuse it
  SchemaMaker maker(tree);
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "KVLab experiment"},
                 {"description", "An experiment of KVLab: docs/experiments.md. Any value may be a list, which is an axis of the sweep."}};
  schema.update(maker.mapping("", "", tree));
  schema["$defs"] = maker.defs();
  Json& system = schema["properties"]["system"];
  const Json description = system.at("description");
  system = system_schema(schema["properties"], schema["$defs"]["keys.pools.NAME"]["properties"]);
  system["description"] = description;
  return schema;
}

std::string experiment_schema() { return experiment_schema_json().dump(1) + "\n"; }

}  // namespace kvlab
