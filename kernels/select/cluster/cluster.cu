#include <algorithm>

#include "kernels/device/cuda/bucket_lists.cuh"
#include "kernels/device/cuda/tile_product.cuh"
#include "kernels/select/cluster/cluster.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;

struct Clusters {
  DeviceRows kv;
  const std::int64_t *token_first, *cluster_first;  // [rows + 1] clustered tokens, clusters
  float* inverse;                                   // [tokens] 1 / key length; 0 for zero keys
  float* centres;                                   // [clusters, head_dim] of length 1
  std::int32_t* cluster;                            // [tokens]
  int blocks;                                       // per row, of tokens or clusters

  __device__ std::int32_t tokens(int row) const { return static_cast<std::int32_t>(token_first[row + 1] - token_first[row]); }
  __device__ std::int32_t clusters(int row) const { return static_cast<std::int32_t>(cluster_first[row + 1] - cluster_first[row]); }
  template <class T>
  __device__ const T* key(int row, std::int32_t token) const {
    return static_cast<const T*>(kv.k) + kv.slot(row, token) * kv.head_dim;
  }
};

// A warp per token.
template <class T>
__global__ void __launch_bounds__(kThreads) measure_keys(Clusters a) {
  const int row = blockIdx.x / a.blocks;
  const std::int32_t i = blockIdx.x % a.blocks * kWarps + warp_index();
  if (i >= a.tokens(row)) return;
  const T* const key = a.key<T>(row, i);
  float squares = 0;
  for (int c = lane_index(); c < a.kv.head_dim; c += kWarpSize) squares += load_float(key + c) * load_float(key + c);
  squares = warp_sum(squares);
  if (lane_index() == 0) a.inverse[a.token_first[row] + i] = squares > 0 ? 1.0F / sqrtf(squares) : 0.0F;
}

// Keys spread evenly over the row. A warp per cluster.
template <class T>
__global__ void __launch_bounds__(kThreads) choose_centres(Clusters a) {
  const int row = blockIdx.x / a.blocks;
  const std::int32_t c = blockIdx.x % a.blocks * kWarps + warp_index();
  if (c >= a.clusters(row)) return;
  const auto token = static_cast<std::int32_t>((2LL * c + 1) * a.tokens(row) / (2LL * a.clusters(row)));
  const T* const key = a.key<T>(row, token);
  const float inverse = a.inverse[a.token_first[row] + token];
  for (int x = lane_index(); x < a.kv.head_dim; x += kWarpSize)
    a.centres[(a.cluster_first[row] + c) * a.kv.head_dim + x] = load_float(key + x) * inverse;
}

// Nearest center of each key, ties to the lower. A block per 64 keys; 64 centers at a time.
template <class T>
__global__ void __launch_bounds__(kTileThreads, 2) assign_keys(Clusters a) {
  KVLAB_SHARED(float4, shared, kTileFloats / 4);
  KVLAB_SHARED(std::int64_t, slot, kTileSide);
  const int row = blockIdx.x / a.blocks, d = a.kv.head_dim;
  const std::int32_t first = blockIdx.x % a.blocks * kTileSide, n = a.tokens(row), clusters = a.clusters(row);
  if (first >= n) return;
  if (threadIdx.x < kTileSide) slot[threadIdx.x] = a.kv.slot(row, min(first + static_cast<std::int32_t>(threadIdx.x), n - 1));
  __syncthreads();
  const T* const keys = static_cast<const T*>(a.kv.k);
  const float* const centres = a.centres + a.cluster_first[row] * d;
  const int row0 = static_cast<int>(threadIdx.x) / 16 * 4, column0 = static_cast<int>(threadIdx.x) % 16 * 4;
  float best[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
  std::int32_t at[4] = {};
  for (std::int32_t c0 = 0; c0 < clusters; c0 += kTileSide) {
    float z[4][4] = {};
    add_tile_product<false>(
        z, d, shared, [&](int i, int k) { return load_float(keys + slot[i] * d + k); },
        [&](int i, int k) { return c0 + i < clusters ? centres[std::int64_t{c0 + i} * d + k] : 0.0F; });
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (c0 + column0 + j >= clusters) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (z[i][j] > best[i]) best[i] = z[i][j], at[i] = c0 + column0 + j;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int offset = 1; offset < 16; offset *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best[i], offset);
      const std::int32_t there = __shfl_xor_sync(kAllLanes, at[i], offset);
      if (other > best[i] || (other == best[i] && there < at[i])) best[i] = other, at[i] = there;
    }
    if (column0 == 0 && first + row0 + i < n) a.cluster[a.token_first[row] + first + row0 + i] = at[i];
  }
}

