#include "traces/numbers.h"

#include <charconv>
#include <chrono>
#include <cmath>

#include "base/text.h"

namespace kvlab {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes exactly `count` digits.
bool take_digits(std::string_view& text, std::size_t count, int& value) {
  if (text.size() < count) return false;
  value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_digit(text[i])) return false;
    value = value * 10 + (text[i] - '0');
  }
  text.remove_prefix(count);
  return true;
}

bool take(std::string_view& text, char c) {
  if (!text.starts_with(c)) return false;
  text.remove_prefix(1);
  return true;
}

// In units of unit_ns; rounds at one nanosecond.
bool take_fraction(std::string_view& text, std::int64_t unit_ns, std::int64_t& value) {
  if (text.empty() || !is_digit(text.front())) return false;
  value = 0;
  bool is_first_lost = true;
  for (; !text.empty() && is_digit(text.front()); text.remove_prefix(1)) {
    const int digit = text.front() - '0';
    unit_ns /= 10;
    if (unit_ns > 0)
      value += digit * unit_ns;
    else if (is_first_lost && digit >= 5)
      ++value;
    if (unit_ns == 0) is_first_lost = false;
  }
  return true;
}

// A decimal without exponent; `units` beyond max_units is only known to be larger.
bool parse_units(std::string_view text, std::int64_t unit_ns, std::int64_t max_units, std::int64_t& units, std::int64_t& fraction_ns) {
  if (text.empty() || !is_digit(text.front())) return false;
  for (; !text.empty() && is_digit(text.front()); text.remove_prefix(1))
    if (units <= max_units) units = units * 10 + (text.front() - '0');
  return (!take(text, '.') || take_fraction(text, unit_ns, fraction_ns)) && text.empty();
}

bool take_zone(std::string_view& text, std::int64_t& offset_s) {
  offset_s = 0;
  if (text.empty() || take(text, 'Z')) return true;
  const bool is_west = text.front() == '-';
  if (!is_west && text.front() != '+') return false;
  text.remove_prefix(1);
  int hours = 0, minutes = 0;
  if (!take_digits(text, 2, hours) || !take(text, ':') || !take_digits(text, 2, minutes) || hours > 14 || minutes > 59) return false;
  offset_s = (std::int64_t{hours} * 60 + minutes) * 60;
  if (is_west) offset_s = -offset_s;
  return true;
}

}  // namespace

std::string_view without_zero_fraction(std::string_view text) {
  const std::size_t point = text.find('.');
  const bool is_whole = point != std::string_view::npos && point > 0 && point + 1 < text.size() &&
                        text.find_first_not_of('0', point + 1) == std::string_view::npos;
  return is_whole ? text.substr(0, point) : text;
}

bool parse_unsigned(std::string_view text, std::uint64_t& value) {
  if (text.empty() || !is_digit(text.front()) || (text.size() > 1 && text.front() == '0')) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

bool parse_time_ns(std::string_view text, std::int64_t unit_ns, std::int64_t& value) {
  if (text.find_first_of("eE") != std::string_view::npos) {
    double units = 0;
    if (!parse_real(text, units) || units < 0) return false;
    const double in_ns = units * static_cast<double>(unit_ns);
    value = in_ns > static_cast<double>(kMaxTraceNs) ? kMaxTraceNs + 1 : static_cast<std::int64_t>(std::llround(in_ns));
    return true;
  }
  const std::int64_t max_units = kMaxTraceNs / unit_ns + 1;
  std::int64_t units = 0, fraction_ns = 0;
  if (!parse_units(text, unit_ns, max_units, units, fraction_ns)) return false;
  value = units >= max_units ? kMaxTraceNs + 1 : units * unit_ns + fraction_ns;
  return true;
}

bool parse_instant_ns(std::string_view text, std::int64_t unit_ns, std::int64_t& value) {
  constexpr std::int64_t kYear2200Ns = 7'258'118'400LL * 1'000'000'000LL;
  std::int64_t units = 0, fraction_ns = 0;
  if (!parse_units(text, unit_ns, kYear2200Ns / unit_ns, units, fraction_ns) || units > kYear2200Ns / unit_ns) return false;
  value = units * unit_ns + fraction_ns;
  return true;
}

bool parse_date_time_ns(std::string_view text, std::int64_t& value) {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  if (!take_digits(text, 4, year) || !take(text, '-') || !take_digits(text, 2, month) || !take(text, '-') || !take_digits(text, 2, day))
    return false;
  if (!take(text, ' ') && !take(text, 'T')) return false;
  if (!take_digits(text, 2, hour) || !take(text, ':') || !take_digits(text, 2, minute) || !take(text, ':') || !take_digits(text, 2, second))
    return false;
  std::int64_t fraction_ns = 0;
  constexpr std::int64_t kSecondNs = 1'000'000'000;
  if (take(text, '.') && !take_fraction(text, kSecondNs, fraction_ns)) return false;
  std::int64_t offset_s = 0;
  if (!take_zone(text, offset_s) || !text.empty()) return false;
  const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                                         std::chrono::day(static_cast<unsigned>(day))};
  if (!date.ok() || year < 1970 || year > 2199 || hour > 23 || minute > 59 || second > 59) return false;
  const std::int64_t days = std::chrono::sys_days(date).time_since_epoch().count();
  const std::int64_t seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - offset_s;
  value = seconds * kSecondNs + fraction_ns;
  return true;
}

}  // namespace kvlab
