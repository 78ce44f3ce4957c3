#pragma once

#include <set>
#include <string>
#include <vector>

#include "app/commands/describe.h"

namespace kvlab {

const std::set<std::string>& kv_kinds();
// Recipes and parts (recipe, scorer, allocator, trigger, disposal, format, selector), then parts added at run time.
std::vector<Item> kv_items();
// A recipe's needs and costs.
void add_kv_details(Item& item);

}  // namespace kvlab
