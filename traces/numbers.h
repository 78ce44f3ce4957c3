#pragma once

#include <cstdint>
#include <string_view>

namespace kvlab {

// Prompt + output fits 32 bits.
inline constexpr std::int64_t kMaxTokens = (std::int64_t{1} << 30) - 1;
// Ten years.
inline constexpr std::int64_t kMaxTraceNs = 315'360'000LL * 1'000'000'000LL;

// "12.345" in units of `unit_ns` (a power of ten), rounded exactly to nanoseconds; exponents ("5e-05") via double. False if no decimal >=
// 0. Above kMaxTraceNs: kMaxTraceNs + 1.
bool parse_time_ns(std::string_view text, std::int64_t unit_ns, std::int64_t& value);

// Since 1970, before 2200: decimal without exponent.
bool parse_instant_ns(std::string_view text, std::int64_t unit_ns, std::int64_t& value);

// 12 of 12.0, as pandas writes; other text unchanged.
std::string_view without_zero_fraction(std::string_view text);

// Decimal digits, no leading zeros, up to 64 bits.
bool parse_unsigned(std::string_view text, std::uint64_t& value);

// "2023-11-16 18:15:46[.fraction][zone]" as UTC nanoseconds since 1970; zone Z, +hh:mm or -hh:mm, default UTC; T may separate. Years 1970
// to 2199.
bool parse_date_time_ns(std::string_view text, std::int64_t& value);

}  // namespace kvlab
