#pragma once

#include <string>
#include <vector>

namespace kvlab {

// BibTeX of KVLab (CITATION.cff) and of all that results folders, or the named policies, use. Takes entries from policies/references.bib by
// arXiv number; other sources become @misc marked unverified, cards in policies/no_paper.yaml comments. Throws InputError for an unknown
// name.
std::string citations(const std::vector<std::string>& names);

std::vector<std::string> cited_kinds();

}  // namespace kvlab
