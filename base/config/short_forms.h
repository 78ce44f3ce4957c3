#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace kvlab {

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
