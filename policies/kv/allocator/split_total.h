#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace kvlab {

// counts[i] = clamp(round(total * w_i / sum w), floor[i], cap[i]), rounded cumulatively: without clamps the counts sum to the total. Tokens
// that the bounds remove or add are lost, or spread over the members with room. Negative and infinite weights count as 0; all 0 as equal.
enum class Excess : std::uint8_t { kLost, kEven, kByWeight };
void split_total(std::span<const double> weights, std::int64_t total, std::span<const std::int32_t> floor,
                 std::span<const std::int32_t> cap, Excess excess, std::span<std::int32_t> counts);

// exp(-(x_i - min x) / temperature).
std::vector<double> softmax_of_negative(std::span<const double> x, double temperature);

// As split_total() for each sequence, as one call: weights[s][i], arrays [sequences, members] in CPU memory.
void share_out(Ops& ops, std::span<const std::vector<double>> weights, const std::int64_t* total, const std::int32_t* floor,
               const std::int32_t* cap, Excess excess, std::int32_t* counts);

}  // namespace kvlab
