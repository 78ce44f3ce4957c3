#pragma once

#include <map>
#include <set>
#include <string>

namespace kvlab {

// Our counterpart of a key or option of vLLM, SGLang or their benchmarks: "'budget_tokens' of the scheduler". "": unknown. Dashes count as
// underscores; leading ones are ignored.
std::string own_key_for(const std::string& foreign);

// Path of a mapping -> keys asked for in it.
using AskedByPath = std::map<std::string, std::set<std::string>>;

// Advice on an unknown key at `path`: our name for another engine's key, places where it was asked for, or the nearest of `seen`.
std::string advice_on_unknown(const std::string& key, const std::string& path, const AskedByPath& asked, const std::set<std::string>& seen);

}  // namespace kvlab
