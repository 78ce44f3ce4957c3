#pragma once

#include <set>
#include <string>
#include <vector>

#include "app/commands/describe.h"

namespace kvlab {

const std::set<std::string>& kv_kinds();
// Recipes and the parts they are made of, read once, then parts that were added while the program runs; kinds are recipe, scorer,
// allocator, trigger, disposal, format, selector.
std::vector<Item> kv_items();
// Adds the facts on a recipe that only describe() shows: its needs, and its costs at stated sizes.
void add_kv_details(Item& item);

}  // namespace kvlab
