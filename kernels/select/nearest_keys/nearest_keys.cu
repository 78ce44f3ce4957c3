#include <algorithm>

#include "kernels/device/cuda/token_sums.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/select/nearest_keys/nearest_keys.h"
#include "kernels/select/top_k/select_rows.h"

namespace kvlab {

namespace {

constexpr int kHeads = 4;  // query heads per loaded key

struct Products {
  static constexpr int kSums = kHeads, kVectors = kHeads;
  const std::int32_t *first, *last;
  const float* const* query;  // [rows] -> [group, head_dim]
  float* const* out;          // [rows] -> [group, room of a row]
  std::int32_t head0, group, head_dim;
  std::int64_t room;
  __device__ std::int32_t begin(int row) const { return first[row]; }
  __device__ std::int32_t end(int row) const { return last[row]; }
  __device__ const float* vector(int row, int h) const { return head0 + h < group ? query[row] + (head0 + h) * head_dim : nullptr; }
  __device__ void add(float (&sums)[kHeads], float x, const float (&y)[kHeads]) const {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) sums[h] += x * y[h];
  }
  __device__ void finish(int row, std::int32_t token, const float (&sums)[kHeads]) const {
#pragma unroll
    for (int h = 0; h < kHeads; ++h)
      if (head0 + h < group) out[row][(head0 + h) * room + token - first[row]] = sums[h];
  }
};

}  // namespace

void run_cuda(const NearestKeys& a, CudaContext& cuda) {
  std::int64_t longest = 0, rows = 0;
  std::vector<std::int32_t> last;  // rows that keep nothing are not searched
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    last.push_back(a.keep[r] > 0 ? a.end[r] : a.begin[r]);
    if (a.keep[r] <= 0) continue;
    longest = std::max<std::int64_t>(longest, a.end[r] - a.begin[r]);
    ++rows;
  }
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t room = ceil_div(longest, 4) * 4;
  float* at = cuda.scratch<float>(rows * a.kv.group * room);
  std::vector<const float*> query;
  std::vector<float*> products;
  std::vector<SelectRow> chosen;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    const Queries& q = a.queries[a.kv.sequence(r)];
    const std::int64_t of_row = (static_cast<std::int64_t>(q.count - 1) * a.kv.kv_heads + r % a.kv.kv_heads) * a.kv.group * a.kv.head_dim;
    query.push_back(a.keep[r] > 0 ? q.data + of_row : nullptr);
    products.push_back(at);
    for (std::int32_t h = 0; h < a.kv.group && a.keep[r] > 0; ++h) {
      std::int32_t* const out = a.index + a.index_first[static_cast<std::int64_t>(r) * a.kv.group + h];
      chosen.push_back({at, out, a.end[r] - a.begin[r], a.keep[r], a.begin[r]});
      at += room;
    }
  }
  const DeviceRows kv = on_device(a.kv, cuda);
  const auto [first, end, queries, out] = upload_all(cuda, host_array(a.begin, kv.num_rows), std::span<const std::int32_t>(last),
                                                     std::span<const float* const>(query), std::span<float* const>(products));
  for (std::int32_t h = 0; h < kv.group; h += kHeads)
    launch_token_sums("nearest_keys", cuda, kv, a.kv.type, false, longest,
                      Products{first, end, queries, out, h, kv.group, kv.head_dim, room});
  select_indices(chosen, cuda);
}

}  // namespace kvlab
