#pragma once

#include <cstdint>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

class StoredArrays;

// One array is null, with shapes only both. `narrow`: vectors of up to 65,535 numbers.
struct OutlierPlaces {
  std::uint16_t* narrow = nullptr;  // 65,535: none
  std::int32_t* wide = nullptr;     // -1: none

  KVLAB_BOTH std::int32_t at(std::int64_t i) const {
    if (wide != nullptr) return wide[i];
    return narrow[i] == 0xffff ? -1 : std::int32_t{narrow[i]};
  }
  KVLAB_BOTH void set(std::int64_t i, std::int32_t place) const {
    if (wide != nullptr)
      wide[i] = place;
    else
      narrow[i] = static_cast<std::uint16_t>(place);
  }
};

// Stores the `share` / 2 largest and `share` / 2 smallest numbers (each rounded down, at least one; ties to the earlier) of each listed
// vector in fp16, and replaces them by its mean (GEAR, Kang et al. 2024, arXiv:2403.05527, eq. 3). A vector is a token's channels, or a
// channel of all entries of the row.
struct Outliers {
  ListedTokens tokens;
  bool per_channel = false;  // K; else per token
  double share = 0.02;
  std::uint16_t* value = nullptr;  // [outlier_numbers()] out, fp16, vector by vector
  OutlierPlaces place;             // [outlier_numbers()] out
  bool unpacks = false;
};
// In a vector of n numbers: 0 for a share of 0 or n < 2.
std::int32_t outliers_of(double share, std::int64_t n);
std::int64_t outlier_numbers(const Outliers&);
constexpr bool has_wide_places(std::int64_t n) { return n > 65535; }
bool has_wide_places(const Outliers&);
// Numbers and places.
std::int64_t outlier_bytes(std::int64_t vectors, std::int64_t length, double share);

OpCall call(const Outliers&);
void run_cpu(const Outliers&);
void run_cuda(const Outliers&, CudaContext&);

void stored_arrays(Outliers&, StoredArrays&);

}  // namespace kvlab
