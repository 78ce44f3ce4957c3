#pragma once

#include <string>

namespace kvlab {

// For a key without a text by readers, such as a mapping. path: "trace.generate". "": none.
std::string mapping_text(const std::string& path);

}  // namespace kvlab