// Each cluster's direction of summed unit keys, or (`means`) mean key and size. A warp per cluster.
struct Means {
  float* const* centroids;
  std::int32_t* const* sizes;
};
template <class T>
__global__ void __launch_bounds__(kThreads, 4) average_keys(Clusters a, BucketLists lists, bool last, Means means) {
  const int row = blockIdx.x / a.blocks, d = a.kv.head_dim;
  const std::int32_t c = blockIdx.x % a.blocks * kWarps + warp_index();
  if (c >= a.clusters(row)) return;
  const std::int64_t at = a.cluster_first[row] + c, first = a.token_first[row];
  const std::int32_t n = lists.counts[at];
  const std::int32_t* const mine = lists.items + first + lists.begin[at];
  if (last && lane_index() == 0) means.sizes[row][c] = n;
  if (n == 0 && !last) return;
  float squares = 0;
  for (int x = lane_index(); x < d; x += kWarpSize) {
    float sum = 0;
#pragma unroll 4
    for (std::int32_t i = 0; i < n; ++i) sum += load_float(a.key<T>(row, mine[i]) + x) * (last ? 1.0F : a.inverse[first + mine[i]]);
    if (last)
      means.centroids[row][std::int64_t{c} * d + x] = sum / static_cast<float>(max(n, 1));
    else
      a.centres[at * d + x] = sum;
    squares += sum * sum;
  }
  if (last) return;
  const float length = sqrtf(warp_sum(squares));
  for (int x = lane_index(); x < d && length > 0.0F; x += kWarpSize) a.centres[at * d + x] /= length;
}

struct GiveClusters {
  const std::int64_t* first;
  const std::int32_t* cluster;
  std::int32_t* const* out;
  __device__ std::int64_t count(int row) const { return first[row + 1] - first[row]; }
  __device__ void operator()(int row, std::int64_t i) const { out[row][i] = cluster[first[row] + i]; }
};

template <class T>
void run(const ClusterKeys& a, Clusters clusters, const Means& means, std::int64_t longest, std::int64_t most, std::int64_t total,
         CudaContext& cuda) {
  const char* const name = "cluster_keys";
  const std::int64_t rows = a.kv.num_rows, tokens = total;
  std::int64_t all = 0;
  for (std::int32_t r = 0; r < rows; ++r) all += a.tokens[r] > 0 ? a.clusters[r] : 0;
  const BucketLists lists = make_bucket_lists(cuda, clusters.token_first, clusters.cluster_first, clusters.cluster, tokens, all);
  const auto shape_of = [&](std::int64_t blocks) {
    clusters.blocks = static_cast<int>(blocks);
    return LaunchShape{dim3(static_cast<unsigned>(rows * blocks)), dim3(kThreads)};
  };
  const LaunchShape per_token = shape_of(ceil_div(longest, kWarps));
  launch(name, cuda, per_token, measure_keys<T>, clusters);
  const LaunchShape per_cluster = shape_of(ceil_div(most, kWarps));
  launch(name, cuda, per_cluster, choose_centres<T>, clusters);
  for (std::int32_t round = 0; round < a.rounds; ++round) {
    const LaunchShape per_tile = shape_of(ceil_div(longest, kTileSide));
    launch(name, cuda, per_tile, assign_keys<T>, clusters);
    fill_bucket_lists(name, cuda, lists, rows, longest, all);
    shape_of(ceil_div(most, kWarps));
    launch(name, cuda, per_cluster, average_keys<T>, clusters, lists, round + 1 == a.rounds, means);
  }
}

}  // namespace

void run_cuda(const ClusterKeys& a, CudaContext& cuda) {
  const std::int32_t rows = a.kv.num_rows;
  std::vector<std::int64_t> token_first(1, 0), cluster_first(1, 0);
  std::int64_t longest = 0, most = 0;
  for (std::int32_t r = 0; r < rows; ++r) {
    const std::int64_t n = a.tokens[r], k = n > 0 ? a.clusters[r] : 0;
    token_first.push_back(token_first.back() + n), cluster_first.push_back(cluster_first.back() + k);
    longest = std::max(longest, n), most = std::max(most, k);
  }
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto [tokens, clusters, cluster_of, centroids, sizes] =
      upload_all(cuda, std::span<const std::int64_t>(token_first), std::span<const std::int64_t>(cluster_first),
                 host_array(a.cluster_of, rows), host_array(a.centroids, rows), host_array(a.sizes, rows));
  const std::int64_t total = token_first.back();
  const Clusters all{on_device(a.kv, cuda),
                     tokens,
                     clusters,
                     cuda.scratch<float>(total),
                     cuda.scratch<float>(cluster_first.back() * a.kv.head_dim),
                     cuda.scratch<std::int32_t>(total),
                     0};
  const Means means{centroids, sizes};
  for_type(a.kv.type, [&](auto zero) { run<decltype(zero)>(a, all, means, longest, most, total, cuda); });
  launch_over_rows("cluster_keys", cuda, rows, longest, GiveClusters{tokens, all.cluster, cluster_of});
}

}  // namespace kvlab
