#pragma once

#include <string>
#include <vector>

#include "app/commands/describe.h"

namespace kvlab {

// only: "": all. An unreadable file becomes an item with the reason.
std::vector<Item> model_items(const std::string& folder, const std::string& only);

// A file, or a folder with config.json.
bool is_model_path(const std::string& name);
// Throws InputError as for 'model:'.
Item model_at_path(const std::string& path);

}  // namespace kvlab
