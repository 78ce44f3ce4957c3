#pragma once

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/launch.cuh"

namespace kvlab::attending {

constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
constexpr int kEach = 8;      // per lane
constexpr int kTogether = 4;  // tokens loaded at once
constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;
constexpr float kNothing = -INFINITY;

struct DeviceSegment {
  DeviceRows kv;
  ElementType type;
  const std::int64_t* index_first;  // null: all tokens
  const std::int32_t* index;
  const float *log_weight, *head_log_weight, *token_log_weight;

  __device__ __forceinline__ int tokens(int row) const {
    return index_first != nullptr ? static_cast<int>(index_first[row + 1] - index_first[row]) : kv.len[row];
  }
  __device__ __forceinline__ std::int64_t begin(int row) const { return index_first != nullptr ? index_first[row] : kv.first[row]; }
};

// Line t * group + g of a row: query head g of the group in query t.
struct AttendArgs {
  const DeviceSegment* segments;
  const float* const* q;         // [sequences]
  float* const* out;             // [sequences]
  float* const* log_sum;         // [sequences], may be null
  float* const* probabilities;   // [rows], may be null
  const std::int32_t* first;     // [sequences + 1] tokens before a sequence's
  const std::int32_t* position;  // [sequences] of the first query
  float* parts;                  // [splits, lines of all rows, head_dim]
  float* part_sums;              // [splits, lines of all rows] natural
  std::int64_t lines;            // of all rows
  std::int32_t num_segments, kv_heads, group, head_dim, splits, line_blocks;
  std::int32_t window;  // the largest number: none
  float scale;          // times log2(e)
};

struct Lines {
  int row, sequence, begin, end;  // lines [begin, end) of the row

  // Index into [tokens of the sequence, q_heads].
  __device__ __forceinline__ std::int64_t local(const AttendArgs& a, int line) const {
    return static_cast<std::int64_t>(line / a.group) * a.kv_heads * a.group + row % a.kv_heads * a.group + line % a.group;
  }
  __device__ __forceinline__ std::int64_t global(const AttendArgs& a, int line) const {
    return static_cast<std::int64_t>(a.first[sequence]) * a.kv_heads * a.group + local(a, line);
  }
};

// Zeros beyond head_dim.
template <class T>
__device__ __forceinline__ void load8(const T* p, int channel, int head_dim, float (&x)[kEach]) {
  if (head_dim % kEach == 0 && channel < head_dim) return kvlab::load8(p + channel, x);
#pragma unroll
  for (int c = 0; c < kEach; ++c) x[c] = channel + c < head_dim ? to_float(p[channel + c]) : 0.0F;
}

// Lane l: channels [8 l, 8 l + 8) of sums and of queries, times scale log2(e).
template <int Width, int Count>
struct LineState {
  float q[Count][kEach], out[Count][kEach], top[Count], sum[Count];
  int position[Count];
};

// -1: none.
__device__ __forceinline__ void find_slots(const DeviceSegment& s, int row, int first, int end, std::int64_t (&slot)[kTogether]) {
#pragma unroll
  for (int u = 0; u < kTogether; ++u) {
    const int i = first + u;
    slot[u] = -1;
    if (i < end) slot[u] = s.kv.slot(row, s.index_first != nullptr ? s.index[s.index_first[row] + i] : i);
  }
}

// In log2 units; -inf: hidden.
template <class T, int Width, int Count>
__device__ __forceinline__ void find_logits(const AttendArgs& a, const DeviceSegment& s, const Lines& lines,
                                            const LineState<Width, Count>& x, int token, const std::int64_t (&slot)[kTogether],
                                            float (&z)[kTogether][Count]) {
  const int channel = lane_index() % Width * kEach;
#pragma unroll
  for (int u = 0; u < kTogether; ++u) {
    float k[kEach] = {};
    if (slot[u] >= 0) load8(static_cast<const T*>(s.kv.k) + slot[u] * a.head_dim, channel, a.head_dim, k);
#pragma unroll
    for (int l = 0; l < Count; ++l) {
      z[u][l] = 0;
#pragma unroll
      for (int c = 0; c < kEach; ++c) z[u][l] = fmaf(x.q[l][c], k[c], z[u][l]);
    }
  }
  const float row_weight = s.log_weight != nullptr ? s.log_weight[lines.row] : 0.0F;
  int position[kTogether];
#pragma unroll
  for (int u = 0; u < kTogether; ++u) position[u] = slot[u] >= 0 ? s.kv.position[slot[u]] : 0;
#pragma unroll
  for (int l = 0; l < Count; ++l) {
    float weight = row_weight;
    if (s.head_log_weight != nullptr) weight += s.head_log_weight[lines.row * a.group + (lines.begin + l) % a.group];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
#pragma unroll
      for (int lanes = 1; lanes < Width; lanes *= 2) z[u][l] += __shfl_xor_sync(kAllLanes, z[u][l], lanes);
      const bool sees = position[u] <= x.position[l] && position[u] > x.position[l] - a.window;
      float own = weight;
      if (s.token_log_weight != nullptr && slot[u] >= 0)
        own += s.token_log_weight[(s.begin(lines.row) + token + u) * a.group + (lines.begin + l) % a.group];
      z[u][l] = slot[u] >= 0 && sees && lines.begin + l < lines.end ? fmaf(own, kLog2E, z[u][l]) : kNothing;
    }
  }
}

