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

// From k q^T. No two blocks write the same number.

template <int RowTiles>
struct KeySums {
  float sum[RowTiles][2][2][2];  // [.., parity of the 8-column tile, column % 2]; only kByHead uses all
  float sum_sq[RowTiles][2], max[RowTiles][2];
};

// x: a thread's two columns; the whole group gets the result.
__device__ __forceinline__ void reduce_group(float (&x)[2], int columns, bool largest) {
  const auto join = [&](float a, float b) { return largest ? fmaxf(a, b) : a + b; };
  if (columns >= 2) x[0] = x[1] = join(x[0], x[1]);
  if (columns >= 4) x[0] = join(x[0], __shfl_xor_sync(kAllLanes, x[0], 1));
  if (columns >= 8) x[0] = join(x[0], __shfl_xor_sync(kAllLanes, x[0], 2));
}

// Hidden logits become -inf.
template <int RowTiles, class T>
__device__ __forceinline__ void hide_keys(float (&s)[RowTiles][kColumns / 8][4], const ScoreArgs<T>& a, int key, const int* seen) {
  const int window = a.window > 0 ? a.window : 0x7FFFFFFF;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int end = seen[8 * n + 2 * (lane_index() % 4) + i] - key;  // relative to the thread's first key
#pragma unroll
      for (int m = 0; m < RowTiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (16 * m + 8 * half >= end || end - (16 * m + 8 * half) > window) s[m][n][2 * half + i] = minus_infinity();
    }
  }
}

template <Scores Kind, int RowTiles, class T>
__device__ __forceinline__ void add_columns(float (&s)[RowTiles][kColumns / 8][4], const ScoreArgs<T>& a, const ScoreWork& w,
                                            const Columns& c, KeySums<RowTiles>& sums) {
  const int lane = lane_index(), key = w.key + warp_index() * 16 * RowTiles + lane / 4;
  if (a.window > 0 || c.seen[0] < w.key + 16 * RowTiles * kScoreWarps) hide_keys(s, a, key, c.seen);
  float wide[RowTiles][2];  // of a group of 16, in two tiles
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
    const int column = 8 * n + 2 * (lane % 4);
    const float2 minus = *reinterpret_cast<const float2*>(c.log_sum + column),
                 weights = *reinterpret_cast<const float2*>(c.weight + column);
#pragma unroll
    for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x[2] = {fast_exp2(fmaf(s[m][n][2 * half], a.scale, -minus.x)), fast_exp2(fmaf(s[m][n][2 * half + 1], a.scale, -minus.y))};
        if constexpr (Kind == Scores::kGrouped) {
          reduce_group(x, a.columns.by, a.group_max);
          if (a.columns.by == 16 && n % 2 == 0) {
            wide[m][half] = x[0];
            continue;
          }
          if (a.columns.by == 16) x[0] = a.group_max ? fmaxf(x[0], wide[m][half]) : x[0] + wide[m][half];
          sums.sum[m][half][0][0] = fmaf(weights.x, x[0], sums.sum[m][half][0][0]);
          const float y = x[0] * a.factor;
          sums.sum_sq[m][half] = fmaf(y, y, sums.sum_sq[m][half]);
          sums.max[m][half] = fmaxf(sums.max[m][half], y);
          if (a.columns.by == 1) {
            sums.sum[m][half][0][0] = fmaf(weights.y, x[1], sums.sum[m][half][0][0]);
            const float z = x[1] * a.factor;
            sums.sum_sq[m][half] = fmaf(z, z, sums.sum_sq[m][half]);
            sums.max[m][half] = fmaxf(sums.max[m][half], z);
          }
        } else if constexpr (Kind == Scores::kByHead) {
          sums.sum[m][half][n % 2][0] = fmaf(weights.x, x[0], sums.sum[m][half][n % 2][0]);
          sums.sum[m][half][n % 2][1] = fmaf(weights.y, x[1], sums.sum[m][half][n % 2][1]);
        } else {
          sums.sum[m][half][0][0] = fmaf(weights.x, x[0], fmaf(weights.y, x[1], sums.sum[m][half][0][0]));
        }
      }
    }
  }
}

__device__ __forceinline__ void put(float* to, float x, bool adds) { *to = adds ? *to + x : x; }

