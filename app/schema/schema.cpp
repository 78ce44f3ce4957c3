#include "app/schema/schema.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "app/commands/describe.h"
#include "app/runs/slo.h"
#include "app/schema/asked_experiments.h"
#include "base/registry.h"
#include "base/spec_file.h"
#include "base/text.h"
#include "policies/block_cache/block_cache.h"
#include "policies/dispatcher/dispatcher.h"
#include "policies/kv/recipe.h"
#include "policies/order/order.h"
#include "policies/predictor/predictor.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

using Json = nlohmann::ordered_json;

namespace {

// A key with its documentation, and the keys below it.
struct KeyNode {
  AskedKeys::Asked doc;
  std::map<std::string, KeyNode> below;
};

KeyNode key_tree(const std::vector<AskedKeys::Asked>& asked) {
  KeyNode root;
  for (const AskedKeys::Asked& one : asked) {
    KeyNode* at = &root;
    for (std::size_t begin = 0; begin <= one.path.size();) {
      const std::size_t end = std::min(one.path.find('.', begin), one.path.size());
      at = &at->below[one.path.substr(begin, end - begin)];
      begin = end + 1;
    }
    if (!one.type.empty() && at->doc.type.empty()) at->doc = one;
  }
  return root;
}

// Names that users choose are in capitals where keys are collected.
bool is_free_name(const std::string& key) {
  return std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isupper(c) != 0; });
}

// A list in the place of the value is an axis of a sweep, and ${NAME} an environment variable.
Json swept(const Json& value) {
  return {{"anyOf", Json::array({value, {{"type", "array"}, {"items", value}, {"minItems", 1}}, {{"$ref", "#/$defs/variable"}}})}};
}

// "[0, 1]" or "[1, ...]".
void add_range(const std::string& range, Json& schema) {
  const std::size_t comma = range.find(", ");
  if (!range.starts_with('[') || comma == std::string::npos) return;
  double low = 0, high = 0;
  if (parse_real(range.substr(1, comma - 1), low)) schema["minimum"] = low;
  if (parse_real(range.substr(comma + 2, range.size() - comma - 3), high)) schema["maximum"] = high;
}

Json list_schema(const std::string& type, const std::string& range) {
  Json items = {{"type", type}};
  add_range(range, items);
  return {{"type", "array"}, {"items", items}};
}

// The value of a key by its documentation; true: any.
Json value_schema(const AskedKeys::Asked& doc) {
  if (doc.type == "integer" || doc.type == "real") {
    Json schema = {{"type", doc.type == "real" ? "number" : "integer"}};
    add_range(doc.range, schema);
    return schema;
  }
  if (doc.type == "flag") return {{"type", "boolean"}};
  if (doc.type == "text or mapping") return {{"type", "string"}};
  if (doc.type == "text") return {{"type", Json::array({"string", "number"})}};
  if (doc.type == "list of reals") return list_schema("number", doc.range);
  if (doc.type == "list of words") return list_schema("string", "");
  if (doc.type != "choice") return true;
  Json names = Json::array();
  for (std::size_t begin = 0; begin < doc.range.size();) {
    const std::size_t end = std::min(doc.range.find(", ", begin), doc.range.size());
    const std::string name = doc.range.substr(begin, end - begin);
    double number = 0;
    names.push_back(parse_real(name, number) ? Json(number) : Json(name));
    begin = end + 2;
  }
  return {{"enum", names}};
}

void describe(const AskedKeys::Asked& doc, const std::string& key, Json& schema) {
  if (!schema.is_object() || doc.meaning.empty()) return;
  const std::string unit = unit_of(key);
  schema["description"] =
      doc.meaning + (unit.empty() ? "" : " [" + unit + "]") + (doc.fallback.empty() ? "" : "; default: " + doc.fallback);
}

Json mapping_schema(const std::map<std::string, KeyNode>& keys);

// The schema of `key` with what is below it.
Json key_schema(const std::string& key, const KeyNode& node) {
  Json schema = value_schema(node.doc);
  const bool is_named = node.doc.type.starts_with("name");  // a policy of a kind that has no list: any name, with any parameters
  if (!is_named && !node.below.empty()) {
    const Json mapping = mapping_schema(node.below);
    schema = node.doc.type.empty() ? mapping : Json{{"anyOf", Json::array({schema, mapping})}};
  }
  if (schema.is_boolean()) schema = Json::object();
  if (!schema.empty()) schema = swept(schema);
  describe(node.doc, key, schema);
  return schema;
}

// The schema of the value of one of these keys is not that of its readers: names are known elsewhere.
Json special_schema(const std::string& key);

