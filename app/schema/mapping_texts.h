#pragma once

#include <string>

namespace kvlab {

// Description of a key for which readers state none, such as a mapping. path: "trace.generate". Returns "" if there is none.
std::string mapping_text(const std::string& path);

}  // namespace kvlab
