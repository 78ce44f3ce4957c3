#pragma once

#include "kernels/attention/attention_prefill/prefill_tiles.cuh"

namespace kvlab::prefill {

constexpr int kScoreWarps = 4, kScoreThreads = kScoreWarps * kWarpSize;
constexpr int kColumns = 64;  // query heads of queries, per tile

// kLogSums: largest logit and sum of exponentials per column. kSums: weight times probability over all columns. kGrouped: group sum or
// maximum x, then weight times x, x^2 and largest x. kByHead: per query head.
enum class Scores : std::uint8_t { kLogSums, kSums, kGrouped, kByHead };

template <class T>
struct ScoreArgs {
  const T *q, *q_rest;              // [tokens, q_heads, head_dim]; q_rest: rounding error of q, may be null
  const T* k;                       // pages
  const std::int32_t* query_first;  // [prompts + 1]
  const std::int32_t* kv_before;    // [rows]: query t sees kv_before + t + 1 tokens; null: `visible`
  const std::int32_t* visible;      // [tokens, kv_heads], ascending along a prompt
  const std::int32_t* len;          // [rows]; null: kv_before and the prompt's tokens
  const std::int32_t *page_begin, *page;
  const std::int64_t* first;  // [rows]
  const float* log_sum;       // [tokens, q_heads]
  float2* parts;              // [key tiles, tokens, q_heads] kLogSums: largest logit times scale, sum
  float *sum, *sum_sq, *max;  // [tokens of all rows], may be null; kByHead: sum [group, len] per row
  std::int64_t q_stride, tokens;
  std::int32_t rows, kv_heads, group, page_units;
  Divisor columns;      // per token: group, rounded up to a power of two
  std::int32_t window;  // last tokens visible; 0: all
  std::int32_t last;    // last queries of a prompt that count; 0: all
  std::int32_t visible_offset;
  bool weigh_by_visible, group_max, adds;
  float scale;   // times log2(e)
  float factor;  // of probabilities
};

struct ScoreWork {
  RowPages keys;
  std::int64_t first_token;                    // of the prompt
  int row, head, key, before, begin, columns;  // from query `begin` on
};

struct Column {
  float log_sum, weight;  // log_sum times log2(e); +inf: does not count
  int seen;
};

template <class T>
__device__ __forceinline__ Column find_column(const ScoreArgs<T>& a, const ScoreWork& w, int column) {
  Column c{-minus_infinity(), 0.0F, 0};
  if (column >= w.columns) return c;
  const int quotient = a.columns.quotient(column), t = w.begin + quotient, g = column - quotient * a.columns.by;
  const std::int64_t token = w.first_token + t;
  c.seen = a.visible != nullptr ? a.visible[token * a.kv_heads + w.head] : w.before + t + 1;
  c.weight = a.weigh_by_visible ? static_cast<float>(c.seen + a.visible_offset) * a.factor : a.factor;
  if (g < a.group && a.log_sum != nullptr) {
    const float log_sum = a.log_sum[(token * a.kv_heads + w.head) * a.group + g];
    if (log_sum != minus_infinity()) c.log_sum = log_sum * kLog2E;
  }
  return c;
}

// For two successive tiles.
struct Columns {
  float *log_sum, *weight;
  int* seen;

  __device__ __forceinline__ Columns of(int tile) const {
    const int at = tile % 2 * kColumns;
    return {log_sum + at, weight + at, seen + at};
  }
  // A thread per column.
  __device__ __forceinline__ void note(int tile, const Column& c) const {
    const int at = tile % 2 * kColumns + static_cast<int>(threadIdx.x);
    if (threadIdx.x < kColumns) log_sum[at] = c.log_sum, weight[at] = c.weight, seen[at] = c.seen;
  }
};

// False: no such keys, or none seen.
template <int Keys, class T>
__device__ __forceinline__ bool find_score_work(const ScoreArgs<T>& a, ScoreWork& w) {
  const int tile = static_cast<int>(blockIdx.x) / a.rows;
  w.row = static_cast<int>(blockIdx.x) - tile * a.rows;
  const int prompt = w.row / a.kv_heads;
  w.head = w.row - prompt * a.kv_heads;
  w.key = tile * Keys;
  w.first_token = a.query_first[prompt];
  const int queries = a.query_first[prompt + 1] - a.query_first[prompt];
  w.before = a.kv_before != nullptr ? a.kv_before[w.row] : 0;
  w.keys.page = a.page + a.page_begin[w.row];
  w.keys.page_units = a.page_units;
  w.keys.low = 0;
  w.keys.high = a.len != nullptr ? a.len[w.row] : w.before + queries;
  w.begin = a.last > 0 ? max(0, queries - a.last) : 0;
  if (a.kv_before != nullptr) w.begin = max(w.begin, w.key - w.before);
  const int end = a.window > 0 && a.kv_before != nullptr ? min(queries, w.key + Keys - 1 + a.window - w.before) : queries;
  w.columns = (end - w.begin) * a.columns.by;
  return w.key < w.keys.high;
}

// All threads call it.
template <int Keys, class T>
__device__ __forceinline__ bool share_score_work(const ScoreArgs<T>& a, ScoreWork* shared) {
  ScoreWork found;
  if (!find_score_work<Keys>(a, found)) return false;
  if (threadIdx.x == 0) *shared = found;
  __syncthreads();
  return true;
}

template <int D, class T>
__device__ __forceinline__ void copy_columns(T* tile, const T* q, const ScoreArgs<T>& a, const ScoreWork& w, int column) {
  constexpr int kChunks = D / 8;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  q += (w.first_token + w.begin) * a.q_stride + static_cast<std::int64_t>(w.head) * a.group * D;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) / kChunks; i < kColumns; i += kScoreThreads / kChunks) {
    const int at = column + i, token = a.columns.quotient(at), g = at - token * a.columns.by;
    const bool valid = at < w.columns && g < a.group;
    cp_async<16>(tile + place<D>(i, chunk), valid ? q + token * a.q_stride + g * D + chunk * 8 : q, valid);
  }
}

template <int D, bool Rest, class T>
__device__ __forceinline__ void copy_stage(T* stages, const ScoreArgs<T>& a, const ScoreWork& w, int tile) {
  T* const to = stages + tile % 2 * (kColumns * D * (Rest ? 2 : 1));
  copy_columns<D>(to, a.q, a, w, tile * kColumns);
  if constexpr (Rest) copy_columns<D>(to + kColumns * D, a.q_rest, a, w, tile * kColumns);
}

}  // namespace kvlab::prefill
