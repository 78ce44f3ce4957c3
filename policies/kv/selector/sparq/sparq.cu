#include <cmath>

#include "kernels/device/cuda/block_choose.cuh"
#include "kernels/device/cuda/download.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/query_lines.cuh"
#include "kernels/device/cuda/unit_list.h"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/selector/sparq/sparq.h"

namespace kvlab {

namespace {

std::vector<const float*> newest_queries(const KvRows& kv, const Queries* queries) {
  std::vector<const float*> newest;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const Queries& q = queries[kv.sequence(r)];
    const std::int64_t at = (static_cast<std::int64_t>(q.count - 1) * kv.kv_heads + r % kv.kv_heads) * kv.group * kv.head_dim;
    newest.push_back(q.data == nullptr ? nullptr : q.data + at);
  }
  return newest;
}

struct Sparq {
  DeviceRows kv;
  const float* const* query;  // [num_rows] -> [group, head_dim]
  std::int32_t channels;
  std::int32_t* channel;  // [num_rows, channels]
  float* size;            // [num_rows, head_dim]
  float* scale;           // [num_rows, group]
  float *each, *scores;

  __device__ float* each_of(int row, int head) const { return each + kv.group * kv.first[row] + std::int64_t{head} * kv.len[row]; }
};

// One block per row. Sums are in the order of the CPU version, so that ties are the same.
__global__ void __launch_bounds__(kRowThreads) choose_channels(Sparq a) {
  KVLAB_SHARED(std::int32_t, counts, 33);
  KVLAB_SHARED(std::uint64_t, sums, 33);
  const int row = blockIdx.x, d = a.kv.head_dim;
  if (a.kv.len[row] == 0) return;
  const float* const q = a.query[row];
  float* const size = a.size + std::int64_t{row} * d;
  std::int32_t* const channel = a.channel + std::int64_t{row} * a.channels;
  for (int c = threadIdx.x; c < d; c += kRowThreads) {
    float sum = 0;
    for (int h = 0; h < a.kv.group; ++h) sum += fabsf(q[h * d + c]);
    size[c] = sum;
  }
  __syncthreads();
  const auto key = [&](std::int32_t c) { return ordered_key(size[c]); };
  block_choose(d, block_cut(d, a.channels, key, counts), key, sums, [&](std::int32_t c, bool chosen, std::int32_t before) {
    if (chosen) channel[before] = c;
  });
  __syncthreads();
  for (int h = threadIdx.x; h < a.kv.group; h += kRowThreads) {
    float part = 0, whole = 0;
    for (int j = 0; j < a.channels; ++j) part += fabsf(q[h * d + channel[j]]);
    for (int c = 0; c < d; ++c) whole += fabsf(q[h * d + c]);
    a.scale[row * a.kv.group + h] = part > 0 ? 1.0F / sqrtf(static_cast<float>(d) * part / whole) : 0.0F;
  }
}

template <class T>
struct SparqLogits {
  Sparq a;
  __device__ std::int64_t count(int row) const { return a.kv.len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    const T* const key = key_at<T>(a.kv, row, static_cast<std::int32_t>(i));
    const std::int32_t* const channel = a.channel + std::int64_t{row} * a.channels;
    for (int h = 0; h < a.kv.group; ++h) {
      float z = 0;
      for (int j = 0; j < a.channels; ++j) z += a.query[row][h * a.kv.head_dim + channel[j]] * load_float(key + channel[j]);
      a.each_of(row, h)[i] = z * a.scale[row * a.kv.group + h];
    }
  }
};

// A block per row and head, in place.
__global__ void __launch_bounds__(kRowThreads) soften_each(Sparq a) {
  KVLAB_SHARED(float, shared, 33);
  const int row = blockIdx.x / a.kv.group, n = a.kv.len[row];
  float* const p = a.each_of(row, blockIdx.x % a.kv.group);
  float top = -INFINITY, sum = 0;
  for (int i = threadIdx.x; i < n; i += kRowThreads) top = fmaxf(top, p[i]);
  top = block_max(top, shared);
  for (int i = threadIdx.x; i < n; i += kRowThreads) sum += p[i] = expf(p[i] - top);
  sum = block_sum(sum, shared);
  for (int i = threadIdx.x; i < n; i += kRowThreads) p[i] /= sum;
}

struct MeanOfEach {
  Sparq a;
  __device__ std::int64_t count(int row) const { return a.kv.len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    float mean = 0;
    for (int h = 0; h < a.kv.group; ++h) mean += a.each_of(row, h)[i] / static_cast<float>(a.kv.group);
    a.scores[a.kv.first[row] + i] = mean;
  }
};

// A thread per row and channel.
template <class T>
__global__ void __launch_bounds__(kRowThreads) sum_values(DeviceRows kv, const std::int32_t* from, float* const* sum, int chunks) {
  const int row = blockIdx.x / chunks, c = blockIdx.x % chunks * kRowThreads + threadIdx.x;
  if (c >= kv.head_dim || (from[row] > 0 && from[row] >= kv.len[row])) return;
  float x = from[row] == 0 ? 0.0F : sum[row][c];
  for (std::int32_t i = from[row]; i < kv.len[row]; ++i) x += load_float(value_at<T>(kv, row, i) + c);
  sum[row][c] = x;
}

struct Rest {
  DeviceRows kv;
  const float* const* query;
  const UnitList* lists;
  const float* each;
  const float* const* sum;
  float *k, *v;
  std::int32_t* position;
  float* log_weight;
  float scale;
};

// A block per row.
template <class T>
__global__ void __launch_bounds__(kRowThreads) make_rest(Rest a) {
  KVLAB_SHARED(float, shared, 33);
  KVLAB_SHARED(double, sums, 33);
  const int row = blockIdx.x, d = a.kv.head_dim, n = a.kv.len[row];
  const UnitList list = a.lists[row];
  for (int c = threadIdx.x; c < d; c += kRowThreads) {
    a.k[std::int64_t{row} * d + c] = 0.0F;
    a.v[std::int64_t{row} * d + c] = n == 0 ? 0.0F : a.sum[row][c] / static_cast<float>(n);
  }
  if (threadIdx.x == 0) a.position[row] = 0;
  for (int h = 0; h < a.kv.group; ++h) {
    const float* const p = a.each + a.kv.group * a.kv.first[row] + std::int64_t{h} * n;
    double alpha = 0;
    for (std::int64_t i = threadIdx.x; i < list.n; i += kRowThreads) alpha += p[list.unit[i]];
    alpha = block_sum(alpha, sums);
    float& weight = a.log_weight[row * a.kv.group + h];
    if (list.n == n || alpha >= 1) {
      if (threadIdx.x == 0) weight = -INFINITY;
      continue;
    }
    const float* const q = a.query[row] + h * d;
    const Softmax s =
        block_softmax(list.n, shared, [&](std::int64_t i) { return a.scale * warp_dot(q, key_at<T>(a.kv, row, list.unit[i]), d); });
    if (threadIdx.x == 0) weight = s.top + logf(s.sum) + static_cast<float>(log((1 - alpha) / fmax(alpha, 1e-30)));
  }
}

// A block per row.
__global__ void __launch_bounds__(kRowThreads) count_pages(const UnitList* lists, std::int32_t page_tokens, std::int32_t* count) {
  KVLAB_SHARED(std::int32_t, shared, 33);
  const UnitList list = lists[blockIdx.x];
  std::int32_t mine = 0;
  for (std::int64_t i = threadIdx.x; i < list.n; i += kRowThreads)
    mine += i == 0 || list.unit[i] / page_tokens != list.unit[i - 1] / page_tokens ? 1 : 0;
  mine = block_sum(mine, shared);
  if (threadIdx.x == 0) count[blockIdx.x] = mine;
}

}  // namespace

