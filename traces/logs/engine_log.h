#pragma once

#include <string>

#include "traces/logs/real_log.h"

namespace kvlab {

// An engine's own log, one JSON object per line. InputError with file:line for a row that lacks a key, or whose times go backwards.
RealLog read_engine_log(const std::string& text, const std::string& file);

}  // namespace kvlab
