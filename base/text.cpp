#include "base/text.h"

#include <fmt/format.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <sstream>

namespace kvlab {

namespace {

// At most one sign and no leading zeros: readers differ on 010.
bool is_plain(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  if (text.starts_with('+') || text.starts_with('-')) return false;
  return !(text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9');
}

// Much faster than std::from_chars. False for other texts and for numbers that may be too large.
bool parse_digits(std::string_view text, long long& value) {
  constexpr std::size_t kMostDigits = 18;
  if (text.empty() || text.size() > kMostDigits) return false;
  long long sum = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    sum = 10 * sum + (c - '0');
  }
  value = sum;
  return true;
}

}  // namespace

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool parse_integer(std::string_view text, long long& value) {
  if (!is_plain(text)) return false;
  if (parse_digits(text, value)) return true;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

bool parse_real(std::string_view text, double& value) {
  if (!is_plain(text)) return false;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && std::isfinite(value);
}

std::vector<int> version_numbers(const std::string& version) {
  std::vector<int> numbers;
  if (version.empty() || std::isdigit(static_cast<unsigned char>(version.front())) == 0) return numbers;
  std::istringstream text(version);
  for (std::string part; std::getline(text, part, '.');) {
    long long number = 0;
    parse_integer(part.substr(0, part.find_first_not_of("0123456789")), number);
    numbers.push_back(static_cast<int>(number));
  }
  while (!numbers.empty() && numbers.back() == 0) numbers.pop_back();
  return numbers;
}

std::string number_text(double value) { return fmt::format("{}", value); }

}  // namespace kvlab
