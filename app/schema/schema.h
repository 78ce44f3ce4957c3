#pragma once

#include <string>

#include "app/schema/value_schema.h"

namespace kvlab {

// JSON Schema (draft 2020-12) from the keys that readers ask for and names in registries and folders. Any value may be a list, any number
// "${NAME}".
SchemaJson experiment_schema_json();
std::string experiment_schema();

}  // namespace kvlab
