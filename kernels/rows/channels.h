#pragma once

#include <type_traits>

#include "kernels/rows/team.h"

namespace kvlab {

// f(line, c, width) for the channels [c, c + width) of each line, width a std::integral_constant. The CPU takes 16 channels, to be added as
// a vector; a device thread one.
template <class Team, class F>
KVLAB_BODY void each_channels(const Team& team, std::int64_t lines, std::int64_t channels, F&& f) {
  constexpr int kWide = Team::kOnDevice ? 1 : 16;
  const std::int64_t pieces = (channels + kWide - 1) / kWide;
  team.each(lines * pieces, [&](std::int64_t i) {
    const std::int64_t line = i / pieces, begin = i % pieces * kWide;
    if (begin + kWide <= channels) return f(line, begin, std::integral_constant<int, kWide>());
    for (std::int64_t c = begin; c < channels; ++c) f(line, c, std::integral_constant<int, 1>());
  });
}

}  // namespace kvlab
