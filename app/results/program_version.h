#pragma once

#include <string>

namespace kvlab {

std::string program_version();  // "0.1.0", with the commit if known

}  // namespace kvlab
