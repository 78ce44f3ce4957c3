#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/select/page_scores/page_scores.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize, kUnitsInFlight = 2, kUnitsPerWarp = 16;

// sum_c over_c * high_c + under_c * low_c: the larger product has the bound on the query's side. kDot: no low side.
struct Sides {
  float over, under;
};
__device__ __forceinline__ Sides sides_of(const UnitScores& a, float q) {
  if (a.kind == UnitScores::Kind::kBound) return {fmaxf(q, 0.0F), fminf(q, 0.0F)};
  if (a.kind == UnitScores::Kind::kBlend) return {a.max_share * q, (1.0F - a.max_share) * q};
  return {q, 0.0F};
}

__device__ __forceinline__ void take_head(const UnitScores& a, const UnitRow& row, int i, int head, float z, float& reduced) {
  if (a.heads == UnitScores::Heads::kEach) {
    row.out[static_cast<std::int64_t>(head) * row.n + i] = z;
    return;
  }
  if (a.heads == UnitScores::Heads::kMean) z /= static_cast<float>(a.group);
  if (head == 0)
    reduced = z;
  else
    reduced = a.heads == UnitScores::Heads::kMax ? fmaxf(reduced, z) : reduced + z;
  if (head == a.group - 1) row.out[i] = reduced;
}

// Zero-padded.
__device__ __forceinline__ float4 load_side(const float* x, int c, int d, bool wide) {
  if (wide) return c < d ? *reinterpret_cast<const float4*>(x + c) : make_float4(0, 0, 0, 0);
  return make_float4(c < d ? x[c] : 0, c + 1 < d ? x[c + 1] : 0, c + 2 < d ? x[c + 2] : 0, c + 3 < d ? x[c + 3] : 0);
}
__device__ __forceinline__ float dot4(const float4& x, const float4& y) { return x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w; }

// queries [group, 2, Padded], shared. All threads call it.
template <int Padded>
__device__ __forceinline__ void load_queries(const UnitScores& a, const float* query, float* queries) {
  for (int i = threadIdx.x; i < a.group * Padded; i += kThreads) {
    const int head = i / Padded, c = i % Padded;
    const Sides sides = c < a.head_dim ? sides_of(a, query[head * a.head_dim + c]) : Sides{0, 0};
    queries[2 * head * Padded + c] = sides.over;
    queries[(2 * head + 1) * Padded + c] = sides.under;
  }
}

// Lanes lanes share a unit, four channels each (Spans times).
template <int Lanes, int Spans, bool TwoSided>
struct Summaries {
  static constexpr int kPadded = Lanes * Spans * 4;
  float4 high[kUnitsInFlight][Spans], low[kUnitsInFlight][Spans];

  static __device__ __forceinline__ int channel(int span) { return (span * Lanes + lane_index() % Lanes) * 4; }

  __device__ __forceinline__ void load(int u, const float* summary, int d, bool wide) {
#pragma unroll
    for (int s = 0; s < Spans; ++s) {
      high[u][s] = load_side(TwoSided ? summary + d : summary, channel(s), d, wide);
      if constexpr (TwoSided) low[u][s] = load_side(summary, channel(s), d, wide);
    }
  }

  // Over the lane's channels.
  __device__ __forceinline__ void multiply(const float* queries, float (&z)[kUnitsInFlight]) const {
#pragma unroll
    for (int s = 0; s < Spans; ++s) {
      const float* const over = queries + channel(s);
      const float4 qo = *reinterpret_cast<const float4*>(over);
      float4 qu = make_float4(0, 0, 0, 0);
      if constexpr (TwoSided) qu = *reinterpret_cast<const float4*>(over + kPadded);
#pragma unroll
      for (int u = 0; u < kUnitsInFlight; ++u) {
        z[u] += dot4(qo, high[u][s]);
        if constexpr (TwoSided) z[u] += dot4(qu, low[u][s]);
      }
    }
  }
};