Json mapping_schema(const std::map<std::string, KeyNode>& keys) {
  Json properties = Json::object(), others = false;
  for (const auto& [key, node] : keys) {
    Json schema = special_schema(key);
    if (schema.is_null()) schema = key_schema(key, node);
    if (!is_free_name(key)) {
      properties[key] = schema;
      continue;
    }
    if (others.is_boolean()) others = {{"anyOf", Json::array()}};
    others["anyOf"].push_back(schema);
  }
  Json schema = {{"type", "object"}};
  if (!properties.empty()) schema["properties"] = properties;
  schema["additionalProperties"] = others;
  return schema;
}

// `NAME` or `{NAME: {parameters}}`, of the policies of a registry.
template <class Interface>
Json policy_schema(const std::string& kind) {
  Json names = Json::array(), by_name = Json::object();
  for (const auto& [name, entry] : Registry<Interface>::table_view()) {
    std::vector<ParamDoc> docs;
    const std::string owner = kind + " '" + name + "'";
    const AskedKeys asked("<" + owner);
    try {
      Params p = Params::describing(owner, docs);
      entry.make(p);
    } catch (const InputError&) {  // a combination of defaults that it refuses; what it asked for until then counts
    }
    names.push_back(name);
    const KeyNode tree = key_tree(asked.all());
    by_name[name] = {{"description", entry.card.summary}, {"anyOf", Json::array({mapping_schema(tree.below), {{"type", "null"}}})}};
  }
  const Json one = {
      {"type", "object"}, {"properties", by_name}, {"additionalProperties", false}, {"minProperties", 1}, {"maxProperties", 1}};
  return swept({{"anyOf", Json::array({{{"enum", names}}, one})}});
}

// A name of the list, or a path.
Json name_or_file(const std::vector<std::string>& names) {
  return {{"anyOf", Json::array({{{"enum", names}}, {{"type", "string"}, {"pattern", "[./$]"}}})}};
}

Json recipe_schema() { return name_or_file(recipe_names()); }

// Recipes may have any part in place of their own: parts are read with the recipe's file.
Json kv_policy_schema() {
  const Json recipe = recipe_schema();
  return swept({{"anyOf", Json::array({recipe, {{"type", "object"}, {"properties", {{"recipe", swept(recipe)}}}}})}});
}

std::map<std::string, Json> shared_schemas() {
  std::map<std::string, Json> all;
  all["scheduler"] = policy_schema<Scheduler>("scheduler");
  all["order"] = policy_schema<Order>("order");
  all["predictor"] = policy_schema<Predictor>("predictor");
  all["dispatcher"] = policy_schema<Dispatcher>("dispatcher");
  all["block_cache"] = policy_schema<BlockCache>("block cache");
  all["kv_policy"] = kv_policy_schema();
  all["system"] = swept(name_or_file(yaml_names(systems_folder())));
  all["hardware"] = swept(name_or_file(yaml_names(profiles_folder() + "/hardware")));
  Json models = name_or_file(yaml_names(profiles_folder() + "/models"));
  all["model"] = swept(models);
  all["slo_name"] = name_or_file(yaml_names(slo_folder()));
  return all;
}

Json special_schema(const std::string& key) {
  static const std::set<std::string> kShared = {"scheduler", "order",  "predictor", "dispatcher", "block_cache",
                                                "kv_policy", "system", "hardware",  "model"};
  if (kShared.contains(key)) return {{"$ref", "#/$defs/" + key}};
  if (key == "router") return {{"$ref", "#/$defs/dispatcher"}};
  if (key == "block_caches") return {{"$ref", "#/$defs/block_cache"}};
  return nullptr;
}

}  // namespace

std::string experiment_schema() {
  KeyNode tree = key_tree(asked_of_experiments());
  tree.below["slo"].doc = {};  // its text is one of the names below
  const Json root = mapping_schema(tree.below);
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "KVLab experiment"},
                 {"description", "An experiment of KVLab: docs/experiments.md. Any value may be a list, which is an axis of the sweep."}};
  schema.update(root);
  Json& slo = schema["properties"]["slo"];
  slo = {{"anyOf", Json::array({swept({{"$ref", "#/$defs/slo_name"}}), slo})}};
  schema["$defs"]["variable"] = {
      {"type", "string"}, {"pattern", "\\$\\{[A-Za-z_]"}, {"description", "the value of an environment variable"}};
  for (auto& [name, shared] : shared_schemas()) schema["$defs"][name] = std::move(shared);
  return schema.dump(1) + "\n";
}

}  // namespace kvlab