// x[parity of the tile][column % 2] of a key, over four lanes.
template <class T>
__device__ __forceinline__ void write_heads(const ScoreArgs<T>& a, const ScoreWork& w, float (&x)[2][2], int key, bool valid) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (a.columns.by < 16) x[0][i] += x[1][i];
    if (a.columns.by < 8) x[0][i] += __shfl_xor_sync(kAllLanes, x[0][i], 2);
    if (a.columns.by < 4) x[0][i] += __shfl_xor_sync(kAllLanes, x[0][i], 1);
  }
  if (a.columns.by < 2) x[0][0] += x[0][1];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int g = i / 2 * 8 + 2 * (lane_index() % 4) + i % 2;
    if (valid && g < a.group && (g < 8 || a.columns.by == 16))
      put(a.sum + a.first[w.row] * a.group + static_cast<std::int64_t>(g) * w.keys.high + key, x[i / 2][i % 2], a.adds);
  }
}

// Spread over four lanes.
template <Scores Kind, class T>
__device__ __forceinline__ void write_sums(const ScoreArgs<T>& a, float sum, float sum_sq, float largest, std::int64_t to, bool valid) {
  const int quad = lane_index() % 4;
  if (Kind != Scores::kSums && 2 * quad % a.columns.by != 0) sum = sum_sq = 0.0F;  // a group's lanes hold the same
#pragma unroll
  for (int lanes = 1; lanes <= 2; lanes *= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lanes);
    if constexpr (Kind == Scores::kGrouped) {
      sum_sq += __shfl_xor_sync(kAllLanes, sum_sq, lanes);
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
    }
  }
  if (!valid || quad != 0) return;
  if (a.sum != nullptr) put(a.sum + to, sum, a.adds);
  if constexpr (Kind == Scores::kGrouped) {
    if (a.sum_sq != nullptr) put(a.sum_sq + to, sum_sq, a.adds);
    if (a.max != nullptr) a.max[to] = a.adds ? fmaxf(a.max[to], largest) : largest;
  }
}

template <Scores Kind, int RowTiles, class T>
__device__ __forceinline__ void write_keys(const ScoreArgs<T>& a, const ScoreWork& w, KeySums<RowTiles>& sums) {
#pragma unroll
  for (int m = 0; m < RowTiles; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = w.key + (warp_index() * RowTiles + m) * 16 + 8 * half + lane_index() / 4;
      const bool valid = key < w.keys.high;
      if constexpr (Kind == Scores::kByHead)
        write_heads(a, w, sums.sum[m][half], key, valid);
      else
        write_sums<Kind>(a, sums.sum[m][half][0][0], sums.sum_sq[m][half], sums.max[m][half], a.first[w.row] + key, valid);
    }
  }
}

// `shared` [2, kScoreWarps, kColumns].
template <int RowTiles, class T>
__device__ __forceinline__ void write_columns(float (&s)[RowTiles][kColumns / 8][4], const ScoreArgs<T>& a, const ScoreWork& w,
                                              const int* seen, int first_column, float* shared) {
  const int lane = lane_index(), warp = warp_index(), key = w.key + warp * 16 * RowTiles + lane / 4;
  if (a.window > 0 || seen[0] < w.key + 16 * RowTiles * kScoreWarps) hide_keys(s, a, key, seen);
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float top = s[0][n][i];
#pragma unroll
      for (int m = 0; m < RowTiles; ++m) top = fmaxf(fmaxf(top, s[m][n][i]), s[m][n][2 + i]);
#pragma unroll
      for (int lanes = 4; lanes <= 16; lanes *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, lanes));
      const float reference = top == minus_infinity() ? 0.0F : -top * a.scale;
      float sum = 0;
#pragma unroll
      for (int m = 0; m < RowTiles; ++m)
        sum += fast_exp2(fmaf(s[m][n][i], a.scale, reference)) + fast_exp2(fmaf(s[m][n][2 + i], a.scale, reference));
#pragma unroll
      for (int lanes = 4; lanes <= 16; lanes *= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
      float* const to = shared + warp * kColumns + 8 * n + 2 * lane + i;
      if (lane < 4) to[0] = top * a.scale, to[kScoreWarps * kColumns] = sum;
    }
  }
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (column >= kColumns || first_column + column >= w.columns) return;
  const int t = a.columns.quotient(first_column + column), g = first_column + column - t * a.columns.by;
  if (g >= a.group) return;
  float top = minus_infinity(), sum = 0;
  for (int i = 0; i < kScoreWarps; ++i) top = fmaxf(top, shared[i * kColumns + column]);
  for (int i = 0; i < kScoreWarps; ++i) {
    const float part = shared[i * kColumns + column];
    if (part != minus_infinity()) sum += fast_exp2(part - top) * shared[(kScoreWarps + i) * kColumns + column];
  }
  const std::int64_t line = ((w.first_token + w.begin + t) * a.kv_heads + w.head) * a.group + g;
  a.parts[w.key / (16 * RowTiles * kScoreWarps) * a.tokens * a.kv_heads * a.group + line] = make_float2(top, sum);
}

