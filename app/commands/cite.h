#pragma once

#include <string>
#include <vector>

namespace kvlab {

// BibTeX of what results folders used (policies, KV recipes, systems, trace formats, models), or of policies by name, and of KVLab itself
// (CITATION.cff). An entry comes from policies/references.bib, by the arXiv numbers in a card's source; a source that is not there is
// printed as @misc with the card's words, marked unverified. Cards of policies/no_paper.yaml are comments. InputError: neither a results
// folder nor a name.
std::string citations(const std::vector<std::string>& names);

// The kinds of `kvlab list` whose names citations() takes.
std::vector<std::string> cited_kinds();

}  // namespace kvlab
