#pragma once

#include <cmath>

#include "kernels/rows/row_op.h"

namespace kvlab {

// Units that each row of a layer gets: the average times the entropy of the layer's unit probabilities (mean over its rows) over the mean
// of the entropies known for the sequence's layers; at least 1, at most twice the average. ActQKV, Xiao et al. 2025, known from its
// abstract; our definition.
struct EntropyShare {
  std::int32_t num_sequences = 0, kv_heads = 1, layer = 0, num_layers = 1;
  const std::int64_t* first = nullptr;  // [rows + 1]
  const float* probabilities = nullptr;
  const std::int32_t* average = nullptr;  // [rows]
  float* const* entropies = nullptr;      // [num_sequences] -> [num_layers], 0: not known yet
  std::int32_t* keep = nullptr;           // [rows] out, CPU memory; rows without units: 0

  // Probabilities are read once, 4 FLOPs each.
  [[nodiscard]] OpCall cost() const {
    const std::int32_t of_layer = num_sequences * kv_heads;
    const std::int64_t units = first[of_layer];
    return {.op = "entropy_share",
            .rows = of_layer,
            .tokens = units,
            .outputs = of_layer,
            .bytes = 4 * units + 4LL * num_sequences * num_layers + 4LL * of_layer,
            .flops = 4 * units};
  }
  [[nodiscard]] std::int64_t rows() const { return num_sequences; }
  void shapes(auto&& visit) {
    const std::int64_t n = std::int64_t{num_sequences} * kv_heads;
    visit(first, n + 1), visit(average, n), visit(entropies, num_sequences);
  }
  void results(auto&& visit) { visit(keep, std::int64_t{num_sequences} * kv_heads); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t s) const {
    const std::int64_t row0 = s * kv_heads, begin = first[row0], units = first[row0 + kv_heads] - begin;
    const double entropy = team.template sum<double>(units, [&](std::int64_t i) {
      const auto p = static_cast<double>(probabilities[begin + i]);
      return p > 0 ? -(p * std::log(p) / kv_heads) : 0.0;
    });
    team.once([&] {
      if (units > 0) entropies[s][layer] = static_cast<float>(entropy);
      share(row0, entropy, entropies[s]);
    });
  }

 private:
  KVLAB_BODY void share(std::int64_t row0, double entropy, const float* of_layers) const {
    double known = 0, layers = 0;
    for (std::int32_t l = 0; l < num_layers; ++l)
      if (of_layers[l] > 0) known += static_cast<double>(of_layers[l]), layers += 1;
    const double scale = entropy > 0 ? entropy / (known / layers) : 1.0;
    for (std::int64_t r = row0; r < row0 + kv_heads; ++r) {
      const double scaled = std::nearbyint(average[r] * scale), most = 2.0 * average[r], wanted = most < scaled ? most : scaled;
      const auto units = static_cast<double>(first[r + 1] - first[r]);
      keep[r] = units == 0 ? 0 : static_cast<std::int32_t>(wanted < 1.0 ? 1.0 : units < wanted ? units : wanted);
    }
  }
};
KVLAB_ROW_OP(EntropyShare)

}  // namespace kvlab
