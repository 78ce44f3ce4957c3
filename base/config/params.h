#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "base/config/axes.h"
#include "base/config/param_reader.h"
#include "base/config/read_config.h"
#include "base/text.h"
#include "base/time.h"

namespace kvlab {

// Params::defaults(): value by path.
struct ParamDefaults : std::map<std::string, std::string> {};

}  // namespace kvlab
