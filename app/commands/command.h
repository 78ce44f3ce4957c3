#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <string>
#include <system_error>

namespace kvlab {

// Results go to `out`, progress and warnings to `err`; returns the exit status. In add_NAME_command(app, command, choose), options write
// into `command`, which must outlive `app`, and `choose` is called if NAME is given.
using Command = std::function<int(std::ostream& out, std::ostream& err)>;

// Decimal in [0, 2^63). CLI11's strtoull would take -1 and clamp overflow.
inline CLI::Validator whole_number() {
  const auto check = [](std::string& text) -> std::string {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= 0) return "";
    return "Value " + text + " not in range: write a whole number from 0 to " + std::to_string(std::numeric_limits<std::int64_t>::max());
  };
  return CLI::Validator(check, "INT");
}

inline CLI::Validator seed_range() { return whole_number(); }

}  // namespace kvlab
