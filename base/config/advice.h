#pragma once

#include <yaml-cpp/yaml.h>

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

// Advice on too short values; begins with "; write", or is "" if unknown.

// `parallel: 4`: "; write 'parallel: {tp: 4}'". found: the value at `path`, not a mapping.
std::string advice_on_mapping(const std::string& path, const YAML::Node& found);

// `scheduler: {name: sarathi, budget_tokens: 512}`: "; write 'scheduler: {sarathi: {budget_tokens: 512}}'". found: a mapping other than
// {name: {parameters}}.
std::string advice_on_named(const std::string& key, const YAML::Node& found);

// Such as {name: sarathi}.
bool names_by_key(const YAML::Node& found);

// `poisson: 8`: "write 'poisson: {rate_per_s: 8}'" if the key has no default, else "for example 'NAME: {KEY: DEFAULT}'".
std::string advice_on_parameters(const std::string& path, const YAML::Node& found, const std::string& key, const std::string& fallback);

}  // namespace kvlab
