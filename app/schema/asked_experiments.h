#pragma once

#include <vector>

#include "base/asked_keys.h"

namespace kvlab {

// The keys that readers of experiments ask for, of every kind of run.
std::vector<AskedKeys::Asked> asked_of_experiments();

}  // namespace kvlab
