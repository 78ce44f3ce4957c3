#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace kvlab {

// How deep brackets and braces outside of strings are nested, in one pass without recursion; of text that is no JSON too.
int json_depth(std::string_view json);

// Throws InputError("WHERE: values in it are nested deeper than 64 levels"): before a text is parsed, because writing a value (in an error
// message too) takes stack for each level.
void refuse_deep_json(std::string_view json, const std::string& where);

// A value for an error message: in ASCII on one line, cut after `most` bytes with "..." appended.
std::string short_json(const nlohmann::json& value, std::size_t most = 60);

}  // namespace kvlab