// A warp's keys as operands.
template <class T, int D, int RowTiles>
struct ScoreKeys {
  std::uint32_t k[RowTiles][D / 16][4];

  __device__ __forceinline__ void load(const T* tile) {
    const SharedPlace rows = rows_operand<D>(tile + warp_index() * 16 * RowTiles * D);
#pragma unroll
    for (int m = 0; m < RowTiles; ++m)
#pragma unroll
      for (int step = 0; step < D / 16; ++step) ldmatrix_x4(k[m][step], at(rows, step) + 32 * D * m);
  }

  // s += k q^T with Parts tiles of columns (queries, then rests), `bytes` apart.
  template <int Parts>
  __device__ __forceinline__ void multiply_columns(float (&s)[RowTiles][kColumns / 8][4], SharedPlace columns, int bytes) const {
#pragma unroll
    for (int part = 0; part < Parts; ++part) {
#pragma unroll
      for (int step = 0; step < D / 16; ++step) {
#pragma unroll
        for (int n = 0; n < kColumns / 16; ++n) {
          std::uint32_t b[4];
          ldmatrix_x4(b, at(columns, step) + (bytes + 2 * part * kColumns * D) + 32 * D * n);
#pragma unroll
          for (int m = 0; m < RowTiles; ++m) multiply<T>(s[m][2 * n], s[m][2 * n + 1], k[m][step], b);
        }
      }
    }
  }
};

// Grid [key tiles * rows], most seen keys first. Shared memory: a stage of columns, and the keys, later the second stage.
template <class T, int D, int RowTiles, Scores Kind, bool Rest>
__global__ void __launch_bounds__(kScoreThreads, D == 64 || (D == 128 && Kind == Scores::kSums) ? 3 : 2) key_scores(ScoreArgs<T> a) {
  constexpr int kKeys = 16 * RowTiles * kScoreWarps, kStage = kColumns * D * (Rest ? 2 : 1), kUnits = kKeys / kPageUnit;
  KVLAB_DYNAMIC_SHARED(T, stages);
  KVLAB_SHARED(std::int32_t, list, kUnits);
  KVLAB_SHARED(float, log_sum, 2 * kColumns);
  KVLAB_SHARED(float, weight, 2 * kColumns);
  KVLAB_SHARED(int, seen, 2 * kColumns);
  KVLAB_SHARED(float, warps, Kind == Scores::kLogSums ? 2 * kScoreWarps * kColumns : 1);
  KVLAB_SHARED(ScoreWork, work, 1);
  if (!share_score_work<kKeys>(a, work)) return;
  const ScoreWork& w = work[0];
  const Columns known{log_sum, weight, seen};
  const int tiles = (w.columns + kColumns - 1) / kColumns, column = static_cast<int>(threadIdx.x) % kColumns;
  list_units<kScoreThreads, kUnits>(w.keys, w.key / kPageUnit, list);
  __syncthreads();
  copy_keys<D, kKeys, kScoreThreads, false>(stages + kStage, a.k, a.k, list, w.key, w.keys);
  cp_async_commit();
  copy_stage<D, Rest>(stages, a, w, 0);
  cp_async_commit();
  known.note(0, find_column(a, w, column));
  cp_async_wait<1>();
  __syncthreads();
  ScoreKeys<T, D, RowTiles> keys;
  keys.load(stages + kStage);
  KeySums<RowTiles> sums{};
  const SharedPlace columns = keys_operand<D>(stages);
  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<0>();
    __syncthreads();
    Column next{};
    if (tile + 1 < tiles) {
      copy_stage<D, Rest>(stages, a, w, tile + 1);
      next = find_column(a, w, (tile + 1) * kColumns + column);
    }
    cp_async_commit();
    float s[RowTiles][kColumns / 8][4] = {};
    keys.template multiply_columns<Rest ? 2 : 1>(s, columns, 2 * (tile % 2 * kStage));
    if constexpr (Kind == Scores::kLogSums)
      write_columns(s, a, w, known.of(tile).seen, tile * kColumns, warps);
    else
      add_columns<Kind>(s, a, w, known.of(tile), sums);
    known.note(tile + 1, next);
  }
  cp_async_wait<0>();
  if constexpr (Kind != Scores::kLogSums) write_keys<Kind>(a, w, sums);
}

constexpr std::int64_t kScoreStaticBytes = 4096;  // upper bound

constexpr std::size_t score_bytes(int head_dim, int row_tiles, bool rest) {
  const int stage = 2 * kColumns * head_dim * (rest ? 2 : 1), keys = 2 * 16 * row_tiles * kScoreWarps * head_dim;
  return static_cast<std::size_t>(stage + (keys > stage ? keys : stage));
}

}  // namespace kvlab::prefill
