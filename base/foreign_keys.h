#pragma once

#include <string>

namespace kvlab {

// The counterpart here of a key or option of vLLM, SGLang or their benchmarks, as messages say it: "'budget_tokens' of the scheduler".
// "": not one of theirs. Dashes count as underscores, and leading ones do not count.
std::string own_key_for(const std::string& foreign);

}  // namespace kvlab
