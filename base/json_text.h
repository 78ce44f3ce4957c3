#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/read_file.h"

namespace kvlab {

// Null if unreadable or no object.
template <class Json>
Json read_json_object(const std::filesystem::path& path) {
  Json root = Json::parse(read_if_there(path), nullptr, false);
  return root.is_object() ? root : Json();
}

// Brackets and braces outside of strings, for any text.
int json_depth(std::string_view json);

// InputError "WHERE: values in it are nested deeper than 64 levels". Before parsing: writing recurses.
void refuse_deep_json(std::string_view json, const std::string& where);

// InputError "WHERE: ...": invalid or deep JSON, or a number beyond a double.
nlohmann::json parse_json(std::string_view text, const std::string& where);

// For messages: ASCII, cut after `most` bytes with "...".
std::string short_json(const nlohmann::json& value, std::size_t most = 60);

}  // namespace kvlab