// Online softmax (Milakov and Gimelshein 2018).
template <class T, int Width, int Count>
__device__ __forceinline__ void take_tokens(const AttendArgs& a, const DeviceSegment& s, const Lines& lines, LineState<Width, Count>& x,
                                            int token, const std::int64_t (&slot)[kTogether]) {
  const int channel = lane_index() % Width * kEach;
  float z[kTogether][Count];
  find_logits<T>(a, s, lines, x, token, slot, z);
#pragma unroll
  for (int l = 0; l < Count; ++l) {
    float top = x.top[l];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) top = fmaxf(top, z[u][l]);
    const float reference = top == kNothing ? 0.0F : top, shrink = fast_exp2(x.top[l] - reference);
    x.top[l] = top;
    x.sum[l] *= shrink;
#pragma unroll
    for (int c = 0; c < kEach; ++c) x.out[l][c] *= shrink;
#pragma unroll
    for (int u = 0; u < kTogether; ++u) z[u][l] = fast_exp2(z[u][l] - reference), x.sum[l] += z[u][l];
  }
#pragma unroll
  for (int u = 0; u < kTogether; ++u) {
    float v[kEach] = {};
    if (slot[u] >= 0) load8(static_cast<const T*>(s.kv.v) + slot[u] * a.head_dim, channel, a.head_dim, v);
#pragma unroll
    for (int l = 0; l < Count; ++l)
#pragma unroll
      for (int c = 0; c < kEach; ++c) x.out[l][c] = fmaf(z[u][l], v[c], x.out[l][c]);
  }
}

template <int Width, int Count>
__device__ __forceinline__ void start_lines(const AttendArgs& a, const Lines& lines, LineState<Width, Count>& x) {
#pragma unroll
  for (int l = 0; l < Count; ++l) {
    const int line = min(lines.begin + l, lines.end - 1);
    load8(a.q[lines.sequence] + lines.local(a, line) * a.head_dim, lane_index() % Width * kEach, a.head_dim, x.q[l]);
#pragma unroll
    for (int c = 0; c < kEach; ++c) x.q[l][c] *= a.scale, x.out[l][c] = 0.0F;
    x.position[l] = a.position[lines.sequence] + line / a.group;
    x.top[l] = kNothing, x.sum[l] = 0.0F;
  }
}

