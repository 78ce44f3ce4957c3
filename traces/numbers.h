#pragma once

#include <cstdint>
#include <string_view>

namespace kvlab {

// Token counts are below 2^30, so that prompt + output fits 32 bits.
inline constexpr std::int64_t kMaxTokens = (std::int64_t{1} << 30) - 1;
// Ten years: longer than any trace, and far from the end of a 64-bit nanosecond clock.
inline constexpr std::int64_t kMaxTraceNs = 315'360'000LL * 1'000'000'000LL;

// "12.345" of a unit of `unit_ns` nanoseconds, a power of ten, exactly, rounded to the nearest nanosecond. Also reads an exponent ("5e-05",
// as dataframes write small times), then as a double. False when the text is no decimal number >= 0. A value above kMaxTraceNs is returned
// as kMaxTraceNs + 1.
bool parse_time_ns(std::string_view text, std::int64_t unit_ns, std::int64_t& value);

// The same for an instant since 1970: a decimal number without an exponent, of a year before 2200. False on anything else.
bool parse_instant_ns(std::string_view text, std::int64_t unit_ns, std::int64_t& value);

// 12 of 12.0, as pandas writes counts of a column with gaps; any other text as it is.
std::string_view without_zero_fraction(std::string_view text);

// Unsigned decimal digits only: no sign, no leading zero. False on anything else or beyond 64 bits.
bool parse_unsigned(std::string_view text, std::uint64_t& value);

// "2023-11-16 18:15:46[.fraction][zone]" as nanoseconds since 1970 in UTC; the zone is Z, +hh:mm or -hh:mm, UTC when absent; a T may
// separate date and time. Years 1970 to 2199. False when the text is no such time.
bool parse_date_time_ns(std::string_view text, std::int64_t& value);

}  // namespace kvlab