// Two units per group of lanes.
template <int Lanes, int Spans, bool TwoSided>
__global__ void __launch_bounds__(kThreads, 2) score_units_of_rows(UnitScores a, const UnitRow* rows, int chunks) {
  KVLAB_DYNAMIC_SHARED(float, queries);
  constexpr int kGroups = kWarpSize / Lanes, kPadded = Lanes * Spans * 4;
  const UnitRow row = rows[blockIdx.x / chunks];
  const int first = blockIdx.x % chunks * kWarps * kUnitsPerWarp;
  if (first >= row.n) return;
  const int d = a.head_dim, lane = lane_index() % Lanes, group = lane_index() / Lanes;
  load_queries<kPadded>(a, row.query, queries);
  __syncthreads();
  const bool wide = d % 4 == 0 && reinterpret_cast<std::uintptr_t>(row.summaries) % 16 == 0;
  const int begin = first + warp_index() * kUnitsPerWarp, end = min(row.n, begin + kUnitsPerWarp);
  for (int at = begin; at < end; at += kGroups * kUnitsInFlight) {
    Summaries<Lanes, Spans, TwoSided> units;
#pragma unroll
    for (int u = 0; u < kUnitsInFlight; ++u) {
      const int i = min(at + u * kGroups + group, end - 1);
      const std::int64_t unit = row.unit != nullptr ? row.unit[i] : i;
      units.load(u, row.summaries + unit * (TwoSided ? 2 : 1) * d, d, wide);
    }
    float reduced[kUnitsInFlight] = {};
    for (int head = 0; head < a.group; ++head) {
      float z[kUnitsInFlight] = {};
      units.multiply(queries + 2 * head * kPadded, z);
#pragma unroll
      for (int u = 0; u < kUnitsInFlight; ++u) {
#pragma unroll
        for (int offset = Lanes / 2; offset > 0; offset /= 2) z[u] += __shfl_xor_sync(kAllLanes, z[u], offset);
        const int i = at + u * kGroups + group;
        if (lane == 0 && i < end) take_head(a, row, i, head, a.scale * z[u], reduced[u]);
      }
    }
  }
}

// stats [rows, group]: largest logit, weighted sum of exponentials. A block per row and head; fixed order of sums.
__global__ void __launch_bounds__(kThreads) weigh_units(const SoftmaxRow* rows, int group, float2* stats) {
  KVLAB_SHARED(float, shared, 33);
  const SoftmaxRow row = rows[blockIdx.x / group];
  if (row.n == 0) return;
  const float* const z = row.z + std::int64_t{blockIdx.x % group} * row.n;
  float top = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < row.n; i += kThreads) top = fmaxf(top, z[i]);
  top = block_reduce(top, -INFINITY, shared, [](float x, float y) { return fmaxf(x, y); });
  for (int i = threadIdx.x; i < row.n; i += kThreads) {
    const std::int32_t unit = row.unit != nullptr ? row.unit[i] : i;
    sum += (row.sizes != nullptr ? static_cast<float>(row.sizes[unit]) : 1.0F) * expf(z[i] - top);
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) stats[blockIdx.x] = make_float2(top, sum);
}

struct Soften {
  const SoftmaxRow* rows;
  const float2* stats;
  std::int32_t group;
  UnitScores::Heads heads;
  __device__ std::int64_t count(int row) const { return rows[row].n; }
  __device__ void operator()(int row, std::int64_t i) const {
    const SoftmaxRow& r = rows[row];
    float reduced = 0;
    for (int h = 0; h < group; ++h) {
      const float2 s = stats[row * group + h];
      float p = s.x == -INFINITY ? 0.0F : expf(r.z[h * std::int64_t{r.n} + i] - s.x) / s.y;
      if (heads == UnitScores::Heads::kEach) {
        r.out[h * std::int64_t{r.n} + i] = p;
        continue;
      }
      if (heads == UnitScores::Heads::kMean) p /= static_cast<float>(group);
      reduced = h == 0 ? p : heads == UnitScores::Heads::kMax ? fmaxf(reduced, p) : reduced + p;
    }
    if (heads != UnitScores::Heads::kEach) r.out[i] = reduced;
  }
};

}  // namespace

