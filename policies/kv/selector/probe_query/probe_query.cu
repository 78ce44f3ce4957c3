#include <algorithm>

#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/selector/probe_query/probe_query.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256;

struct FillRing {
  const Queries* queries;
  float* const* ring;
  std::int64_t width;
  std::int32_t capacity;
  __device__ std::int64_t count(int s) const { return min(queries[s].count, capacity) * width; }
  __device__ void operator()(int s, std::int64_t i) const {
    const Queries& q = queries[s];
    const auto t = static_cast<std::int32_t>(max(0, q.count - capacity) + i / width);
    ring[s][(q.first_position + t) % capacity * width + i % width] = q.data[t * width + i % width];
  }
};

struct MeanOfRing {
  const std::int32_t* held;
  const float* const* ring;
  std::int64_t width;
  double* mean;  // [sequences, width]
  __device__ std::int64_t count(int) const { return width; }
  __device__ void operator()(int s, std::int64_t c) const {
    double sum = 0;
    for (int i = 0; i < held[s]; ++i) sum += static_cast<double>(ring[s][i * width + c]) / held[s];
    mean[s * width + c] = sum;
  }
};

// distance [sequences, most]: squares. A block per query.
__global__ void __launch_bounds__(kThreads) measure_ring(MeanOfRing a, int most, double* distance) {
  KVLAB_SHARED(double, shared, 33);
  const int s = blockIdx.x / most, i = blockIdx.x % most;
  if (i >= a.held[s]) return;
  double sum = 0;
  for (std::int64_t c = threadIdx.x; c < a.width; c += kThreads) {
    const double x = static_cast<double>(a.ring[s][i * a.width + c]) - a.mean[s * a.width + c];
    sum += x * x;
  }
  sum = block_sum(sum, shared);
  if (threadIdx.x == 0) distance[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) weigh_ring(const std::int32_t* held, int most, double* distance) {
  KVLAB_SHARED(double, shared, 33);
  double* const mine = distance + std::int64_t{blockIdx.x} * most;
  const int n = held[blockIdx.x];
  double deviation = 0, sum = 0;
  for (int i = threadIdx.x; i < n; i += kThreads) deviation += mine[i] / n;
  deviation = block_sum(deviation, shared);
  for (int i = threadIdx.x; i < n; i += kThreads) sum += mine[i] = exp(deviation > 0 ? sqrt(mine[i] / deviation) : 0.0);
  sum = block_sum(sum, shared);
  for (int i = threadIdx.x; i < n; i += kThreads) mine[i] /= sum;
}

struct Probe : MeanOfRing {
  const double* weight;
  int most;
  float* probe;
  __device__ void operator()(int s, std::int64_t c) const {
    double sum = 0;
    for (int i = 0; i < held[s]; ++i) sum += weight[std::int64_t{s} * most + i] * static_cast<double>(ring[s][i * width + c]);
    probe[s * width + c] = static_cast<float>(sum);
  }
};

struct EntropyArgs {
  std::int32_t kv_heads, layer, num_layers;
  const std::int64_t* first;
  const float* probabilities;
  const std::int32_t* average;
  float* const* entropies;
  std::int32_t* keep;
};

// One block per sequence.
__global__ void __launch_bounds__(kThreads) entropy_share(EntropyArgs a) {
  KVLAB_SHARED(double, shared, 33);
  const int row0 = blockIdx.x * a.kv_heads, end = row0 + a.kv_heads;
  double entropy = 0;
  for (std::int64_t i = a.first[row0] + threadIdx.x; i < a.first[end]; i += kThreads) {
    const auto p = static_cast<double>(a.probabilities[i]);
    if (p > 0) entropy -= p * log(p) / a.kv_heads;
  }
  entropy = block_sum(entropy, shared);
  if (threadIdx.x != 0) return;
  float* const entropies = a.entropies[blockIdx.x];
  if (a.first[end] > a.first[row0]) entropies[a.layer] = static_cast<float>(entropy);
  double known = 0, layers = 0;
  for (int l = 0; l < a.num_layers; ++l)
    if (entropies[l] > 0) known += static_cast<double>(entropies[l]), layers += 1;
  const double scale = entropy > 0 ? entropy / (known / layers) : 1.0;
  for (int r = row0; r < end; ++r) {
    const double wanted = fmin(nearbyint(a.average[r] * scale), 2.0 * a.average[r]);
    const auto units = static_cast<double>(a.first[r + 1] - a.first[r]);
    a.keep[r] = units == 0 ? 0 : static_cast<std::int32_t>(fmin(fmax(wanted, 1.0), units));
  }
}

}  // namespace

void run_cuda(const QueryRing& a, CudaContext& cuda) {
  if (a.num_sequences == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [queries, ring] = upload_all(cuda, host_array(a.queries, a.num_sequences), host_array(a.ring, a.num_sequences));
  std::int32_t most = 0;
  for (std::int32_t s = 0; s < a.num_sequences; ++s) most = std::max(most, std::min(a.queries[s].count, a.capacity));
  launch_over_rows("query_ring", cuda, a.num_sequences, std::int64_t{most} * a.width, FillRing{queries, ring, a.width, a.capacity});
}

void run_cuda(const ProbeQuery& a, CudaContext& cuda) {
  if (a.num_sequences == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [held, ring] = upload_all(cuda, host_array(a.held, a.num_sequences), host_array(a.ring, a.num_sequences));
  const int most = *std::max_element(a.held, a.held + a.num_sequences);
  const std::int64_t queries = std::int64_t{a.num_sequences} * most;
  const MeanOfRing mean{held, ring, a.width, cuda.scratch<double>(std::int64_t{a.num_sequences} * a.width)};
  double* const weight = cuda.scratch<double>(queries);
  launch_over_rows("probe_query", cuda, a.num_sequences, a.width, mean);
  launch("probe_query", cuda, {dim3(static_cast<unsigned>(queries)), dim3(kThreads)}, measure_ring, mean, most, weight);
  launch("probe_query", cuda, {dim3(static_cast<unsigned>(a.num_sequences)), dim3(kThreads)}, weigh_ring, held, most, weight);
  launch_over_rows("probe_query", cuda, a.num_sequences, a.width, Probe{mean, weight, most, a.probe});
}

void run_cuda(const EntropyShare& a, CudaContext& cuda) {
  if (a.num_sequences == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t rows = std::int64_t{a.num_sequences} * a.kv_heads;
  const auto [first, average, entropies] =
      upload_all(cuda, host_array(a.first, rows + 1), host_array(a.average, rows), host_array(a.entropies, a.num_sequences));
  auto* const keep = cuda.scratch<std::int32_t>(rows);
  launch("entropy_share", cuda, {dim3(static_cast<unsigned>(a.num_sequences)), dim3(kThreads)}, entropy_share,
         EntropyArgs{a.kv_heads, a.layer, a.num_layers, first, a.probabilities, average, entropies, keep});
  cuda::to_host(a.keep, keep, 4 * rows, cuda.stream());
  cuda.synchronize();
}

}  // namespace kvlab
