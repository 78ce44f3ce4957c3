#include "base/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace kvlab {

int json_depth(std::string_view json) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') in_string = !in_string;
    if (in_string && c == '\\') ++i;  // an escaped quote does not end it
    if (in_string) continue;
    if (c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ']' || c == '}') depth = std::max(0, depth - 1);
  }
  return deepest;
}

void refuse_deep_json(std::string_view json, const std::string& where) {
  constexpr int kMost = 64;
  if (json_depth(json) > kMost) throw InputError(where + ": values in it are nested deeper than " + std::to_string(kMost) + " levels");
}

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  refuse_deep_json(text, where);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    throw InputError(where + ": not JSON from byte " + std::to_string(e.byte) + " on");
  } catch (const nlohmann::json::out_of_range&) {
    throw InputError(where + ": a number in it is beyond what a double holds");
  }
}

std::string short_json(const nlohmann::json& value, std::size_t most) {
  const std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  return text.size() <= most ? text : text.substr(0, most) + "...";
}

}  // namespace kvlab
