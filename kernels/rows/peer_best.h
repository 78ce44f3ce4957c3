#pragma once

#include "kernels/rows/body.h"
#include "kernels/select/top_k/take_best.h"

namespace kvlab {

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

}  // namespace kvlab
