#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/symmetric_eigen.cuh"
#include "policies/kv/selector/key_codes/key_codes.h"

namespace kvlab {

namespace {

__device__ __forceinline__ float2 turned(float a, float b, const float* frequency, std::int32_t steps) {
  if (frequency == nullptr) return make_float2(a, b);
  const double angle = steps * double{*frequency};
  const auto cosine = static_cast<float>(cos(angle)), sine = static_cast<float>(sin(angle));
  return make_float2(__fadd_rn(__fmul_rn(a, cosine), -__fmul_rn(b, sine)), __fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine)));
}

// Rows of keys before RoPE and their codes.
struct Coded {
  DeviceRows kv;
  const float* frequencies;  // [sequences, head_dim / 2]; null: no RoPE
  const std::int32_t *codes, *from;
  const std::int64_t *key_first, *code_first;  // [num_rows + 1] tokens; centers
  const float* const* gram;
  float* const* root;
  float* const* centers;
  float *keys, *mapped;      // [key_first[num_rows], head_dim] keys, keys * root
  float* mapped_centers;     // [code_first[num_rows], head_dim]
  float* half_norms;         // of them
  std::int32_t* which;       // [key_first[num_rows]] nearest
  double* distance;          // [key_first[num_rows]]
  double* matrix;            // [num_rows, head_dim, head_dim]
  const std::int64_t* seed;  // [num_rows] the first center's token
  const double* uniform;     // [code_first[num_rows]] draws
  int most;

  __device__ std::int32_t tokens(int row) const { return static_cast<std::int32_t>(key_first[row + 1] - key_first[row]); }
};

template <class T>
struct TurnKeys {
  Coded a;
  __device__ std::int64_t count(int row) const { return std::int64_t{a.tokens(row)} * (a.kv.head_dim / 2); }
  __device__ void operator()(int row, std::int64_t at) const {
    const int d = a.kv.head_dim, half = d / 2, c = static_cast<int>(at % half);
    const auto i = static_cast<std::int32_t>(at / half);
    const std::int32_t token = a.from[row] + i;
    const T* const key = key_at<T>(a.kv, row, token);
    const float* const frequency = a.frequencies == nullptr ? nullptr : a.frequencies + std::int64_t{row / a.kv.kv_heads} * half + c;
    const float2 y = turned(load_float(key + c), load_float(key + c + half), frequency, -a.kv.position[a.kv.slot(row, token)]);
    float* const out = a.keys + (a.key_first[row] + i) * d;
    out[c] = y.x, out[c + half] = y.y;
  }
};

// One block per row.
__global__ void __launch_bounds__(kRowThreads) find_roots(Coded a) {
  KVLAB_SHARED(double, shared, 33);
  const int row = blockIdx.x, d = a.kv.head_dim;
  if (a.codes[row] == 0) return;
  double* const h = a.matrix + std::int64_t{row} * d * d;
  double square = 0;
  for (int i = threadIdx.x; i < d * d; i += kRowThreads) square += double{a.gram[row][i]} * double{a.gram[row][i]};
  const double size = sqrt(block_sum(square, shared) / (static_cast<double>(d) * d));
  for (int i = threadIdx.x; i < d * d; i += kRowThreads)
    h[i] = (size > 0 ? double{a.gram[row][i]} / size : double{a.gram[row][i]}) + (i / d == i % d ? 1e-6 : 0.0);
  block_cholesky(h, d);
  for (int i = threadIdx.x; i < d * d; i += kRowThreads) a.root[row][i] = i % d <= i / d ? static_cast<float>(h[i]) : 0.0F;
}

// Lines of x times the row's root.
struct MapLines {
  Coded a;
  const std::int64_t* first;
  const float* lines;  // null: the row's centers
  float* out;
  __device__ std::int64_t count(int row) const { return (first[row + 1] - first[row]) * a.kv.head_dim; }
  __device__ void operator()(int row, std::int64_t at) const {
    const int d = a.kv.head_dim;
    const std::int64_t line = at / d, j = at % d;
    const float* const x = lines != nullptr ? lines + (first[row] + line) * d : a.centers[row] + line * d;
    float sum = 0;
    for (std::int64_t c = j; c < d; ++c) sum += x[c] * a.root[row][c * d + j];  // lower triangular
    out[(first[row] + line) * d + j] = sum;
  }
};

