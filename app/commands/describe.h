#pragma once

#include <string>
#include <vector>

#include "base/params.h"

namespace kvlab {

// One thing that an experiment may name.
struct Item {
  std::string kind, name, summary, source;
  std::vector<ParamDoc> parameters;                             // of policies
  std::vector<std::string> hosts = {};                          // of KV recipes and parts: where they run
  std::string confidence = {};                                  // of the same: where the description comes from
  std::vector<std::pair<std::string, std::string>> facts = {};  // further facts, in order
};

// The kinds that `kvlab list` knows: schedulers, orders, predictors, dispatchers, systems, block_caches, kv, slos, hardware, models,
// trace_formats, log_formats, export_formats, experiments, claims.
const std::vector<std::string>& list_kinds();
std::string kinds_as_json();

// Everything of one kind, by name. InputError with the nearest kind when there is none of that name. Parameters are filled in
// by describe() alone.
std::vector<Item> list_items(const std::string& kind);

// All items of that name, with parameters; a name may be of several kinds, or the path of a model. InputError with the nearest name.
std::vector<Item> describe_items(const std::string& name);

// Unit of a parameter, by the suffix of its key: "ms", "tokens", ...; "" where it has none.
std::string unit_of(const std::string& key);

// For list: a line each, wrapped at `columns` where that is not 0.
std::string items_as_text(const std::vector<Item>& items, std::size_t columns = 0);
std::string items_as_json(const std::vector<Item>& items, bool with_parameters);
std::string description_as_text(const Item& item);

}  // namespace kvlab
