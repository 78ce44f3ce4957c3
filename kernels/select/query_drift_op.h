#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// refresh = 1 if the cosine between a sequence's query (all heads as one vector) and its reference is below min_cosine; the query becomes
// the reference. TokenSelect, Wu et al. 2024; Recycled Attention, Xu et al. 2024.
struct QueryDrift {
  enum Rule : std::int32_t { kNever = 0, kAlways = 1, kIfTurned = 2 };
  std::int32_t num_sequences = 0, width = 0;  // q_heads * head_dim
  const Queries* queries = nullptr;           // [num_sequences], the last query of each
  const std::int32_t* rule = nullptr;         // [num_sequences] known beforehand
  float min_cosine = 0.9F;
  float* const* reference = nullptr;  // [num_sequences] -> [width]
  std::int32_t* refresh = nullptr;    // [num_sequences] out, 0 or 1, in CPU memory

  [[nodiscard]] OpCall cost() const {
    OpCall c{.op = "query_drift", .rows = num_sequences, .outputs = num_sequences};
    for (std::int32_t s = 0; s < num_sequences; ++s) {
      if (rule[s] == kNever) continue;
      c.bytes += std::int64_t{width} * (rule[s] == kIfTurned ? 10 : 6);
      c.flops += rule[s] == kIfTurned ? 6LL * width : 0;
    }
    return c;
  }
  [[nodiscard]] std::int64_t rows() const { return num_sequences; }
  void shapes(auto&& visit) { visit(queries, num_sequences), visit(rule, num_sequences), visit(reference, num_sequences); }
  void results(auto&& visit) { visit(refresh, num_sequences); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    bool refreshes = rule[s] == kAlways;
    const float* const q = rule[s] == kNever ? nullptr : queries[s].data + (queries[s].count - std::int64_t{1}) * width;
    if (rule[s] == kIfTurned) {
      const float length = std::sqrt(product(team, q, q) * product(team, reference[s], reference[s]));
      const float both = product(team, q, reference[s]);
      refreshes = (length > 0.0F ? both / length : 1.0F) < min_cosine;
    }
    team.once([&] { refresh[s] = refreshes ? 1 : 0; });
    if (refreshes) team.each(width, [&](std::int64_t i) { reference[s][i] = q[i]; });
  }

 private:
  template <class Team>
  [[nodiscard]] KVLAB_BODY float product(const Team& team, const float* x, const float* y) const {
    if constexpr (!Team::kOnDevice) return team.dot(x, y, width);
    return team.sum(width, [&](std::int64_t i) { return x[i] * y[i]; });
  }
};
KVLAB_ROW_OP(QueryDrift)

}  // namespace kvlab
