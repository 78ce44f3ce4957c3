#pragma once

#include <set>
#include <string>
#include <vector>

#include "app/describe.h"

namespace kvlab {

const std::set<std::string>& kv_kinds();
// Recipes and the parts they are made of, read once; kinds are recipe, scorer, allocator, trigger, disposal, format, selector.
const std::vector<Item>& kv_items();
// What only describe() shows of a recipe: what it observes, and what it costs at stated sizes.
void add_kv_details(Item& item);

}  // namespace kvlab
