#pragma once

#include <string>
#include <vector>

#include "app/commands/describe.h"

namespace kvlab {

// The models of a folder, or the one called `only`; "": all. A file that cannot be read is an item with the reason.
std::vector<Item> model_items(const std::string& folder, const std::string& only);

// `name` is a model's file, or a folder with config.json, as 'model:' takes it.
bool is_model_path(const std::string& name);
// Weights, KV and layers by kind of that model. InputError where 'model:' refuses it.
Item model_at_path(const std::string& path);

}  // namespace kvlab
