#pragma once

#include <string>
#include <vector>

#include "app/commands/describe.h"

namespace kvlab {

// Models of a folder, or only one; "": all. An unreadable file becomes an item with the reason.
std::vector<Item> model_items(const std::string& folder, const std::string& only);

// True for a model's file, or a folder with config.json, as in 'model:'.
bool is_model_path(const std::string& name);
// Weights, KV and layers by kind. Throws InputError as for 'model:'.
Item model_at_path(const std::string& path);

}  // namespace kvlab
