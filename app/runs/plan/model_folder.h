#pragma once

#include <string>

#include "base/config/params.h"

namespace kvlab {

// A folder, or a hub id's in the local Hugging Face cache (noted as inputs of the run); other texts are returned as a path.
// Throws InputError if an id has no weights.
std::string read_model_folder(const Params& p, const std::string& text);

}  // namespace kvlab
