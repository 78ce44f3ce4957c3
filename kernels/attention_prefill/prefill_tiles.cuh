#pragma once

#include "kernels/cuda/launch.cuh"

// Pieces of the kernels that multiply queries with paged keys on tensor cores. For .cu files.
namespace kvlab::prefill {

constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;
constexpr int kPageUnit = 16;  // tokens that always lie in one page
constexpr int kListed = 256;   // units of a row whose places a block holds at a time

__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int>(0xFF800000U)); }

// A tile of 16-bit numbers in shared memory has D per row. The 16-byte chunks of a row are permuted by its number, so that the eight
// rows that ldmatrix takes from one column of chunks lie in different banks.
template <int D>
__device__ __forceinline__ int place(int row, int chunk) {
  return row * D + (chunk ^ (row & 7)) * 8;
}

struct Place {
  int prompt = 0, tile = 0;
};

// Which prompt's which tile is the number'th of all; tiles are as many rows long as said and rows are tokens times `group`. A prompt
// beyond the last: there are fewer. The same for all lanes of the calling warp.
__device__ __forceinline__ Place find_tile(const std::int32_t* query_first, int prompts, int group, int rows_per_tile, int number) {
  for (int base = 0; base < prompts; base += kWarpSize) {
    const int prompt = base + lane_index();
    const int tiles = prompt < prompts ? ((query_first[prompt + 1] - query_first[prompt]) * group + rows_per_tile - 1) / rows_per_tile : 0;
    int end = tiles;
#pragma unroll
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const int below = __shfl_up_sync(kAllLanes, end, offset);
      if (lane_index() >= offset) end += below;
    }
    const unsigned past = __ballot_sync(kAllLanes, end > number);
    if (past != 0) {
      const int lane = __ffs(static_cast<int>(past)) - 1;
      return {base + lane, number - __shfl_sync(kAllLanes, end - tiles, lane)};
    }
    number -= __shfl_sync(kAllLanes, end, kWarpSize - 1);
  }
  return {prompts, 0};
}

// Keys [low, high) of a row and where they lie.
struct RowPages {
  const std::int32_t* page;  // of the row's first token
  int page_units;            // units of kPageUnit tokens per page
  int low, high;
};

// list[i] = place in the pool, in units, of the row's unit first + i; 0 for units that are not asked for.
template <int Threads>
__device__ __forceinline__ void list_units(const RowPages& row, int first, std::int32_t* list) {
  for (int i = static_cast<int>(threadIdx.x); i < kListed; i += Threads) {
    const int unit = first + i;
    const bool used = (unit + 1) * kPageUnit > row.low && unit * kPageUnit < row.high;
    list[i] = used ? row.page[unit / row.page_units] * row.page_units + unit % row.page_units : 0;
  }
}

// Starts to copy tokens [token, token + Keys) of the row out of a pool into a tile; zeros where a token is outside of [low, high).
// list: that of the token's unit.
template <int D, int Keys, int Threads, class T>
__device__ __forceinline__ void copy_keys(T* tile, const T* pool, const std::int32_t* list, int token, const RowPages& row) {
  constexpr int kChunks = D / 8, kStep = Threads / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks, first = static_cast<int>(threadIdx.x) / kChunks;
  constexpr int kTogether = kStep > kPageUnit ? kStep : kPageUnit;
#pragma unroll
  for (int base = 0; base < Keys; base += kTogether) {
    const int at = base + first;
    const T* from = pool + static_cast<std::int64_t>(list[at / kPageUnit]) * (kPageUnit * D) + first % kPageUnit * D + chunk * 8;
#pragma unroll
    for (int i = 0; i < kTogether; i += kStep)
      cp_async<16>(tile + place<D>(at + i, chunk), from + i * D, token + at + i >= row.low && token + at + i < row.high);
  }
}

// Starts to copy the rows [first, first + Rows) of a prompt and KV head: row t * group + g is query head g of the head's group at the
// prompt's token t. Zeros beyond the last row.
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

// The operand `a` of an mma: rows [row, row + 16), channels [16 * step, 16 * step + 16) of a tile.
template <int D, class T>
__device__ __forceinline__ void load_rows(std::uint32_t (&a)[4], const T* tile, int row, int step) {
  const int lane = lane_index();
  ldmatrix_x4(a, tile + (row + lane % 16) * D + (((2 * step) ^ (lane / 16) ^ (lane & 7)) * 8));
}

// The operands `b` of two mma: keys [key, key + 8) in b[0], b[1], the next 8 in b[2], b[3]; channels as above.
template <int D, class T>
__device__ __forceinline__ void load_keys(std::uint32_t (&b)[4], const T* tile, int key, int step) {
  const int lane = lane_index();
  ldmatrix_x4(b, tile + (key + lane % 8 + lane / 16 * 8) * D + (((2 * step) ^ (lane / 8 % 2) ^ (lane & 7)) * 8));
}

// The operands `b` of two mma that sum over the keys [key, key + 16): channels [16 * step, 16 * step + 8) in b[0], b[1], the next 8 in
// b[2], b[3].
template <int D, class T>
__device__ __forceinline__ void load_values(std::uint32_t (&b)[4], const T* tile, int key, int step) {
  const int lane = lane_index();
  ldmatrix_x4_trans(b, tile + (key + lane % 16) * D + (((2 * step) ^ (lane / 16) ^ (lane & 7)) * 8));
}

// Two mma with neighbouring columns of d.
template <class T>
__device__ __forceinline__ void multiply(float (&low)[4], float (&high)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[4]) {
  const std::uint32_t first[2] = {b[0], b[1]}, second[2] = {b[2], b[3]};
  mma_16x8x16<T>(low, a, first);
  mma_16x8x16<T>(high, a, second);
}

}  // namespace kvlab::prefill
