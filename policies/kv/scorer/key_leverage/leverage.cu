#include <algorithm>

#include "kernels/device/cuda/block_cholesky.cuh"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/scorer/key_leverage/leverage.h"

namespace kvlab {

namespace {

struct Leverage {
  const LeverageItem* items;
  std::int64_t num_items;
  std::int32_t m;
  double* gram;    // [num_items, m, m]
  double* solved;  // [m, n] of each item from m * solved_first on
  const std::int64_t* solved_first;
};

// The lower triangle: a warp per number.
__global__ void __launch_bounds__(kRowThreads) sum_products(Leverage a) {
  const std::int64_t at = warp_item(), square = std::int64_t{a.m} * a.m;
  if (at >= a.num_items * square) return;
  const LeverageItem item = a.items[at / square];
  const std::int64_t i = at % square / a.m, j = at % a.m;
  if (j > i || item.n == 0) return;
  const double *const x = item.x + i * item.n, *const y = item.x + j * item.n;
  double sum = 0;
  for (std::int64_t t = lane_index(); t < item.n; t += kWarpSize) sum += (item.weight != nullptr ? item.weight[t] : 1.0) * x[t] * y[t];
  sum = warp_sum(sum);
  if (lane_index() == 0) a.gram[at] = sum;
}

// One block per item.
__global__ void __launch_bounds__(kRowThreads) factor_sums(Leverage a, bool identity) {
  KVLAB_SHARED(double, shared, 33);
  if (a.items[blockIdx.x].n == 0) return;
  double* const gram = a.gram + std::int64_t{blockIdx.x} * a.m * a.m;
  double trace = 0;
  for (std::int64_t i = threadIdx.x; i < a.m; i += kRowThreads) trace += gram[i * a.m + i];
  const double ridge = identity ? 1.0 : 1e-6 * block_sum(trace, shared) / a.m + 1e-30;
  for (std::int64_t i = threadIdx.x; i < a.m; i += kRowThreads) gram[i * a.m + i] += ridge;
  block_cholesky(gram, a.m);
}

// |L^-1 x_i|^2.
struct Solve {
  Leverage a;
  __device__ std::int64_t count(int item) const { return a.items[item].n; }
  __device__ void operator()(int at, std::int64_t i) const {
    const LeverageItem item = a.items[at];
    const double* const factor = a.gram + std::int64_t{at} * a.m * a.m;
    double* const y = a.solved + a.solved_first[at] * a.m + i;
    double square = 0;
    for (std::int64_t j = 0; j < a.m; ++j) {
      double z = item.x[j * item.n + i];
      for (std::int64_t k = 0; k < j; ++k) z -= factor[j * a.m + k] * y[k * item.n];
      z /= factor[j * a.m + j];
      y[j * item.n] = z, square += z * z;
    }
    item.out[i] = square;
  }
};

}  // namespace

void leverage(const char* name, const std::vector<LeverageItem>& items, std::int32_t features, bool identity, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  const auto num_items = static_cast<std::int64_t>(items.size()), square = std::int64_t{features} * features;
  std::vector<std::int64_t> first(1, 0);
  std::int64_t longest = 0;
  for (const LeverageItem& item : items) {
    first.push_back(first.back() + item.n);
    longest = std::max(longest, item.n);
  }
  if (longest == 0) return;
  const Leverage a{cuda.upload(items.data(), num_items),
                   num_items,
                   features,
                   cuda.scratch<double>(num_items * square),
                   cuda.scratch<double>(first.back() * features),
                   cuda.upload(first.data(), num_items + 1)};
  launch(name, cuda, warp_each(num_items * square), sum_products, a);
  launch(name, cuda, block_each(num_items), factor_sums, a, identity);
  launch_over_rows(name, cuda, num_items, longest, Solve{a});
}

}  // namespace kvlab
