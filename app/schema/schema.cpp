#include "app/schema/schema.h"

#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "app/runs/plan/serving_system.h"
#include "app/runs/plan/slo.h"
#include "app/runs/sweep/experiment.h"
#include "app/schema/asked_experiments.h"
#include "app/schema/key_tree.h"
#include "app/schema/mapping_texts.h"
#include "app/schema/name_kinds.h"
#include "app/schema/value_schema.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

using Json = SchemaJson;

namespace {

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
