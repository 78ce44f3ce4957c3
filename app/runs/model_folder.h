#pragma once

#include <string>

#include "base/params.h"

namespace kvlab {

// The folder with a model's weights that `model` names: a folder, or an id of the Hugging Face hub whose files are in the local cache;
// these are noted as inputs of the run. A text that is neither is returned as a path. InputError with file:line:column where an id has no
// weights.
std::string read_model_folder(const Params& p, const std::string& text);

}  // namespace kvlab
