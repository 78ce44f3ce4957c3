#pragma once

#include <string>

namespace kvlab {

// The description of a key whose readers state none, which are mappings and keys that are read in another place. path: "trace.generate".
// "": there is none.
std::string mapping_text(const std::string& path);

}  // namespace kvlab
