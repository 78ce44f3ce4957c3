#pragma once

#include <string>
#include <vector>

namespace kvlab {

// KVLab (CITATION.cff) and all that results folders, or the named policies, use, from policies/references.bib by arXiv number; other
// sources become @misc marked unverified. Throws InputError for an unknown name.
std::string citations(const std::vector<std::string>& names);

std::vector<std::string> cited_kinds();

}  // namespace kvlab
