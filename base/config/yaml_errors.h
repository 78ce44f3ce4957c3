#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace kvlab {

// The message of yaml-cpp on a text that is not YAML, then the mistake that people make there: a tab, the indentation, an open bracket,
// missing quotes. `mark`: where it noticed.
std::string yaml_error(const std::string& text, const YAML::Mark& mark, const std::string& message);

// For a text that yaml-cpp takes for two documents: "" where a line '---' says so, else the line whose indentation ends the first.
std::string cause_of_second_document(const std::string& text);

}  // namespace kvlab
