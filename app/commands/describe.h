#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "base/error.h"

namespace kvlab {

struct Item {
  std::string kind, name, summary, source;
  std::vector<ParamDoc> parameters;
  std::vector<std::string> hosts = {};  // of KV recipes and parts
  std::string confidence = {};          // of KV recipes and parts: origin of the description
  std::vector<std::pair<std::string, std::string>> facts = {};
};

// Adds the parameters that `entry` of a registry asks for. Of defaults that are refused in combination, those until then.
template <class Entry>
void add_parameters(const Entry& entry, Item& item) {
  Params p = Params::describing(item.kind + " '" + item.name + "'", item.parameters);
  try {
    entry.make(p);
  } catch (const InputError&) {
  }
}

// schedulers, orders, predictors, dispatchers, systems, block_caches, kv, slos, hardware, models, trace_formats, log_formats,
// export_formats, experiments, claims.
const std::vector<std::string>& list_kinds();
std::string kinds_as_json();

// By name, without parameters. Throws InputError for an unknown kind.
std::vector<Item> list_items(const std::string& kind);

// All kinds, or a model's path, with parameters. Throws InputError for an unknown name.
std::vector<Item> describe_items(const std::string& name);

// By the key's suffix: "ms", "tokens", ..., or "".
std::string unit_of(const std::string& key);

// One line per item, wrapped at `columns` if nonzero.
std::string items_as_text(const std::vector<Item>& items, std::size_t columns = 0);
std::string items_as_json(const std::vector<Item>& items, bool with_parameters);
std::string description_as_text(const Item& item);

const std::set<std::string>& kv_kinds();
// Recipes and parts (recipe, scorer, allocator, trigger, disposal, format, selector), then parts added at run time.
std::vector<Item> kv_items();
// A recipe's needs and costs.
void add_kv_details(Item& item);

// An unreadable file becomes an item with the reason.
std::vector<Item> model_items(const std::string& folder);

// A file, or a folder with config.json.
bool is_model_path(const std::string& name);
// Throws InputError as for 'model:'.
Item model_at_path(const std::string& path);

}  // namespace kvlab