// k-means++: one block per row.
__global__ void __launch_bounds__(kRowThreads) first_centers(Coded a) {
  KVLAB_SHARED(double, shared, 33);
  KVLAB_SHARED(std::int32_t, chosen, 1);
  const int row = blockIdx.x, d = a.kv.head_dim, n = a.tokens(row);
  const float* const y = a.mapped + a.key_first[row] * d;
  double* const distance = a.distance + a.key_first[row];
  for (int c = 0; c < a.codes[row]; ++c) {
    if (threadIdx.x == 0) *chosen = c == 0 ? static_cast<std::int32_t>(a.seed[row]) : n - 1;
    __syncthreads();
    if (c > 0) {
      double sum = 0;
      for (int i = threadIdx.x; i < n; i += kRowThreads) sum += distance[i];
      const double wanted = a.uniform[a.code_first[row] + c] * block_sum(sum, shared);
      double before = 0;
      for (int at = 0; at < n; at += kRowThreads) {
        const int i = at + static_cast<int>(threadIdx.x);
        const double mine = i < n ? distance[i] : 0.0;
        double all;
        const double mine_before = before + block_scan_exclusive(mine, shared, all);
        if (mine > 0 && mine_before <= wanted && wanted < mine_before + mine) *chosen = i;
        before += all;
      }
      __syncthreads();
    }
    const int at = *chosen;
    for (int i = warp_index(); i < n; i += kRowThreads / kWarpSize) {
      float square = 0;
      for (int j = lane_index(); j < d; j += kWarpSize) {
        const float x = y[std::int64_t{i} * d + j] - y[std::int64_t{at} * d + j];
        square += x * x;
      }
      square = warp_sum(square);
      if (lane_index() == 0) distance[i] = c == 0 ? square : fmin(distance[i], double{square});
    }
    for (int j = threadIdx.x; j < d; j += kRowThreads) a.centers[row][std::int64_t{c} * d + j] = a.keys[(a.key_first[row] + at) * d + j];
    __syncthreads();
  }
}

// A warp per center.
__global__ void __launch_bounds__(kRowThreads) measure_centers(Coded a, std::int64_t centers) {
  const std::int64_t c = warp_item();
  if (c >= centers) return;
  const float* const x = a.mapped_centers + c * a.kv.head_dim;
  const float square = warp_dot(x, x, a.kv.head_dim);
  if (lane_index() == 0) a.half_norms[c] = 0.5F * square;
}

// A warp per token, its lanes over the centers.
__global__ void __launch_bounds__(kRowThreads) find_nearest(Coded a, int chunks) {
  const int row = blockIdx.x / chunks, d = a.kv.head_dim;
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.x) % chunks * (kRowThreads / kWarpSize) + warp_index();
  if (i >= a.tokens(row)) return;
  const float* const y = a.mapped + (a.key_first[row] + i) * d;
  float best = -INFINITY;
  std::int32_t nearest = 0x7FFFFFFF;
  for (std::int32_t c = lane_index(); c < a.codes[row]; c += kWarpSize) {
    const float* const center = a.mapped_centers + (a.code_first[row] + c) * d;
    float z = 0;
    for (int j = 0; j < d; ++j) z += y[j] * center[j];
    z -= a.half_norms[a.code_first[row] + c];
    if (z > best || nearest == 0x7FFFFFFF) best = z, nearest = c;
  }
  const float top = warp_max(best);
  nearest = warp_min(best == top ? nearest : 0x7FFFFFFF);
  if (lane_index() == 0) a.which[a.key_first[row] + i] = nearest;
}

// A block per center. Keys are added in their order.
__global__ void __launch_bounds__(kRowThreads) move_centers(Coded a) {
  const int row = blockIdx.x / a.most, c = blockIdx.x % a.most, d = a.kv.head_dim;
  if (c >= a.codes[row]) return;
  for (int j = threadIdx.x; j < d; j += kRowThreads) {
    float sum = 0;
    std::int32_t members = 0;
    for (std::int64_t i = a.key_first[row]; i < a.key_first[row + 1]; ++i)
      if (a.which[i] == c) sum += a.keys[i * d + j], ++members;
    if (members > 0) a.centers[row][std::int64_t{c} * d + j] = sum / static_cast<float>(members);
  }
}

struct PutCodes {
  Coded a;
  std::int32_t* const* code;
  __device__ std::int64_t count(int row) const { return a.tokens(row); }
  __device__ void operator()(int row, std::int64_t i) const { code[row][a.from[row] + i] = a.which[a.key_first[row] + i]; }
};

// The rows' tokens [from, to) and their scratch; host vectors live until the copies are enqueued.
struct Shape {
  std::vector<std::int64_t> key_first{0}, code_first{0};
  std::int64_t longest = 0;
  std::int32_t most = 0;
};
Shape shape_of(std::int32_t rows, const std::int32_t* codes, const std::int32_t* from, const std::int32_t* to) {
  Shape s;
  for (std::int32_t r = 0; r < rows; ++r) {
    const std::int64_t n = codes[r] == 0 ? 0 : std::max(0, to[r] - from[r]);
    s.key_first.push_back(s.key_first.back() + n), s.code_first.push_back(s.code_first.back() + codes[r]);
    s.longest = std::max(s.longest, n), s.most = std::max(s.most, codes[r]);
  }
  return s;
}