void score_units(const char* name, const UnitScores& a, const std::vector<UnitRow>& rows, CudaContext& cuda) {
  std::int64_t longest = 0;
  for (const UnitRow& row : rows) longest = std::max<std::int64_t>(longest, row.n);
  if (longest == 0) return;
  const int chunks = static_cast<int>(ceil_div(longest, kWarps * kUnitsPerWarp));
  const UnitRow* const device = cuda.upload(rows.data(), static_cast<std::int64_t>(rows.size()));
  const auto start = [&](auto lanes, auto spans) {
    constexpr int kLanes = decltype(lanes)::value, kSpans = decltype(spans)::value;
    const LaunchShape shape{dim3(static_cast<unsigned>(static_cast<std::int64_t>(rows.size()) * chunks)), dim3(kThreads),
                            static_cast<std::size_t>(2 * a.group * kLanes * kSpans * 4) * sizeof(float)};
    if (static_cast<std::int64_t>(shape.shared_bytes) > cuda.gpu().shared_bytes_per_block)
      throw CudaError(std::string(name) + ": the query heads of a KV head do not fit into shared memory");
    if (a.kind == UnitScores::Kind::kDot)
      launch(name, cuda, shape, score_units_of_rows<kLanes, kSpans, false>, a, device, chunks);
    else
      launch(name, cuda, shape, score_units_of_rows<kLanes, kSpans, true>, a, device, chunks);
  };
  using std::integral_constant;
  if (a.head_dim <= 64)
    start(integral_constant<int, 16>{}, integral_constant<int, 1>{});
  else if (a.head_dim <= 128)
    start(integral_constant<int, 32>{}, integral_constant<int, 1>{});
  else if (a.head_dim <= 256)
    start(integral_constant<int, 32>{}, integral_constant<int, 2>{});
  else if (a.head_dim <= 512)
    start(integral_constant<int, 32>{}, integral_constant<int, 4>{});
  else
    throw CudaError(std::string(name) + ": heads of more than 512 channels");
}

void soften_rows(const char* name, const std::vector<SoftmaxRow>& rows, std::int32_t group, UnitScores::Heads heads, CudaContext& cuda) {
  std::int64_t longest = 0;
  for (const SoftmaxRow& row : rows) longest = std::max<std::int64_t>(longest, row.n);
  if (longest == 0) return;
  const auto n = static_cast<std::int64_t>(rows.size());
  const SoftmaxRow* const device = cuda.upload(rows.data(), n);
  float2* const stats = cuda.scratch<float2>(n * group);
  launch(name, cuda, {dim3(static_cast<unsigned>(n * group)), dim3(kThreads)}, weigh_units, device, group, stats);
  launch_over_rows(name, cuda, n, longest, Soften{device, stats, group, heads});
}

void run_cuda(const PageScores& a, CudaContext& cuda) {
  if (a.num_rows == 0 || a.first[a.num_rows] == 0) return;
  const CudaContext::Frame frame(cuda);
  UnitScores scores{a.group, a.head_dim, a.kind, a.heads, a.max_share, 1.0F / std::sqrt(static_cast<float>(a.head_dim))};
  float* const z = a.softmax ? cuda.scratch<float>(a.group * a.first[a.num_rows]) : nullptr;
  if (a.softmax) scores.heads = UnitScores::Heads::kEach;
  std::vector<UnitRow> rows;
  std::vector<SoftmaxRow> softmax;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const auto n = static_cast<std::int32_t>(a.first[r + 1] - a.first[r]);
    const Queries& q = a.queries[r / a.kv_heads];
    const std::int64_t at = (static_cast<std::int64_t>(q.count - 1) * a.kv_heads + r % a.kv_heads) * a.group * a.head_dim;
    const std::int32_t* const unit = a.lists_units ? a.unit + a.first[r] : nullptr;
    float* const out = a.scores + (a.heads == PageScores::Heads::kEach ? a.group : 1) * a.first[r];
    float* const logits = a.softmax ? z + a.group * a.first[r] : out;
    rows.push_back({n > 0 ? q.data + at : nullptr, a.summaries[r], unit, logits, n});
    if (a.softmax) softmax.push_back({logits, out, unit, a.weighs_sizes ? a.sizes[r] : nullptr, n});
  }
  score_units("page_scores", scores, rows, cuda);
  if (a.softmax) soften_rows("page_scores", softmax, a.group, a.heads, cuda);
}

}  // namespace kvlab
