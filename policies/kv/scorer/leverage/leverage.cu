#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/symmetric_eigen.cuh"
#include "policies/kv/scorer/leverage/leverage.h"

namespace kvlab {

namespace {

constexpr int kWarps = kRowThreads / kWarpSize;

struct Rows {
  DeviceRows kv;
  Leverage op;                // without kv and keys
  const float* const* keys;   // [num_sequences]
  const double* matrix;       // [head_dim, features], null: the identity
  std::int32_t m;             // features
  double *x, *solved, *gram;  // [m, len] of row r from m * first[r] on, twice; [num_rows, m, m]
  double* mean;               // [num_rows, head_dim] of keys
  double *w, *weight;         // [total], null: 1. w_i, and what the sum takes: w_i + epsilon, 0 for sinks

  __device__ const float* key(int row, std::int32_t i) const {
    const std::int64_t position = kv.position[kv.slot(row, i)];
    return keys[row / kv.kv_heads] + (position * kv.kv_heads + row % kv.kv_heads) * kv.head_dim;
  }
};

// A block per row and 32 channels.
__global__ void __launch_bounds__(kRowThreads) mean_of_keys(Rows a, int chunks) {
  KVLAB_SHARED(double, shared, kRowThreads);
  const int row = blockIdx.x / chunks, c = blockIdx.x % chunks * kWarpSize + lane_index(), n = a.kv.len[row];
  double sum = 0;
  for (int i = warp_index(); i < n && c < a.kv.head_dim; i += kWarps) sum += a.key(row, i)[c];
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (warp_index() != 0 || c >= a.kv.head_dim || n == 0) return;
  for (int w = 1; w < kWarps; ++w) sum += shared[w * kWarpSize + lane_index()];
  a.mean[std::int64_t{row} * a.kv.head_dim + c] = sum / n;
}

template <class T>
struct Features {
  Rows a;
  __device__ std::int64_t count(int row) const { return std::int64_t{a.kv.len[row]} * a.m; }
  __device__ double feature(int row, std::int32_t i, std::int64_t j) const {
    if (a.op.kind == Leverage::Kind::kValues) return load_float(value_at<T>(a.kv, row, i) + j);
    const float* const key = a.key(row, i);
    const double* const mean = a.mean + std::int64_t{row} * a.kv.head_dim;
    if (a.matrix == nullptr) return key[j] - mean[j];
    double x = 0;
    for (std::int64_t c = 0; c < a.kv.head_dim; ++c) x += (key[c] - mean[c]) * a.matrix[c * a.m + j];
    return x;
  }
  __device__ void operator()(int row, std::int64_t at) const {
    const std::int64_t n = a.kv.len[row];
    a.x[a.m * a.kv.first[row] + at] = feature(row, static_cast<std::int32_t>(at % n), at / n);
  }
};

// One block per row, for one query head.
template <class T>
__global__ void __launch_bounds__(kRowThreads) weigh_tokens(Rows a, int head) {
  KVLAB_SHARED(double, shared, 33);
  const int row = blockIdx.x, d = a.kv.head_dim, n = a.kv.len[row];
  if (n == 0) return;
  const float* const mean = a.op.mean + (std::int64_t{row} * a.kv.group + head) * d;
  double *const w = a.w + a.kv.first[row], *const weight = a.weight + a.kv.first[row];
  double square = 0;
  for (int c = threadIdx.x; c < d; c += kRowThreads) square += double{mean[c]} * double{mean[c]};
  const double length = fmax(sqrt(block_sum(square, shared)), 1e-12);
  double most = -static_cast<double>(INFINITY);
  for (int i = warp_index(); i < n; i += kWarps) {
    const T* const key = key_at<T>(a.kv, row, i);
    double product = 0, norm = 0;
    for (int c = lane_index(); c < d; c += kWarpSize) {
      const double k = load_float(key + c);
      product += k * mean[c], norm += k * k;
    }
    product = warp_sum(product), norm = warp_sum(norm);
    const double cosine = product / length / fmax(sqrt(norm), 1e-12);
    const double z = double{a.op.tau} * fmin(fmax(cosine, -1.0), 1.0);
    if (lane_index() == 0) w[i] = z;
    if (a.kv.position[a.kv.slot(row, i)] >= a.op.sinks) most = fmax(most, z);
  }
  most = block_reduce(most, -static_cast<double>(INFINITY), shared, [](double x, double y) { return y < x ? x : y; });
  for (int i = threadIdx.x; i < n; i += kRowThreads) {
    const bool counts = a.kv.position[a.kv.slot(row, i)] >= a.op.sinks;
    w[i] = counts ? exp(w[i] - most) : 0.0;
    weight[i] = counts ? w[i] + double{a.op.epsilon} : 0.0;
  }
}

// The lower triangle of the weighted sum of products: a warp per number.
__global__ void __launch_bounds__(kRowThreads) sum_products(Rows a) {
  const std::int64_t at = warp_item(), square = std::int64_t{a.m} * a.m;
  if (at >= a.kv.num_rows * square) return;
  const std::int64_t row = at / square, i = at % square / a.m, j = at % a.m, n = a.kv.len[row];
  if (j > i || n == 0) return;
  const double *const of_row = a.x + a.m * a.kv.first[row], *const x = of_row + i * n, *const y = of_row + j * n;
  double sum = 0;
  for (std::int64_t t = lane_index(); t < n; t += kWarpSize)
    sum += (a.weight != nullptr ? a.weight[a.kv.first[row] + t] : 1.0) * x[t] * y[t];
  sum = warp_sum(sum);
  if (lane_index() == 0) a.gram[at] = sum;
}

// One block per row.
__global__ void __launch_bounds__(kRowThreads) factor_sums(Rows a) {
  KVLAB_SHARED(double, shared, 33);
  if (a.kv.len[blockIdx.x] == 0) return;
  double* const gram = a.gram + std::int64_t{blockIdx.x} * a.m * a.m;
  double trace = 0;
  for (std::int64_t i = threadIdx.x; i < a.m; i += kRowThreads) trace += gram[i * a.m + i];
  const double ridge = a.weight != nullptr ? 1.0 : 1e-6 * block_sum(trace, shared) / a.m + 1e-30;
  for (std::int64_t i = threadIdx.x; i < a.m; i += kRowThreads) gram[i * a.m + i] += ridge;
  block_cholesky(gram, a.m);
}

// out += w_i |L^-1 x_i|^2 / group; the first head writes.
struct Solve {
  Rows a;
  bool is_first;
  __device__ std::int64_t count(int row) const { return a.kv.len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t n = a.kv.len[row], at = a.kv.first[row] + i;
    const double *const factor = a.gram + std::int64_t{row} * a.m * a.m, *const x = a.x + a.m * a.kv.first[row] + i;
    double *const y = a.solved + a.m * a.kv.first[row] + i, square = 0;
    for (std::int64_t j = 0; j < a.m; ++j) {
      double z = x[j * n];
      for (std::int64_t k = 0; k < j; ++k) z -= factor[j * a.m + k] * y[k * n];
      z /= factor[j * a.m + j];
      y[j * n] = z, square += z * z;
    }
    if (a.w != nullptr) square = a.w[at] == 0 ? 0.0 : a.w[at] * square / a.kv.group;
    a.op.out[at] = (is_first ? 0.0F : a.op.out[at]) + static_cast<float>(square);
  }
};

void add_head(const Rows& rows, bool is_first, CudaContext& cuda) {
  const char* const name = rows.w == nullptr ? "key_leverage" : "value_leverage";
  launch(name, cuda, warp_each(std::int64_t{rows.kv.num_rows} * rows.m * rows.m), sum_products, rows);
  launch(name, cuda, block_each(rows.kv.num_rows), factor_sums, rows);
  launch_over_rows(name, cuda, rows.kv.num_rows, rows.kv.longest, Solve{rows, is_first});
}

void prepare_keys(const Leverage& a, Rows& rows, CudaContext& cuda) {
  std::vector<double> matrix;
  for (std::int32_t i = 0; i < a.kv.head_dim; ++i)
    for (std::int32_t j = 0; j < a.sketch_dim; ++j) matrix.push_back(a.sketch(i, j));
  rows.keys = cuda.upload(a.keys, a.kv.num_sequences());
  rows.matrix = a.sketch_dim > 0 ? cuda.upload(matrix.data(), static_cast<std::int64_t>(matrix.size())) : nullptr;
  rows.mean = cuda.scratch<double>(std::int64_t{a.kv.num_rows} * a.kv.head_dim);
  const auto chunks = static_cast<int>(ceil_div(a.kv.head_dim, kWarpSize));
  launch("key_leverage", cuda, block_each(std::int64_t{a.kv.num_rows} * chunks), mean_of_keys, rows, chunks);
}

}  // namespace

void run_cuda(const Leverage& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const bool is_keys = a.kind == Leverage::Kind::kKeys;
  Rows rows{};
  rows.kv = on_device(a.kv, cuda), rows.op = a, rows.m = a.features();
  rows.op.kv = {}, rows.op.keys = nullptr;  // of CPU memory
  rows.x = cuda.scratch<double>(rows.m * rows.kv.total), rows.solved = cuda.scratch<double>(rows.m * rows.kv.total);
  rows.gram = cuda.scratch<double>(std::int64_t{rows.kv.num_rows} * rows.m * rows.m);
  if (is_keys)
    prepare_keys(a, rows, cuda);
  else
    rows.w = cuda.scratch<double>(rows.kv.total), rows.weight = cuda.scratch<double>(rows.kv.total);
  for_type(a.kv.type, [&](auto zero) {
    using T = decltype(zero);
    launch_over_rows(call(a).op.data(), cuda, rows.kv.num_rows, std::int64_t{rows.kv.longest} * rows.m, Features<T>{rows});
    if (is_keys) return add_head(rows, true, cuda);
    for (std::int32_t head = 0; head < rows.kv.group; ++head) {
      launch("value_leverage", cuda, block_each(rows.kv.num_rows), weigh_tokens<T>, rows, head);
      add_head(rows, head == 0, cuda);
    }
  });
}

}  // namespace kvlab