// f(type, segment, place in the row's columns, first token, slots) for columns [begin, end), by a whole warp.
template <int Width, class F>
__device__ __forceinline__ void for_columns(const AttendArgs& a, int row, int begin, int end, F&& f) {
  constexpr int kGroups = kThreads / Width;
  const int mine = static_cast<int>(threadIdx.x) / Width * kTogether;
  int before = 0;
  for (int i = 0; i < a.num_segments && before < end; ++i) {
    const DeviceSegment& s = a.segments[i];
    const int n = s.tokens(row), last = min(end - before, n);
    for (int first = max(begin - before, 0); first < last; first += kGroups * kTogether) {
      std::int64_t slot[kTogether];
      find_slots(s, row, first + mine, last, slot);
      if (s.type == ElementType::kF32)
        f(float{}, s, before + first + mine, first + mine, slot);
      else if (s.type == ElementType::kF16)
        f(f16{}, s, before + first + mine, first + mine, slot);
      else
        f(bf16{}, s, before + first + mine, first + mine, slot);
    }
    before += n;
  }
}

__device__ __forceinline__ int row_columns(const AttendArgs& a, int row) {
  int n = 0;
  for (int i = 0; i < a.num_segments; ++i) n += a.segments[i].tokens(row);
  return n;
}

template <int Count>
__device__ __forceinline__ bool find_lines(const AttendArgs& a, Lines& lines) {
  lines.row = static_cast<int>(blockIdx.x) / a.line_blocks;
  lines.sequence = lines.row / a.kv_heads;
  lines.begin = static_cast<int>(blockIdx.x) % a.line_blocks * Count;
  lines.end = (a.first[lines.sequence + 1] - a.first[lines.sequence]) * a.group;
  return lines.begin < lines.end;
}

template <int Width, int Count>
__device__ __forceinline__ void join_groups(LineState<Width, Count>& x) {
#pragma unroll
  for (int lanes = Width; lanes < kWarpSize; lanes *= 2) {
#pragma unroll
    for (int l = 0; l < Count; ++l) {
      const float other = __shfl_xor_sync(kAllLanes, x.top[l], lanes), top = fmaxf(x.top[l], other);
      const float reference = top == kNothing ? 0.0F : top, mine = fast_exp2(x.top[l] - reference), its = fast_exp2(other - reference);
      x.top[l] = top;
      x.sum[l] = x.sum[l] * mine + __shfl_xor_sync(kAllLanes, x.sum[l], lanes) * its;
#pragma unroll
      for (int c = 0; c < kEach; ++c) x.out[l][c] = x.out[l][c] * mine + __shfl_xor_sync(kAllLanes, x.out[l][c], lanes) * its;
    }
  }
}

// Grid [rows * line_blocks, splits].
template <int Width, int Count>
__global__ void __launch_bounds__(kThreads, Count == 1   ? 6
                                            : Count == 4 ? 3
                                                         : 2) attend_lines(AttendArgs a) {
  constexpr int kChannels = Width * kEach;
  KVLAB_SHARED(float, outs, kWarps* Count* kChannels);
  KVLAB_SHARED(float, tops, kWarps* Count);
  KVLAB_SHARED(float, sums, kWarps* Count);
  Lines lines;
  if (!find_lines<Count>(a, lines)) return;
  LineState<Width, Count> x;
  start_lines(a, lines, x);
  const int n = row_columns(a, lines.row), each = (n + a.splits - 1) / a.splits, begin = static_cast<int>(blockIdx.y) * each;
  for_columns<Width>(a, lines.row, begin, min(begin + each, n), [&](auto zero, const DeviceSegment& s, int, int token, const auto& slot) {
    take_tokens<decltype(zero)>(a, s, lines, x, token, slot);
  });
  join_groups(x);
  if (lane_index() < Width) {
#pragma unroll
    for (int l = 0; l < Count; ++l) {
#pragma unroll
      for (int c = 0; c < kEach; ++c) outs[(warp_index() * Count + l) * kChannels + lane_index() * kEach + c] = x.out[l][c];
      if (lane_index() == 0) tops[warp_index() * Count + l] = x.top[l], sums[warp_index() * Count + l] = x.sum[l];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < Count * kChannels; i += kThreads) {
    const int l = i / kChannels, c = i % kChannels;
    if (lines.begin + l >= lines.end || c >= a.head_dim) continue;
    float top = kNothing, sum = 0, out = 0;
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, tops[w * Count + l]);
    for (int w = 0; w < kWarps && top != kNothing; ++w) {
      const float weight = fast_exp2(tops[w * Count + l] - top);
      sum += weight * sums[w * Count + l], out += weight * outs[(w * Count + l) * kChannels + c];
    }
    const std::int64_t line = blockIdx.y * a.lines + lines.global(a, lines.begin + l);
    a.parts[line * a.head_dim + c] = sum == 0.0F ? 0.0F : out / sum;
    if (c == 0) a.part_sums[line] = sum == 0.0F ? kNothing : (top + log2f(sum)) * kLn2;
  }
}

