#pragma once

#include <cstdint>

#include "kernels/listed_tokens.h"
#include "kernels/ops.h"

namespace kvlab {

// Takes the extreme numbers out of the listed vectors: of each vector the `share` / 2 largest and as many smallest (each rounded down
// but at least one, so that short vectors have outliers too; ties to the earlier), kept in fp16 with their places, and puts the mean of the
// vector in their stead (GEAR, Kang et al. 2024, arXiv:2403.05527, eq. 3). A vector is one token's channels, or one channel of all entries
// of the row.
struct Outliers {
  ListedTokens tokens;
  bool per_channel = false;  // K; else per token
  double share = 0.02;
  std::uint16_t* value = nullptr;  // [outlier_numbers()] out, fp16, vector by vector
  std::int32_t* place = nullptr;   // [outlier_numbers()] out, within the vector; -1: none
};
// Outliers of one vector of n numbers: 0 for a share of 0, and of a single number.
std::int32_t outliers_of(double share, std::int64_t n);
std::int64_t outlier_numbers(const Outliers&);
// Stored: the number, and its place in 2 bytes (4 where a vector has more than 65,536 numbers).
std::int64_t outlier_bytes(std::int64_t vectors, std::int64_t length, double share);

// The vectors are read, outliers written, and their places filled; three operations per element.
OpCall call(const Outliers&);
void run_cpu(const Outliers&);
void run_cuda(const Outliers&, CudaContext&);

// Puts the outliers back into their places.
struct RestoreOutliers {
  Outliers outliers;
};
OpCall call(const RestoreOutliers&);
void run_cpu(const RestoreOutliers&);
void run_cuda(const RestoreOutliers&, CudaContext&);

}  // namespace kvlab
