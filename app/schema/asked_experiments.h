#pragma once

#include <vector>

#include "base/config/asked_keys.h"

namespace kvlab {

// Over every kind of run.
std::vector<AskedKeys::Asked> asked_of_experiments();

}  // namespace kvlab
