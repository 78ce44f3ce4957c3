#pragma once

#include <cstdint>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

class StoredArrays;

// Places of outliers within their vectors. One of the arrays is null, with shapes alone both: 2 bytes are enough for vectors of up to
// 65,535 numbers.
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

// Takes the `share` / 2 largest and the `share` / 2 smallest numbers (each rounded down, at least one; ties to the earlier) out of each
// listed vector, stores them in fp16 with their places, and replaces them by the vector's mean (GEAR, Kang et al. 2024, arXiv:2403.05527,
// eq. 3). A vector is a token's channels, or a channel of all entries of the row.
struct Outliers {
  ListedTokens tokens;
  bool per_channel = false;  // K; else per token
  double share = 0.02;
  std::uint16_t* value = nullptr;  // [outlier_numbers()] out, fp16, vector by vector
  OutlierPlaces place;             // [outlier_numbers()] out
  bool unpacks = false;            // puts the outliers back into their places
};
// Outliers of one vector of n numbers: 0 for a share of 0 or n < 2.
std::int32_t outliers_of(double share, std::int64_t n);
std::int64_t outlier_numbers(const Outliers&);
// True if places in a vector of n numbers need `wide`.
constexpr bool has_wide_places(std::int64_t n) { return n > 65535; }
// True if some vector of the lists needs `wide`.
bool has_wide_places(const Outliers&);
// Stored bytes of all outliers: the number and its place.
std::int64_t outlier_bytes(std::int64_t vectors, std::int64_t length, double share);

// The vectors are read, outliers written, and their places filled; three operations per element. Unpacking reads the outliers
// and writes them.
OpCall call(const Outliers&);
void run_cpu(const Outliers&);
void run_cuda(const Outliers&, CudaContext&);

// As stored K and V (kernels/storage/stored/stored_code.h).
void stored_arrays(Outliers&, StoredArrays&);

}  // namespace kvlab
