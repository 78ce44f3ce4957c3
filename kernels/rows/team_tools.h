#pragma once

#include <cmath>
#include <type_traits>

#include "base/hash.h"
#include "base/random.h"
#include "kernels/element.h"
#include "kernels/rows/team.h"
#include "kernels/select/top_k/take_best.h"

// Steps that bodies of row operations share.
namespace kvlab {

// The largest of z [n], -infinity for none.
template <class Team>
[[nodiscard]] KVLAB_BODY float largest(const Team& team, std::int64_t n, const float* z) {
  return team.max(n, n > 0 ? z[0] : -INFINITY, [&](std::int64_t i) { return z[i]; });
}

// z [n] become exp(z - top). Returns the sum.
template <class Team>
KVLAB_BODY float exp_sum(const Team& team, std::int64_t n, float top, float* z) {
  team.each(n, [&](std::int64_t i) { z[i] = std::exp(z[i] - top); });
  return team.sum(n, [&](std::int64_t i) { return z[i]; });
}

// marked [n]: 1 for the indices that team.best() gives, else 0.
template <class Team, class F>
KVLAB_BODY void mark_best(const Team& team, std::int32_t n, std::int32_t count, F&& f, std::int32_t* marked) {
  team.each(n, [&](std::int64_t i) { marked[i] = 0; });
  team.best(n, count, f, [&](std::int32_t i) { marked[i] = 1; });
}

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

// The bits of Draw{seed, purpose, request, step, layer}, and its uniform().
KVLAB_BODY inline std::uint64_t bits_of_draw(std::uint64_t seed, Purpose purpose, std::uint64_t request, std::uint64_t step = 0,
                                             std::uint64_t layer = 0) {
  std::uint64_t h = hash_combine(seed, static_cast<std::uint64_t>(purpose));
  h = hash_combine(h, request);
  h = hash_combine(h, step);
  return hash_combine(h, layer);
}
KVLAB_BODY inline double uniform_draw(std::uint64_t seed, Purpose purpose, std::uint64_t request, std::uint64_t step = 0,
                                      std::uint64_t layer = 0) {
  return static_cast<double>(bits_of_draw(seed, purpose, request, step, layer) >> 11) * 0x1.0p-53;
}

// team.best(), where the CPU leaves equal scores as torch.topk: put(i) for `count` <= n indices in [0, n), those of largest f(i). The first
// ones come in the order of a call for `ranked` >= count of them; 0: for count. Devices break ties by index.
template <class Team, class F, class Put>
KVLAB_BODY void peer_best(const Team& team, std::int32_t n, std::int32_t count, std::int32_t ranked, F&& f, Put&& put) {
  if constexpr (Team::kOnDevice) {
    team.best(n, count, f, put);
  } else {
    std::vector<Candidate> row;
    for (std::int32_t i = 0; i < n; ++i) row.push_back({rank_value(f(i)), i});
    if (ranked > 0)
      take_ordered(row, ranked);
    else
      take_best(row, count, true);
    for (std::int32_t k = 0; k < count; ++k) put(static_cast<std::int32_t>(row[static_cast<std::size_t>(k)].at));
  }
}

// x (1 + erf(x / sqrt 2)) / 2
KVLAB_BODY inline float gelu(float x) { return 0.5F * x * (1.0F + std::erf(x * static_cast<float>(M_SQRT1_2))); }

}  // namespace kvlab
