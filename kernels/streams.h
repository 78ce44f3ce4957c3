#pragma once

#include <cstdint>

namespace kvlab {

// Reads at eight places in turn: one prefetch stream leaves most bandwidth unused. The first n % 8 have one more.
constexpr std::int64_t kStreams = 8;

// The order depends only on n.
template <class F>
void for_each_in_streams(std::int64_t n, F&& f) {
  const std::int64_t each = n / kStreams, longer = n % kStreams;
  for (std::int64_t at = 0; at < each + (longer > 0 ? 1 : 0); ++at)
    for (std::int64_t s = 0; s < (at < each ? kStreams : longer); ++s) f(s * each + (s < longer ? s : longer) + at);
}

}  // namespace kvlab
