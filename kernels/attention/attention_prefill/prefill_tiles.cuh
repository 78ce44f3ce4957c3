#pragma once

#include "kernels/device/cuda/launch.cuh"

namespace kvlab::prefill {

constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;
constexpr int kPageUnit = 16;  // tokens always in one page
constexpr int kListed = 256;   // units of a row listed at once

__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int>(0xFF800000U)); }

// D 16-bit numbers per row, 16-byte chunks permuted against bank conflicts of ldmatrix.
template <int D>
__device__ __forceinline__ int place(int row, int chunk) {
  return row * D + (chunk ^ (row & 7)) * 8;
}

// Divides [0, 2^27) by 1 to 16.
struct Divisor {
  std::int32_t by;
  std::uint32_t multiplier;  // 2^31 / by, rounded up
  Divisor(std::int32_t n = 1)
      :  // NOLINT: a number is one
        by(n),
        multiplier(static_cast<std::uint32_t>(((1LL << 31) + n - 1) / n)) {}
  __device__ __forceinline__ int quotient(int x) const {
    return static_cast<int>((static_cast<std::uint64_t>(static_cast<std::uint32_t>(x)) * multiplier) >> 31);
  }
};

struct Place {
  int prompt = 0, tile = 0;
};

// prompt == prompts: beyond the last tile. Equal in a warp.
template <class TilesOf>
__device__ __forceinline__ Place find_tile(int prompts, int number, TilesOf&& tiles_of) {
  for (int base = 0; base < prompts; base += kWarpSize) {
    const int prompt = base + lane_index();
    const int tiles = prompt < prompts ? tiles_of(prompt) : 0;
    const int end = warp_scan(tiles);
    const unsigned past = __ballot_sync(kAllLanes, end > number);
    if (past != 0) {
      const int lane = __ffs(static_cast<int>(past)) - 1;
      return {base + lane, number - __shfl_sync(kAllLanes, end - tiles, lane)};
    }
    number -= __shfl_sync(kAllLanes, end, kWarpSize - 1);
  }
  return {prompts, 0};
}

// Keys [low, high) and their pages.
struct RowPages {
  const std::int32_t* page;  // of the row's first token
  int page_units;            // units per page
  int low, high;
};

// list[i] = pool place, in units, of unit first + i; 0 if unneeded.
template <int Threads, int Count = kListed>
__device__ __forceinline__ void list_units(const RowPages& row, int first, std::int32_t* list) {
  const auto in_page = static_cast<unsigned>(row.page_units);
#pragma unroll 1
  for (unsigned i = threadIdx.x; i < Count; i += Threads) {
    const unsigned unit = static_cast<unsigned>(first) + i, page = unit / in_page;
    const bool used = static_cast<int>(unit + 1) * kPageUnit > row.low && static_cast<int>(unit) * kPageUnit < row.high;
    list[i] = used ? row.page[page] * row.page_units + static_cast<int>(unit - page * in_page) : 0;
  }
}

// Copies tokens [token, token + Keys) into tiles of keys and, with Values, of values; zeros outside of [low, high). `list` begins at the
// token's unit.
template <int D, int Keys, int Threads, bool Values, class T>
__device__ __forceinline__ void copy_keys(T* tile, const T* k, const T* v, const std::int32_t* list, int token, const RowPages& row) {
  constexpr int kChunks = D / 8, kStep = Threads / kChunks, kUnits = Keys / kPageUnit;
  static_assert(kStep <= kPageUnit && kUnits % 2 == 0);
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, first = static_cast<int>(threadIdx.x) / kChunks;
  const auto from_low = static_cast<unsigned>(token + first - row.low), seen = static_cast<unsigned>(max(row.high - row.low, 0));
  std::int32_t units[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; u += 2) {
    const int2 two = *reinterpret_cast<const int2*>(list + u);
    units[u] = two.x, units[u + 1] = two.y;
  }
  const char* const from_k = reinterpret_cast<const char*>(k + first * D + chunk * 8);
  const char* const from_v = reinterpret_cast<const char*>(v + first * D + chunk * 8);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    constexpr std::int64_t kUnitBytes = 2 * kPageUnit * D;
    const char *const unit_k = from_k + units[u] * kUnitBytes, *const unit_v = from_v + units[u] * kUnitBytes;
#pragma unroll
    for (int i = 0; i < kPageUnit; i += kStep) {
      T* const to = tile + place<D>(first + u * kPageUnit + i, chunk);
      const bool valid = from_low + (u * kPageUnit + i) < seen;
      cp_async<16>(to, unit_k + 2 * i * D, valid);
      if (Values) cp_async<16>(to + Keys * D, unit_v + 2 * i * D, valid);
    }
  }
}

// Rows [first, first + Rows): row t * group + g is query head g at token t. Zeros beyond the last.
template <int D, int Rows, int Threads, class T>
__device__ __forceinline__ void copy_queries(T* tile, const T* q, std::int64_t q_stride, int group, int first, int rows) {
  constexpr int kChunks = D / 8;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) / kChunks; i < Rows; i += Threads / kChunks) {
    const int row = first + i, token = row / group;
    const bool valid = row < rows;
    const T* from = valid ? q + token * q_stride + (row - token * group) * D + chunk * 8 : q;
    cp_async<16>(tile + place<D>(i, chunk), from, valid);
  }
}

// A lane's operand for channels [0, 16); at(place, step): for [16 * step, 16 * step + 16). 8 rows are 16 * D bytes.
template <int D>
__device__ __forceinline__ SharedPlace operand(const void* tile, int row, int chunk) {
  return shared_place(tile) + static_cast<SharedPlace>(row * (2 * D) + (chunk ^ (row & 7)) * 16);
}
__device__ __forceinline__ SharedPlace at(SharedPlace operand, int step) { return operand ^ static_cast<SharedPlace>(32 * step); }

// Operand `a`: 16 rows.
template <int D>
__device__ __forceinline__ SharedPlace rows_operand(const void* tile) {
  return operand<D>(tile, lane_index() % 16, lane_index() / 16);
}
// `b` of two mma: 8 keys in b[0], b[1], the next 8 in b[2], b[3].
template <int D>
__device__ __forceinline__ SharedPlace keys_operand(const void* tile) {
  return operand<D>(tile, lane_index() % 8 + lane_index() / 16 * 8, lane_index() / 8 % 2);
}
// The same over 16 keys, transposed: 8 channels each.
template <int D>
__device__ __forceinline__ SharedPlace values_operand(const void* tile) {
  return operand<D>(tile, lane_index() % 16, lane_index() / 16);
}

// Two mma with neighbouring columns of d.
template <class T>
__device__ __forceinline__ void multiply(float (&low)[4], float (&high)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[4]) {
  const std::uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
  mma_16x8x16<T>(low, a, first);
  mma_16x8x16<T>(high, a, second);
}

}  // namespace kvlab::prefill
