#pragma once

#include <cstdint>

namespace kvlab {

// Long arrays are read at eight places in turn: a core's prefetcher looks ahead inside a page of memory, and one place alone leaves most of
// the bandwidth unused. Each place has n / 8 of n elements, the first n % 8 places one more.
constexpr std::int64_t kStreams = 8;

// Calls f(i) once for each i in [0, n), in that order; it depends on n alone.
template <class F>
void for_each_in_streams(std::int64_t n, F&& f) {
  const std::int64_t each = n / kStreams, longer = n % kStreams;
  for (std::int64_t at = 0; at < each + (longer > 0 ? 1 : 0); ++at)
    for (std::int64_t s = 0; s < (at < each ? kStreams : longer); ++s) f(s * each + (s < longer ? s : longer) + at);
}

}  // namespace kvlab
