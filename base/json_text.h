#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/read_file.h"

namespace kvlab {

// The object that a file holds; null where it cannot be read or holds something else.
template <class Json>
Json read_json_object(const std::filesystem::path& path) {
  Json root = Json::parse(read_if_there(path), nullptr, false);
  return root.is_object() ? root : Json();
}

// How deep brackets and braces outside of strings are nested, in one pass without recursion; of text that is no JSON too.
int json_depth(std::string_view json);

// Throws InputError("WHERE: values in it are nested deeper than 64 levels"): before a text is parsed, because writing a value (in an error
// message too) takes stack for each level.
void refuse_deep_json(std::string_view json, const std::string& where);

// Parses a text. InputError("WHERE: ...") if it is no JSON, is nested deeper than that, or has a number that a double does not hold.
nlohmann::json parse_json(std::string_view text, const std::string& where);

// A value for an error message: in ASCII on one line, cut after `most` bytes with "..." appended.
std::string short_json(const nlohmann::json& value, std::size_t most = 60);

}  // namespace kvlab
