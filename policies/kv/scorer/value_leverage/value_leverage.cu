#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/scorer/key_leverage/leverage.h"
#include "policies/kv/scorer/value_leverage/value_leverage.h"

namespace kvlab {

namespace {

struct Weigh {
  DeviceRows kv;
  const float* mean;
  std::int32_t sinks, head;
  double tau, epsilon;
  double *w, *weight;  // [total]: w_i, and what the sum takes: w_i + epsilon, 0 for sinks
};

__device__ __forceinline__ double block_most(double x, double* shared) {
  return block_reduce(x, -static_cast<double>(INFINITY), shared, [](double a, double b) { return a < b ? b : a; });
}

// One block per row.
template <class T>
__global__ void __launch_bounds__(kRowThreads) weigh_tokens(Weigh a) {
  KVLAB_SHARED(double, shared, 33);
  const int row = blockIdx.x, d = a.kv.head_dim, n = a.kv.len[row];
  if (n == 0) return;
  const float* const mean = a.mean + (std::int64_t{row} * a.kv.group + a.head) * d;
  double *const w = a.w + a.kv.first[row], *const weight = a.weight + a.kv.first[row];
  double square = 0;
  for (int c = threadIdx.x; c < d; c += kRowThreads) square += double{mean[c]} * double{mean[c]};
  const double length = fmax(sqrt(block_sum(square, shared)), 1e-12);
  double most = -static_cast<double>(INFINITY);
  for (int i = warp_index(); i < n; i += kRowThreads / kWarpSize) {
    const T* const key = key_at<T>(a.kv, row, i);
    double product = 0, norm = 0;
    for (int c = lane_index(); c < d; c += kWarpSize) {
      const double k = load_float(key + c);
      product += k * mean[c], norm += k * k;
    }
    product = warp_sum(product), norm = warp_sum(norm);
    const double cosine = product / length / fmax(sqrt(norm), 1e-12);
    const double z = a.tau * fmin(fmax(cosine, -1.0), 1.0);
    if (lane_index() == 0) w[i] = z;
    if (a.kv.position[a.kv.slot(row, i)] >= a.sinks) most = fmax(most, z);
  }
  most = block_most(most, shared);
  for (int i = threadIdx.x; i < n; i += kRowThreads) {
    const bool counts = a.kv.position[a.kv.slot(row, i)] >= a.sinks;
    w[i] = counts ? exp(w[i] - most) : 0.0;
    weight[i] = counts ? w[i] + a.epsilon : 0.0;
  }
}

template <class T>
struct Columns {
  DeviceRows kv;
  double* x;  // [head_dim, len] of row r from head_dim * first[r] on
  __device__ std::int64_t count(int row) const { return std::int64_t{kv.len[row]} * kv.head_dim; }
  __device__ void operator()(int row, std::int64_t at) const {
    const std::int64_t n = kv.len[row];
    x[kv.head_dim * kv.first[row] + at] = load_float(value_at<T>(kv, row, static_cast<std::int32_t>(at % n)) + at / n);
  }
};

struct AddHead {
  const double *w, *leverage;
  float* out;
  std::int64_t total;
  std::int32_t group;
  bool is_first;
  __device__ std::int64_t count(int) const { return total; }
  __device__ void operator()(int, std::int64_t i) const {
    out[i] = (is_first ? 0.0F : out[i]) + static_cast<float>(w[i] == 0 ? 0.0 : w[i] * leverage[i] / group);
  }
};

}  // namespace

void run_cuda(const ValueLeverage& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  double *const x = cuda.scratch<double>(kv.head_dim * kv.total), *const w = cuda.scratch<double>(kv.total);
  double *const weight = cuda.scratch<double>(kv.total), *const out = cuda.scratch<double>(kv.total);
  std::vector<LeverageItem> items;
  for (std::int32_t r = 0; r < kv.num_rows; ++r)
    items.push_back({x + kv.head_dim * a.kv.first[r], weight + a.kv.first[r], out + a.kv.first[r], a.kv.len[r]});
  for_type(a.kv.type, [&](auto zero) {
    launch_over_rows("value_leverage", cuda, kv.num_rows, std::int64_t{kv.longest} * kv.head_dim, Columns<decltype(zero)>{kv, x});
  });
  for (std::int32_t head = 0; head < kv.group; ++head) {
    const Weigh weigh{kv, a.mean, a.sinks, head, a.tau, a.epsilon, w, weight};
    for_type(a.kv.type, [&](auto zero) { launch("value_leverage", cuda, block_each(kv.num_rows), weigh_tokens<decltype(zero)>, weigh); });
    leverage("value_leverage", items, kv.head_dim, true, cuda);
    launch_over_rows("value_leverage", cuda, 1, kv.total, AddHead{w, out, a.out, kv.total, kv.group, head == 0});
  }
}

}  // namespace kvlab
