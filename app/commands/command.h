#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <limits>
#include <memory>
#include <string>
#include <system_error>
#include <type_traits>

namespace kvlab {

// Results go to `out`, progress and warnings to `err`; returns the exit status.
using Command = std::function<int(std::ostream& out, std::ostream& err)>;

// Live as long as `app`; once per app.
template <class Arguments>
Arguments& arguments_of(CLI::App& app) {
  const auto own = std::make_shared<Arguments>();
  app.preparse_callback([own](std::size_t) {});
  return *own;
}

// If `one` is given, `chosen` becomes act(arguments, out) or act(arguments, out, err). Options write into `arguments`, which must outlive
// `app`.
template <class Arguments, class Act>
void choose(CLI::App* one, Command& chosen, Arguments& arguments, Act act) {
  one->callback([&chosen, &arguments, act] {
    chosen = [&arguments, act](std::ostream& out, [[maybe_unused]] std::ostream& err) {
      if constexpr (std::is_invocable_v<Act, Arguments&, std::ostream&>)
        return act(arguments, out);
      else
        return act(arguments, out, err);
    };
  });
}

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

}  // namespace kvlab
