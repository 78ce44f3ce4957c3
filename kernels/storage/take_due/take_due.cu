#include <unordered_set>
#include <vector>

#include "kernels/device/cuda/block_choose.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/storage/take_due/take_due.h"

namespace kvlab {

namespace {

struct Due {
  DeviceRows kv;
  std::uint32_t* words;  // of the channel
  std::uint32_t bit;
  std::int32_t residual_tokens, block_tokens;
  const std::int64_t* first;
  std::int32_t* index;
  int row_begin;  // of the launch
};

// One block per row.
__global__ void __launch_bounds__(kRowThreads) take_due(Due a) {
  KVLAB_SHARED(std::int32_t, shared, 33);
  const int row = a.row_begin + static_cast<int>(blockIdx.x);
  const std::int32_t n = a.kv.len[row];
  const auto room = static_cast<std::int32_t>(a.first[row + 1] - a.first[row]);
  if (room == 0) return;
  std::int32_t mine = 0;
  for (std::int32_t i = threadIdx.x; i < n; i += kRowThreads) mine += (a.words[a.kv.slot(row, i)] & a.bit) == 0 ? 1 : 0;
  std::int32_t take = min(room, max(0, block_sum(mine, shared) - a.residual_tokens));
  take -= take % a.block_tokens;
  std::int32_t* const list = a.index + a.first[row];
  for (std::int32_t at = 0, taken = 0; taken < take && at < n; at += kRowThreads) {
    const std::int32_t i = at + static_cast<std::int32_t>(threadIdx.x);
    const std::int64_t slot = i < n ? a.kv.slot(row, i) : 0;
    const bool is_free = i < n && (a.words[slot] & a.bit) == 0;
    std::int32_t all;
    const std::int32_t place = taken + block_scan_exclusive(is_free ? 1 : 0, shared, all);
    if (is_free && place < take) {
      list[place] = i;
      a.words[slot] |= a.bit;
    }
    taken += all;
  }
  for (std::int32_t i = take + static_cast<std::int32_t>(threadIdx.x); i < room; i += kRowThreads) list[i] = -1;
}

// Sequences of one prefix share its first pages; the earlier one takes due tokens. Each launch takes adjacent sequences with different
// first pages. Returns the rows per launch.
std::vector<std::int32_t> rows_apart(const KvRows& kv) {
  std::vector<std::int32_t> rows;
  std::unordered_set<std::int32_t> first_pages;
  for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
    const std::int32_t row = s * kv.kv_heads;
    const bool is_new = kv.len[row] == 0 || first_pages.insert(kv.page[kv.page_begin[row]]).second;
    if (rows.empty() || !is_new) rows.push_back(0);
    if (!is_new) first_pages = {kv.page[kv.page_begin[row]]};
    rows.back() += kv.kv_heads;
  }
  return rows;
}

// One block per row.
__global__ void __launch_bounds__(kRowThreads) split_listed(SplitListed a) {
  KVLAB_SHARED(std::int32_t, counts, 33);
  KVLAB_SHARED(std::uint64_t, sums, 33);
  const int row = blockIdx.x;
  const auto n = static_cast<std::int32_t>(a.first[row + 1] - a.first[row]);
  const auto high = static_cast<std::int32_t>(a.high_first[row + 1] - a.high_first[row]);
  const std::int32_t* const list = a.index + a.first[row];
  const float* const scores = a.scores + a.row_first[row];
  const auto key = [&](std::int32_t i) { return list[i] < 0 ? 0U : ordered_key(scores[list[i]]); };
  const BlockCut cut = block_cut(n, min(high, n), key, counts);
  std::int32_t* const high_list = a.high + a.high_first[row];
  std::int32_t* const low_list = a.low + (a.first[row] - a.high_first[row]);
  block_choose(n, cut, key, sums, [&](std::int32_t i, bool chosen, std::int32_t before) {
    if (chosen)
      high_list[before] = list[i];
    else
      low_list[i - before] = list[i];
  });
}

}  // namespace

void run_cuda(const TakeDue& a, CudaContext& cuda) {
  if (a.kv.num_rows == 0 || a.first[a.kv.num_rows] == a.first[0]) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  Due due{
      kv, kv.words + a.channel * kv.pool_tokens, a.bit, a.residual_tokens, a.block_tokens, cuda.upload(a.first, kv.num_rows + 1), a.index,
      0};
  for (const std::int32_t rows : rows_apart(a.kv)) {
    launch("take_due", cuda, block_each(rows), take_due, due);
    due.row_begin += rows;
  }
}

void run_cuda(const SplitListed& a, CudaContext& cuda) {
  if (a.num_rows == 0 || a.first[a.num_rows] == a.first[0]) return;
  const CudaContext::Frame frame(cuda);
  SplitListed on_gpu = a;
  std::tie(on_gpu.first, on_gpu.row_first, on_gpu.high_first) = upload_all(
      cuda, host_array(a.first, a.num_rows + 1), host_array(a.row_first, a.num_rows + 1), host_array(a.high_first, a.num_rows + 1));
  launch("split_listed", cuda, block_each(a.num_rows), split_listed, on_gpu);
}

}  // namespace kvlab