// Grid [tokens of all sequences, q_heads]. line_sums [lines of all rows].
static __global__ void __launch_bounds__(64) join_splits(AttendArgs a, const std::int32_t* sequence, float* line_sums) {
  const int token = static_cast<int>(blockIdx.x), s = sequence[token], heads = a.kv_heads * a.group;
  const std::int64_t line = static_cast<std::int64_t>(token) * heads + blockIdx.y;
  const std::int64_t local = static_cast<std::int64_t>(token - a.first[s]) * heads + blockIdx.y;
  float top = kNothing, sum = 0;
  for (int p = 0; p < a.splits; ++p) top = fmaxf(top, a.part_sums[p * a.lines + line]);
  for (int p = 0; p < a.splits && top != kNothing; ++p) sum += expf(a.part_sums[p * a.lines + line] - top);
  for (int c = static_cast<int>(threadIdx.x); c < a.head_dim; c += static_cast<int>(blockDim.x)) {
    float x = 0;
    for (int p = 0; p < a.splits && top != kNothing; ++p)
      x += expf(a.part_sums[p * a.lines + line] - top) * a.parts[(p * a.lines + line) * a.head_dim + c];
    a.out[s][local * a.head_dim + c] = top == kNothing ? 0.0F : x / sum;
  }
  if (threadIdx.x != 0) return;
  line_sums[line] = top == kNothing ? kNothing : top + logf(sum);
  if (a.log_sum != nullptr) a.log_sum[s][local] = line_sums[line];
}

// Grid [rows * line_blocks, blocks of columns].
template <int Width, int Count>
__global__ void __launch_bounds__(kThreads, Count == 1   ? 6
                                            : Count == 4 ? 3
                                                         : 2) attend_probabilities(AttendArgs a, const float* line_sums, int columns) {
  Lines lines;
  if (!find_lines<Count>(a, lines)) return;
  LineState<Width, Count> x;
  start_lines(a, lines, x);
  const int n = row_columns(a, lines.row), begin = static_cast<int>(blockIdx.y) * columns;
  for_columns<Width>(a, lines.row, begin, min(begin + columns, n),
                     [&](auto zero, const DeviceSegment& s, int column, int token, const auto& slot) {
                       float z[kTogether][Count];
                       find_logits<decltype(zero)>(a, s, lines, x, token, slot, z);
                       if (lane_index() % Width != 0) return;
#pragma unroll
                       for (int l = 0; l < Count; ++l) {
                         if (lines.begin + l >= lines.end) continue;
                         const float log_sum = line_sums[lines.global(a, lines.begin + l)] * kLog2E;
#pragma unroll
                         for (int u = 0; u < kTogether; ++u)
                           if (slot[u] >= 0)
                             a.probabilities[lines.row][static_cast<std::int64_t>(lines.begin + l) * n + column + u] =
                                 z[u][l] == kNothing ? 0.0F : fast_exp2(z[u][l] - log_sum);
                       }
                     });
}

}  // namespace kvlab::attending
