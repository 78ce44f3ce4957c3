#include <algorithm>

#include "kernels/device/cuda/ordered_key.cuh"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/sort_rows.cuh"
#include "kernels/device/cuda/unit_list.h"
#include "kernels/device/cuda/upload.h"
#include "kernels/select/unit_lists/unit_lists.h"

namespace kvlab {

namespace {

constexpr int kThreads = 512;

std::int64_t longest_of(const std::vector<UnitList>& lists) {
  std::int64_t longest = 0;
  for (const UnitList& l : lists) longest = std::max(longest, l.n);
  return longest;
}

struct Expand {
  const UnitList* lists;
  std::int32_t unit_tokens;
  const std::int32_t *base, *head, *tail;
  const std::int64_t* index_first;
  std::int32_t* index;
  __device__ std::int64_t count(int row) const { return index_first[row + 1] - index_first[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t front = head == nullptr ? 0 : head[row], chosen = lists[row].n * unit_tokens;
    std::int64_t token = i;
    if (i >= front + chosen)
      token = tail[row] + i - front - chosen;
    else if (i >= front)
      token = (base == nullptr ? 0 : base[row]) + std::int64_t{lists[row].unit[(i - front) / unit_tokens]} * unit_tokens +
              (i - front) % unit_tokens;
    index[index_first[row] + i] = static_cast<std::int32_t>(token);
  }
};

struct Compose {
  const UnitList* base;
  const std::int64_t* first;
  const std::int32_t* pick;  // null: all in order
  std::int32_t* out;
  __device__ std::int64_t count(int row) const { return first[row + 1] - first[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    out[first[row] + i] = base[row].unit[pick == nullptr ? i : pick[first[row] + i]];
  }
};

struct Keep {
  const UnitList* lists;
  std::int32_t* const* to;
  __device__ std::int64_t count(int row) const { return lists[row].n; }
  __device__ void operator()(int row, std::int64_t i) const { to[row][i] = lists[row].unit[i]; }
};

// Descending keys for ascending units; 0: none.
__device__ __forceinline__ std::uint32_t key_of_unit(std::int32_t unit) { return ~static_cast<std::uint32_t>(unit); }

// Lists [row * per_row, (row + 1) * per_row) as keys.
struct FillUnits {
  const UnitList* lists;
  std::int32_t per_row;
  std::uint32_t* keys;
  std::int64_t width;
  __device__ std::int64_t count(int) const { return width; }
  __device__ void operator()(int row, std::int64_t i) const {
    std::uint32_t key = 0;
    std::int64_t at = i;
    for (int l = row * per_row; l < (row + 1) * per_row && at >= 0; ++l) {
      if (at < lists[l].n) key = key_of_unit(lists[l].unit[at]);
      at -= lists[l].n;
    }
    keys[row * width + i] = key;
  }
};

// Distinct units of each sorted row, and their number. One block per row.
__global__ void __launch_bounds__(kThreads)
    take_different(const std::uint32_t* keys, std::int64_t width, const std::int64_t* first, std::int32_t* unit, std::int32_t* count) {
  KVLAB_SHARED(std::int32_t, shared, 33);
  const std::uint32_t* const mine = keys + blockIdx.x * width;
  std::int32_t taken = 0;
  for (std::int64_t at = 0; at < width; at += kThreads) {
    const std::int64_t i = at + threadIdx.x;
    const bool is_new = i < width && mine[i] != 0 && (i == 0 || mine[i] != mine[i - 1]);
    std::int32_t all;
    const std::int32_t place = taken + block_scan_exclusive(is_new ? 1 : 0, shared, all);
    if (is_new) unit[first[blockIdx.x] + place] = static_cast<std::int32_t>(~mine[i]);
    taken += all;
  }
  if (threadIdx.x == 0) count[blockIdx.x] = taken;
}

// Score in the high half; place in the low half, earlier is larger.
struct FillRanks {
  const UnitList* lists;
  const std::int64_t* score_first;
  const float* scores;
  std::uint64_t* keys;
  std::int64_t width;
  __device__ std::int64_t count(int) const { return width; }
  __device__ void operator()(int row, std::int64_t i) const {
    const UnitList& list = lists[row];
    keys[row * width + i] =
        i < list.n ? std::uint64_t{ordered_key(scores[score_first[row] + list.unit[i]])} << 32 | ~static_cast<std::uint32_t>(i) : 0U;
  }
};

struct TakeRanks {
  const UnitList* lists;
  const std::uint64_t* keys;
  std::int64_t width;
  std::int32_t* const* to;
  __device__ std::int64_t count(int row) const { return lists[row].n; }
  __device__ void operator()(int row, std::int64_t i) const {
    to[row][i] = lists[row].unit[~static_cast<std::uint32_t>(keys[row * width + i])];
  }
};

struct TakeSorted {
  const std::int64_t* first;
  const std::uint32_t* keys;
  std::int64_t width;
  std::int32_t* unit;
  __device__ std::int64_t count(int row) const { return first[row + 1] - first[row]; }
  __device__ void operator()(int row, std::int64_t i) const { unit[first[row] + i] = static_cast<std::int32_t>(~keys[row * width + i]); }
};

// One block per row.
__global__ void __launch_bounds__(kThreads) track_reuse(const UnitList* asked, const UnitList* now, std::int32_t* const* last,
                                                        const std::int32_t* last_count, const std::int32_t* held_from, std::int32_t* hits) {
  KVLAB_SHARED(std::int32_t, shared, 33);
  const int row = blockIdx.x;
  std::int32_t* const was = last[row];
  std::int32_t found = 0;
  for (std::int64_t i = threadIdx.x; i < asked[row].n; i += kThreads) {
    const std::int32_t unit = asked[row].unit[i];
    const bool is_held = held_from != nullptr && unit >= held_from[row];
    found += is_held || is_among(was, last_count[row], unit) ? 1 : 0;
  }
  found = block_sum(found, shared);  // also a barrier for the search
  if (threadIdx.x == 0) hits[row] = found;
  for (std::int64_t i = threadIdx.x; i < now[row].n; i += kThreads) was[i] = now[row].unit[i];
}

}  // namespace

void run_cuda(const ExpandUnits& a, CudaContext& cuda) {
  if (a.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::vector<UnitList> host = unit_list_of(a.lists, a.num_rows);
  const auto [lists, base, head, tail, index_first] =
      upload_all(cuda, std::span<const UnitList>(host), host_array(a.base, a.num_rows), host_array(a.head, a.num_rows),
                 host_array(a.tail, a.num_rows), host_array(a.index_first, a.num_rows + 1));
  launch_over_rows("expand_units", cuda, a.num_rows, longest_row(a.index_first, a.num_rows),
                   Expand{lists, a.unit_tokens, base, head, tail, index_first, a.index});
}

void run_cuda(const ComposeUnits& a, CudaContext& cuda) {
  if (a.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  std::vector<UnitList> host;
  for (std::int32_t r = 0; r < a.num_rows; ++r) host.push_back({a.base.row(r), 0});
  const auto [base, first] = upload_all(cuda, std::span<const UnitList>(host), host_array(a.first, a.num_rows + 1));
  launch_over_rows("compose_units", cuda, a.num_rows, longest_row(a.first, a.num_rows),
                   Compose{base, first, a.takes_all ? nullptr : a.pick, a.out});
}

void run_cuda(const UnionUnits& a, CudaContext& cuda) {
  if (a.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::vector<UnitList> host = unit_list_of(a.lists, a.num_rows * a.lists_per_row);
  std::int64_t most = 0;
  for (std::size_t r = 0; r < host.size(); r += static_cast<std::size_t>(a.lists_per_row)) {
    std::int64_t units = 0;
    for (std::size_t l = r; l < r + static_cast<std::size_t>(a.lists_per_row); ++l) units += host[l].n;
    most = std::max(most, units);
  }
  const auto [lists, first] = upload_all(cuda, std::span<const UnitList>(host), host_array(a.first, a.num_rows + 1));
  const std::int64_t width = sort_width(most);
  auto* const keys = cuda.scratch<std::uint32_t>(a.num_rows * width);
  auto* const count = cuda.scratch<std::int32_t>(a.num_rows);
  launch_over_rows("union_units", cuda, a.num_rows, width, FillUnits{lists, a.lists_per_row, keys, width});
  sort_rows("union_units", cuda, keys, a.num_rows, width);
  launch("union_units", cuda, {dim3(static_cast<unsigned>(a.num_rows)), dim3(kThreads)}, take_different,
         static_cast<const std::uint32_t*>(keys), width, first, a.unit, count);
  cuda::to_host(a.count, count, 4LL * a.num_rows, cuda.stream());
  cuda.synchronize();
}

void run_cuda(const KeepUnits& a, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  const std::vector<UnitList> host = unit_list_of(a.lists, a.num_rows);
  if (longest_of(host) == 0) return;
  const auto [lists, to] = upload_all(cuda, std::span<const UnitList>(host), host_array(a.to, a.num_rows));
  launch_over_rows("keep_units", cuda, a.num_rows, longest_of(host), Keep{lists, to});
}

void run_cuda(const RankUnits& a, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  const std::vector<UnitList> host = unit_list_of(a.lists, a.num_rows);
  const std::int64_t longest = longest_of(host), width = sort_width(longest);
  if (longest == 0) return;
  const auto [lists, score_first, to] =
      upload_all(cuda, std::span<const UnitList>(host), host_array(a.score_first, a.num_rows + 1), host_array(a.to, a.num_rows));
  auto* const keys = cuda.scratch<std::uint64_t>(a.num_rows * width);
  launch_over_rows("rank_units", cuda, a.num_rows, width, FillRanks{lists, score_first, a.scores, keys, width});
  sort_rows("rank_units", cuda, keys, a.num_rows, width);
  launch_over_rows("rank_units", cuda, a.num_rows, longest, TakeRanks{lists, keys, width, to});
}

void run_cuda(const TakeRanked& a, CudaContext& cuda) {
  const std::int64_t longest = longest_row(a.first, a.num_rows), width = sort_width(longest);
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  std::vector<UnitList> host;
  for (std::int32_t r = 0; r < a.num_rows; ++r) host.push_back({a.ranked[r], a.first[r + 1] - a.first[r]});
  const auto [lists, first] = upload_all(cuda, std::span<const UnitList>(host), host_array(a.first, a.num_rows + 1));
  auto* const keys = cuda.scratch<std::uint32_t>(a.num_rows * width);
  launch_over_rows("take_ranked", cuda, a.num_rows, width, FillUnits{lists, 1, keys, width});
  sort_rows("take_ranked", cuda, keys, a.num_rows, width);
  launch_over_rows("take_ranked", cuda, a.num_rows, longest, TakeSorted{first, keys, width, a.unit});
}

void run_cuda(const TrackReuse& a, CudaContext& cuda) {
  if (a.num_rows == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::vector<UnitList> host_asked = unit_list_of(a.asked, a.num_rows), host_now = unit_list_of(a.now, a.num_rows);
  const auto [asked, now, last, last_count, held_from] =
      upload_all(cuda, std::span<const UnitList>(host_asked), std::span<const UnitList>(host_now), host_array(a.last, a.num_rows),
                 host_array(a.last_count, a.num_rows), host_array(a.held_from, a.num_rows));
  auto* const hits = cuda.scratch<std::int32_t>(a.num_rows);
  launch("track_reuse", cuda, {dim3(static_cast<unsigned>(a.num_rows)), dim3(kThreads)}, track_reuse, asked, now, last, last_count,
         held_from, hits);
  cuda::to_host(a.hits, hits, 4LL * a.num_rows, cuda.stream());
  cuda.synchronize();
}

}  // namespace kvlab
