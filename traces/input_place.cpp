#include "traces/input_place.h"

#include <fmt/format.h>

#include "base/error.h"

namespace kvlab {

void InputPlace::fail(const std::string& message) const { throw InputError(fmt::format("{}:{}: {}", name(), line_number(), message)); }

void InputPlace::fail(std::string_view column, const std::string& message) const { fail(fmt::format("column '{}': {}", column, message)); }

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 40;
  std::string shown = "'";
  for (const char c : text.substr(0, kShown)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (text.size() > kShown ? "...'" : "'");
}

}  // namespace kvlab
