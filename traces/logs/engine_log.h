#pragma once

#include <string>

#include "traces/logs/real_log.h"

namespace kvlab {

// One JSON object per line. Throws InputError with file:line for missing keys or times that go backwards.
RealLog read_engine_log(const std::string& text, const std::string& file);

}  // namespace kvlab
