#pragma once

#include <string>

#include "app/schema/value_schema.h"

namespace kvlab {

// The JSON Schema (draft 2020-12) of experiment files. Its keys are those that the readers of experiments ask for, with their types, ranges
// and meanings; names of policies, systems and SLOs come from the registries and folders. A list may replace every value, as
// in an experiment, and "${NAME}" in that of a number.
SchemaJson experiment_schema_json();
std::string experiment_schema();  // the same as text

}  // namespace kvlab