Coded coded_rows(const KeyCodes& op, const std::int32_t* from, const Shape& shape, CudaContext& cuda) {
  const KvRows& kv = op.kv;
  if (kv.head_dim % 2 != 0) throw CudaError("key_codes: an odd number of channels");
  Coded a{};
  a.kv = on_device(kv, cuda), a.most = shape.most;
  std::tie(a.codes, a.from, a.key_first, a.code_first, a.frequencies, a.root, a.centers) = upload_all(
      cuda, host_array(op.codes, kv.num_rows), host_array(from, kv.num_rows), std::span<const std::int64_t>(shape.key_first),
      std::span<const std::int64_t>(shape.code_first), host_array(op.frequencies, std::int64_t{kv.num_sequences()} * (kv.head_dim / 2)),
      host_array(op.root, kv.num_rows), host_array(op.centers, kv.num_rows));
  const std::int64_t tokens = shape.key_first.back(), centers = shape.code_first.back(), d = kv.head_dim;
  a.keys = cuda.scratch<float>(tokens * d), a.mapped = cuda.scratch<float>(tokens * d);
  a.mapped_centers = cuda.scratch<float>(centers * d), a.half_norms = cuda.scratch<float>(centers);
  a.which = cuda.scratch<std::int32_t>(tokens);
  return a;
}

void find_codes(const char* name, const Coded& a, const Shape& shape, CudaContext& cuda) {
  const std::int64_t d = a.kv.head_dim, centers = shape.code_first.back();
  launch_over_rows(name, cuda, a.kv.num_rows, shape.most * d, MapLines{a, a.code_first, nullptr, a.mapped_centers});
  launch(name, cuda, warp_each(centers), measure_centers, a, centers);
  const auto chunks = static_cast<int>(ceil_div(shape.longest, kRowThreads / kWarpSize));
  launch(name, cuda, block_each(std::int64_t{a.kv.num_rows} * chunks), find_nearest, a, chunks);
}

void map_keys(const char* name, const Coded& a, const Shape& shape, ElementType type, CudaContext& cuda) {
  for_type(type, [&](auto zero) {
    launch_over_rows(name, cuda, a.kv.num_rows, shape.longest * (a.kv.head_dim / 2), TurnKeys<decltype(zero)>{a});
  });
  launch_over_rows(name, cuda, a.kv.num_rows, shape.longest * a.kv.head_dim, MapLines{a, a.key_first, a.keys, a.mapped});
}

void train(const KeyCodes& a, Coded c, const Shape& shape, CudaContext& cuda) {
  const std::int32_t rows = a.kv.num_rows;
  std::vector<std::int64_t> seeds;
  std::vector<double> uniform;
  for (std::int32_t r = 0; r < rows; ++r) {
    const auto draw = [&](std::int32_t i) {
      return Draw{static_cast<std::uint64_t>(a.seeds[r]), Purpose::kPolicy, static_cast<std::uint64_t>(i)};
    };
    seeds.push_back(a.codes[r] == 0 ? 0 : static_cast<std::int64_t>(draw(0).below(static_cast<std::uint64_t>(a.kv.len[r]))));
    for (std::int32_t i = 0; i < a.codes[r]; ++i) uniform.push_back(draw(i).uniform());
  }
  std::tie(c.gram, c.seed, c.uniform) =
      upload_all(cuda, host_array(a.gram, rows), std::span<const std::int64_t>(seeds), std::span<const double>(uniform));
  c.distance = cuda.scratch<double>(shape.key_first.back());
  c.matrix = cuda.scratch<double>(std::int64_t{rows} * a.kv.head_dim * a.kv.head_dim);
  launch("train_codes", cuda, block_each(rows), find_roots, c);
  map_keys("train_codes", c, shape, a.kv.type, cuda);
  launch("train_codes", cuda, block_each(rows), first_centers, c);
  for (std::int32_t round = 0; round < a.rounds; ++round) {
    find_codes("train_codes", c, shape, cuda);
    launch("train_codes", cuda, block_each(std::int64_t{rows} * shape.most), move_centers, c);
  }
}

}  // namespace

void run_cuda(const KeyCodes& a, CudaContext& cuda) {
  const std::int32_t rows = a.kv.num_rows;
  const bool trains = a.kind == KeyCodes::Kind::kTrain;
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(rows), 0);
  const std::int32_t* const from = trains ? zeros.data() : a.from;
  const Shape shape = shape_of(rows, a.codes, from, trains ? a.kv.len : a.to);
  if (shape.longest == 0) return;
  const CudaContext::Frame frame(cuda);
  const Coded c = coded_rows(a, from, shape, cuda);
  if (trains) return train(a, c, shape, cuda);
  const auto [code] = upload_all(cuda, host_array(a.code, rows));
  map_keys("assign_codes", c, shape, a.kv.type, cuda);
  find_codes("assign_codes", c, shape, cuda);
  launch_over_rows("assign_codes", cuda, rows, shape.longest, PutCodes{c, code});
}

}  // namespace kvlab
