#include <algorithm>
#include <limits>

#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/select/top_k/select_rows.h"
#include "policies/kv/disposal/slerp_pairs/slerp_pairs.h"

namespace kvlab {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
constexpr double kNoAngle = 1e-4;  // sine below which the formula divides 0 by 0

struct Pairs {
  DeviceRows a, b;
  const std::int32_t *begin, *end;
  const std::int64_t* first;  // [rows] of the angles
  bool values;
  double t;
  float* angles;  // in [begin, end); infinity: unchanged
  int blocks;     // per row
};

template <class T>
struct Pair {
  T *x, *y;
};
template <class T>
__device__ __forceinline__ Pair<T> pair_of(const Pairs& p, int row, std::int32_t i) {
  const int d = p.a.head_dim;
  return {static_cast<T*>(p.values ? p.a.v : p.a.k) + p.a.slot(row, p.begin[row] + i) * d,
          static_cast<T*>(p.values ? p.b.v : p.b.k) + p.b.slot(row, p.begin[row] + i) * d};
}

struct Products {
  double xx = 0, yy = 0, xy = 0;
};
// Per warp. Doubles: angles next to 0 are differences of nearly equal numbers.
template <class T>
__device__ __forceinline__ Products multiply(const Pair<T>& pair, int d) {
  Products p;
  for (int c = lane_index(); c < d; c += kWarpSize) {
    const auto x = static_cast<double>(load_float(pair.x + c)), y = static_cast<double>(load_float(pair.y + c));
    p.xx += x * x, p.yy += y * y, p.xy += x * y;
  }
  return {warp_sum(p.xx), warp_sum(p.yy), warp_sum(p.xy)};
}
__device__ __forceinline__ double angle_of(const Products& p) {
  const double size = sqrt(p.xx * p.yy);
  return size > 0 && size < INFINITY ? acos(fmin(fmax(p.xy / size, -1.0), 1.0)) : 0;
}

// A warp per token.
template <class T>
__global__ void __launch_bounds__(kThreads) measure_angles(Pairs p) {
  const int row = blockIdx.x / p.blocks;
  const std::int32_t i = blockIdx.x % p.blocks * kWarps + warp_index();
  if (i >= p.end[row] - p.begin[row]) return;
  const double angle = angle_of(multiply(pair_of<T>(p, row, i), p.a.head_dim));
  if (lane_index() == 0) p.angles[p.first[row] + i] = static_cast<float>(angle);
}

template <class T>
__global__ void __launch_bounds__(kThreads) merge_pairs(Pairs p) {
  const int row = blockIdx.x / p.blocks, d = p.a.head_dim;
  const std::int32_t i = blockIdx.x % p.blocks * kWarps + warp_index();
  if (i >= p.end[row] - p.begin[row] || p.angles[p.first[row] + i] == INFINITY) return;
  const Pair<T> pair = pair_of<T>(p, row, i);
  const Products products = multiply(pair, d);
  const double nx = sqrt(products.xx), ny = sqrt(products.yy), angle = angle_of(products);
  double wx = 1 - p.t, wy = p.t;
  if (sin(angle) > kNoAngle) {
    wx = sin((1 - p.t) * angle), wy = sin(p.t * angle);
  } else if (angle > 1) {
    wx = p.t < 0.5 ? 1 : 0, wy = 1 - wx;
  }
  wx = nx > 0 ? wx / nx : 0, wy = ny > 0 ? wy / ny : 0;
  double square = 0;
  for (int c = lane_index(); c < d; c += kWarpSize) {
    const double mixed = wx * static_cast<double>(load_float(pair.x + c)) + wy * static_cast<double>(load_float(pair.y + c));
    square += mixed * mixed;
  }
  square = warp_sum(square);
  if (!(square > 0) || !(square < INFINITY)) return;
  const double scale = 1 / sqrt(square);
  for (int c = lane_index(); c < d; c += kWarpSize) {
    const double mixed = wx * static_cast<double>(load_float(pair.x + c)) + wy * static_cast<double>(load_float(pair.y + c));
    store_float(pair.x + c, static_cast<float>(nx * scale * mixed));
    store_float(pair.y + c, static_cast<float>(ny * scale * mixed));
  }
}

}  // namespace

void run_cuda(const SlerpPairs& a, CudaContext& cuda) {
  const std::int32_t rows = a.a.num_rows;
  std::vector<std::int64_t> first;
  std::int64_t total = 0, longest = 0;
  for (std::int32_t r = 0; r < rows; ++r) {
    first.push_back(total);
    longest = std::max<std::int64_t>(longest, a.end[r] - a.begin[r]);
    total += ceil_div(a.end[r] - a.begin[r], 4) * 4;
  }
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [begin, end, starts] =
      upload_all(cuda, host_array(a.begin, rows), host_array(a.end, rows), std::span<const std::int64_t>(first));
  const Pairs pairs{on_device(a.a, cuda),
                    on_device(a.b, cuda),
                    begin,
                    end,
                    starts,
                    a.values,
                    static_cast<double>(a.t),
                    cuda.scratch<float>(total),
                    static_cast<int>(ceil_div(longest, kWarps))};
  std::vector<SelectRow> stay;
  for (std::int32_t r = 0; r < rows; ++r) {
    float* const angles = pairs.angles + first[static_cast<std::size_t>(r)];
    stay.push_back({angles, angles, a.end[r] - a.begin[r], a.retain[r]});
  }
  for_type(a.a.type, [&](auto zero) {
    const LaunchShape shape{dim3(static_cast<unsigned>(std::int64_t{rows} * pairs.blocks)), dim3(kThreads)};
    launch("slerp_pairs", cuda, shape, measure_angles<decltype(zero)>, pairs);
    mark_largest(stay, std::numeric_limits<float>::infinity(), cuda);
    launch("slerp_pairs", cuda, shape, merge_pairs<decltype(zero)>, pairs);
  });
}

}  // namespace kvlab
