#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace kvlab {

// yaml-cpp's message on invalid YAML, with the likely mistake: a tab, indentation, an open bracket, missing quotes. `mark`: position of the
// error.
std::string yaml_error(const std::string& text, const YAML::Mark& mark, const std::string& message);

// For a text with two documents: "" with a line '---', else the line with the indentation that ends the first.
std::string cause_of_second_document(const std::string& text);

}  // namespace kvlab