void run_cuda(const SparqScores& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::vector<const float*> queries = newest_queries(a.kv, a.queries);
  const std::int64_t rows = a.kv.num_rows;
  Sparq s{};
  s.kv = on_device(a.kv, cuda), s.query = cuda.upload(queries.data(), rows), s.channels = a.channels;
  s.channel = cuda.scratch<std::int32_t>(rows * a.channels), s.size = cuda.scratch<float>(rows * a.kv.head_dim);
  s.scale = cuda.scratch<float>(rows * a.kv.group), s.each = a.each, s.scores = a.scores;
  launch("sparq_scores", cuda, block_each(rows), choose_channels, s);
  for_type(a.kv.type, [&](auto zero) { launch_over_rows("sparq_scores", cuda, rows, s.kv.longest, SparqLogits<decltype(zero)>{s}); });
  launch("sparq_scores", cuda, block_each(rows * a.kv.group), soften_each, s);
  launch_over_rows("sparq_scores", cuda, rows, s.kv.longest, MeanOfEach{s});
}

void run_cuda(const ValueSums& a, CudaContext& cuda) {
  if (a.kv.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const auto chunks = static_cast<int>(ceil_div(kv.head_dim, kRowThreads));
  for_type(a.kv.type, [&](auto zero) {
    launch("value_sums", cuda, block_each(std::int64_t{kv.num_rows} * chunks), sum_values<decltype(zero)>, kv,
           cuda.upload(a.from, kv.num_rows), cuda.upload(a.sum, kv.num_rows), chunks);
  });
}

void run_cuda(const SparqRest& a, CudaContext& cuda) {
  if (a.kv.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::vector<const float*> queries = newest_queries(a.kv, a.queries);
  const std::vector<UnitList> lists = unit_list_of(a.lists, a.kv.num_rows);
  Rest rest{};
  rest.kv = on_device(a.kv, cuda);
  std::tie(rest.query, rest.lists, rest.sum) =
      upload_all(cuda, std::span<const float* const>(queries), std::span<const UnitList>(lists), host_array(a.sum, a.kv.num_rows));
  rest.each = a.each, rest.k = a.k, rest.v = a.v, rest.position = a.position, rest.log_weight = a.log_weight;
  rest.scale = 1.0F / std::sqrt(static_cast<float>(a.kv.head_dim));
  for_type(a.kv.type, [&](auto zero) { launch("sparq_rest", cuda, block_each(a.kv.num_rows), make_rest<decltype(zero)>, rest); });
}

void run_cuda(const FlashPages& a, CudaContext& cuda) {
  if (a.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::vector<UnitList> lists = unit_list_of(a.lists, a.num_rows);
  std::int32_t* const count = cuda.scratch<std::int32_t>(a.num_rows);
  launch("flash_pages", cuda, block_each(a.num_rows), count_pages, cuda.upload(lists.data(), a.num_rows), a.page_tokens, count);
  const std::vector<std::int32_t> host = download(cuda, count, a.num_rows);
  std::copy(host.begin(), host.end(), a.count);
}

}  // namespace kvlab
