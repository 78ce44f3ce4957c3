#pragma once

#include <map>
#include <set>
#include <string>

namespace kvlab {

// The counterpart here of a key or option of vLLM, SGLang or their benchmarks, as messages say it: "'budget_tokens' of the scheduler".
// "": not one of theirs. Dashes count as underscores, and leading ones do not count.
std::string own_key_for(const std::string& foreign);

// Path of a mapping -> keys asked for in it.
using AskedByPath = std::map<std::string, std::set<std::string>>;

// The end of the message on an unknown key of the mapping at `path`: our name for another engine's key, the places where it was asked for,
// or the nearest of the keys `seen` there.
std::string advice_on_unknown(const std::string& key, const std::string& path, const AskedByPath& asked, const std::set<std::string>& seen);

}  // namespace kvlab
