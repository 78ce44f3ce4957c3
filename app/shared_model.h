#pragma once

#include <string>

#include "engine/model/transformer.h"

namespace kvlab {

// The model of a folder, loaded once per program: runs of an experiment share it. Errors as Transformer::load.
const Transformer& shared_model(const std::string& folder);

}  // namespace kvlab
