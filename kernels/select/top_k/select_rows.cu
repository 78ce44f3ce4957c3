#include <algorithm>

#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/select/top_k/radix_select.cuh"
#include "kernels/select/top_k/top_k.h"

namespace kvlab {

namespace {

using radix::Cut;
using radix::Search;

struct PutIndices {
  __device__ void operator()(const SelectRow& row, std::int32_t place, std::int32_t token) const {
    static_cast<std::int32_t*>(row.out)[place] = row.base + token;
  }
};
struct PutMarks {
  float value;
  __device__ void operator()(const SelectRow& row, std::int32_t, std::int32_t token) const { static_cast<float*>(row.out)[token] = value; }
};

template <int Digit, int PerThread, int Threads>
__device__ __forceinline__ Search next_digit(const std::uint32_t (&key)[PerThread], Search search, std::uint32_t* histogram,
                                             std::uint32_t* shared) {
#pragma unroll
  for (int i = threadIdx.x; i < radix::bins_of(Digit); i += Threads) histogram[i] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < PerThread; ++i)
    if (key[i] != 0 && radix::begins_with(key[i], Digit, search.prefix)) atomicAdd(&histogram[radix::bin_of<Digit>(key[i])], 1U);
  __syncthreads();
  return radix::add_digit<Digit, Threads>(histogram, search, shared);
}

// One block per row, with keys in registers.
template <int Threads, int PerThread, class Put>
__global__ void __launch_bounds__(Threads, 1) select_in_registers(const SelectRow* rows, Put put) {
  KVLAB_SHARED(std::uint32_t, histogram, radix::kBins);
  KVLAB_SHARED(std::uint32_t, shared, 35);
  const SelectRow row = rows[blockIdx.x];
  if (row.keep <= 0 || row.n <= 0) return;
  const std::int64_t warp_base = warp_index() * kWarpSize * PerThread - radix::skew_of(row.scores);
  std::uint32_t key[PerThread];
  radix::load_stretch<PerThread>(row.scores, warp_base, row.n, key);
  Cut cut{0, 0};
  if (row.keep < row.n) {
    Search search{0, static_cast<std::uint32_t>(row.keep)};
    search = next_digit<0, PerThread, Threads>(key, search, histogram, shared);
    search = next_digit<1, PerThread, Threads>(key, search, histogram, shared);
    search = next_digit<2, PerThread, Threads>(key, search, histogram, shared);
    cut = {search.prefix, search.want};
  }
  std::uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < PerThread; ++i) mine += radix::tally(key[i], cut.key);
  mine = warp_sum(mine);
  __syncthreads();  // the search's result has been read
  if (lane_index() == 0) shared[warp_index()] = mine;
  __syncthreads();
  const std::uint32_t of_warp = lane_index() < warp_index() ? shared[lane_index()] : 0U;
  const std::uint32_t above = warp_sum(of_warp & 0xFFFFU), equal = warp_sum(of_warp >> 16);
  radix::put_chosen<PerThread>(key, warp_base, cut, above, equal, [&](std::int32_t place, std::int32_t token) { put(row, place, token); });
}

// Long rows, and rows that share a budget: several blocks per row, histograms in global memory. Kernels recompute known digits.
constexpr int kLongThreads = 512, kLongPerThread = 32, kStretch = kLongThreads * kLongPerThread;

struct LongRow {
  const float* scores;
  std::int32_t n, group;
};

// Rows with a cut: tokens above it and the first `need` equal to it are already taken.
struct LongSearch {
  const LongRow* rows;
  const std::uint32_t* want;  // [groups]
  const Cut* taken;           // [rows], null: none
  std::uint32_t* histogram;   // [groups][kDigits][kBins], initially 0
  int stretches;              // of the longest row
};

template <int Digits>
__device__ __forceinline__ Search known_digits(const LongSearch& a, int group, std::uint32_t* shared) {
  Search search{0, a.want[group]};
  const std::uint32_t* histogram = a.histogram + static_cast<std::int64_t>(group) * radix::kDigits * radix::kBins;
  if constexpr (Digits > 0) search = radix::add_digit<0, kLongThreads>(histogram, search, shared);
  if constexpr (Digits > 1) search = radix::add_digit<1, kLongThreads>(histogram + radix::kBins, search, shared);
  if constexpr (Digits > 2) search = radix::add_digit<2, kLongThreads>(histogram + 2 * radix::kBins, search, shared);
  return search;
}

template <int Digit>
__global__ void __launch_bounds__(kLongThreads) count_digits(LongSearch a) {
  KVLAB_SHARED(std::uint32_t, histogram, radix::kBins);
  KVLAB_SHARED(std::uint32_t, shared, 35);
  const int r = blockIdx.x / a.stretches, stretch = blockIdx.x % a.stretches;
  const LongRow row = a.rows[r];
  const int skew = radix::skew_of(row.scores);
  if (std::int64_t{stretch} * kStretch - skew >= row.n || a.want[row.group] == 0) return;
  const Search search = known_digits<Digit>(a, row.group, shared);
  for (int i = threadIdx.x; i < radix::bins_of(Digit); i += kLongThreads) histogram[i] = 0;
  const std::int64_t warp_base = std::int64_t{stretch} * kStretch + warp_index() * kWarpSize * kLongPerThread - skew;
  std::uint32_t key[kLongPerThread];
  radix::load_stretch<kLongPerThread>(row.scores, warp_base, row.n, key);
  const Cut taken = a.taken != nullptr ? a.taken[r] : Cut{~0U, 0};
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kLongPerThread; ++i)
    if (key[i] != 0 && key[i] <= taken.key && radix::begins_with(key[i], Digit, search.prefix))
      atomicAdd(&histogram[radix::bin_of<Digit>(key[i])], 1U);
  __syncthreads();
  std::uint32_t* out = a.histogram + (static_cast<std::int64_t>(row.group) * radix::kDigits + Digit) * radix::kBins;
  for (int i = threadIdx.x; i < radix::bins_of(Digit); i += kLongThreads)
    if (histogram[i] != 0) atomicAdd(&out[i], histogram[i]);
  // Taken equals were counted above. Sums are modulo 2^32.
  if (threadIdx.x == 0 && stretch == 0 && taken.need > 0 && radix::begins_with(taken.key, Digit, search.prefix))
    atomicAdd(&out[radix::bin_of<Digit>(taken.key)], 0U - taken.need);
}

// tallies [rows, stretches]: numbers above (x) and equal to (y) the group's cut, with taken tokens if the row's cut is not below it. A
// row's first stretch writes cuts [groups].
__global__ void __launch_bounds__(kLongThreads) count_chosen(LongSearch a, uint2* tallies, Cut* cuts) {
  KVLAB_SHARED(std::uint32_t, shared, 35);
  const int r = blockIdx.x / a.stretches, stretch = blockIdx.x % a.stretches;
  const LongRow row = a.rows[r];
  const int skew = radix::skew_of(row.scores);
  if (a.want[row.group] == 0) {
    if (threadIdx.x == 0) {
      tallies[blockIdx.x] = make_uint2(0, 0);
      if (stretch == 0) cuts[row.group] = {~0U, 0};
    }
    return;
  }
  const Search search = known_digits<radix::kDigits>(a, row.group, shared);
  const std::int64_t warp_base = std::int64_t{stretch} * kStretch + warp_index() * kWarpSize * kLongPerThread - skew;
  std::uint32_t key[kLongPerThread];
  radix::load_stretch<kLongPerThread>(row.scores, warp_base, row.n, key);
  const std::uint32_t highest = a.taken != nullptr ? a.taken[r].key : ~0U;
  std::uint32_t mine = 0;
#pragma unroll
  for (int i = 0; i < kLongPerThread; ++i) mine += key[i] <= highest ? radix::tally(key[i], search.prefix) : 0U;
  mine = block_sum(mine, shared);
  if (threadIdx.x != 0) return;
  tallies[blockIdx.x] = make_uint2(mine & 0xFFFFU, mine >> 16);
  if (stretch == 0) cuts[row.group] = {search.prefix, search.want};
}

template <class Put>
__global__ void __launch_bounds__(kLongThreads)
    put_long(const SelectRow* rows, const uint2* tallies, const Cut* cuts, int stretches, Put put) {
  KVLAB_SHARED(std::uint32_t, shared, 33);
  const int r = blockIdx.x / stretches, stretch = blockIdx.x % stretches;
  const SelectRow row = rows[r];
  const int skew = radix::skew_of(row.scores);
  if (std::int64_t{stretch} * kStretch - skew >= row.n || row.keep <= 0) return;
  std::uint32_t above = 0, equal = 0;
  for (int i = threadIdx.x; i < stretch; i += kLongThreads) {
    const uint2 x = tallies[std::int64_t{r} * stretches + i];
    above += x.x, equal += x.y;
  }
  above = block_sum(above, shared), equal = block_sum(equal, shared);
  const Cut cut = cuts[r];
  const std::int64_t warp_base = std::int64_t{stretch} * kStretch + warp_index() * kWarpSize * kLongPerThread - skew;
  std::uint32_t key[kLongPerThread], mine = 0;
  radix::load_stretch<kLongPerThread>(row.scores, warp_base, row.n, key);
#pragma unroll
  for (int i = 0; i < kLongPerThread; ++i) mine += radix::tally(key[i], cut.key);
  mine = warp_sum(mine);
  __syncthreads();
  if (lane_index() == 0) shared[warp_index()] = mine;
  __syncthreads();
  const std::uint32_t of_warp = lane_index() < warp_index() ? shared[lane_index()] : 0U;
  above += warp_sum(of_warp & 0xFFFFU), equal += warp_sum(of_warp >> 16);
  radix::put_chosen<kLongPerThread>(key, warp_base, cut, above, equal,
                                    [&](std::int32_t place, std::int32_t token) { put(row, place, token); });
}

void search_long(LongSearch a, std::int64_t rows, std::int64_t groups, uint2* tallies, Cut* cuts, CudaContext& cuda) {
  const std::int64_t bins = groups * radix::kDigits * radix::kBins;
  a.histogram = cuda.scratch<std::uint32_t>(bins);
  cuda::fill(a.histogram, 0, bins * 4, cuda.stream());
  const LaunchShape shape{dim3(static_cast<unsigned>(rows * a.stretches)), dim3(kLongThreads)};
  launch("count_digits", cuda, shape, count_digits<0>, a);
  launch("count_digits", cuda, shape, count_digits<1>, a);
  launch("count_digits", cuda, shape, count_digits<2>, a);
  launch("count_chosen", cuda, shape, count_chosen, a, tallies, cuts);
}

int stretches_of(std::int64_t longest) { return static_cast<int>(ceil_div(longest + 3, kStretch)); }

template <class Put>
void select_long(const std::vector<SelectRow>& rows, std::int64_t longest, Put put, CudaContext& cuda) {
  std::vector<LongRow> searched;
  std::vector<std::uint32_t> want;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    searched.push_back({rows[r].scores, rows[r].n, static_cast<std::int32_t>(r)});
    want.push_back(static_cast<std::uint32_t>(std::clamp(rows[r].keep, 0, std::max(rows[r].n, 0))));
  }
  const auto [device_rows, device_searched, device_want] =
      upload_all(cuda, std::span<const SelectRow>(rows), std::span<const LongRow>(searched), std::span<const std::uint32_t>(want));
  const auto n = static_cast<std::int64_t>(rows.size());
  const LongSearch search{device_searched, device_want, nullptr, nullptr, stretches_of(longest)};
  uint2* const tallies = cuda.scratch<uint2>(n * search.stretches);
  Cut* const cuts = cuda.scratch<Cut>(n);
  search_long(search, n, n, tallies, cuts, cuda);
  launch("put_long", cuda, {dim3(static_cast<unsigned>(n * search.stretches)), dim3(kLongThreads)}, put_long<Put>, device_rows, tallies,
         cuts, search.stretches, put);
}

template <int Threads, int PerThread, class Put>
bool select_short(const std::vector<SelectRow>& rows, std::int64_t longest, Put put, CudaContext& cuda) {
  if (longest + 3 > Threads * PerThread) return false;
  launch("select_in_registers", cuda, {dim3(static_cast<unsigned>(rows.size())), dim3(Threads)},
         select_in_registers<Threads, PerThread, Put>, cuda.upload(rows.data(), static_cast<std::int64_t>(rows.size())), put);
  return true;
}

template <class Put>
void select(const std::vector<SelectRow>& rows, Put put, CudaContext& cuda) {
  std::int64_t longest = 0;
  bool aligned = true;
  for (const SelectRow& row : rows) {
    longest = std::max<std::int64_t>(longest, row.n);
    aligned = aligned && reinterpret_cast<std::uintptr_t>(row.scores) % 16 == 0;
  }
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t room = aligned ? longest - 3 : longest;  // aligned rows have no gap before the first score
  if (select_short<128, 4>(rows, room, put, cuda) || select_short<256, 8>(rows, room, put, cuda) ||
      select_short<512, 16>(rows, room, put, cuda) || select_short<1024, 16>(rows, room, put, cuda) ||
      select_short<1024, 32>(rows, room, put, cuda))
    return;
  select_long(rows, longest, put, cuda);
}

struct PoolCounts {
  std::vector<Cut> taken, cuts;  // of rows with floors; of pools
  std::vector<uint2> tallies;    // [rows, stretches]
};

PoolCounts count_pools(const std::vector<LongRow>& rows, const std::vector<std::uint32_t>& floors, const std::vector<std::uint32_t>& want,
                       int stretches, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  const auto n = static_cast<std::int64_t>(rows.size()), pools = static_cast<std::int64_t>(want.size());
  std::vector<LongRow> alone = rows;
  for (std::size_t r = 0; r < alone.size(); ++r) alone[r].group = static_cast<std::int32_t>(r);
  const auto [device_rows, device_alone, device_floors, device_want] =
      upload_all(cuda, std::span<const LongRow>(rows), std::span<const LongRow>(alone), std::span<const std::uint32_t>(floors),
                 std::span<const std::uint32_t>(want));
  uint2* const tallies = cuda.scratch<uint2>(n * stretches);
  Cut *const taken = cuda.scratch<Cut>(n), *const cuts = cuda.scratch<Cut>(pools);
  const bool any_floor = std::any_of(floors.begin(), floors.end(), [](std::uint32_t f) { return f > 0; });
  if (any_floor) search_long({device_alone, device_floors, nullptr, nullptr, stretches}, n, n, tallies, taken, cuda);
  search_long({device_rows, device_want, any_floor ? taken : nullptr, nullptr, stretches}, n, pools, tallies, cuts, cuda);
  PoolCounts counts{std::vector<Cut>(rows.size(), Cut{~0U, 0}), std::vector<Cut>(want.size()),
                    std::vector<uint2>(static_cast<std::size_t>(n * stretches))};
  if (any_floor) cuda::to_host(counts.taken.data(), taken, n * static_cast<std::int64_t>(sizeof(Cut)), cuda.stream());
  cuda::to_host(counts.cuts.data(), cuts, pools * static_cast<std::int64_t>(sizeof(Cut)), cuda.stream());
  cuda::to_host(counts.tallies.data(), tallies, n * stretches * static_cast<std::int64_t>(sizeof(uint2)), cuda.stream());
  cuda.synchronize();
  return counts;
}

}  // namespace

void select_indices(const std::vector<SelectRow>& rows, CudaContext& cuda) { select(rows, PutIndices{}, cuda); }

void mark_largest(const std::vector<SelectRow>& rows, float value, CudaContext& cuda) { select(rows, PutMarks{value}, cuda); }

std::vector<std::int32_t> count_pooled(const std::vector<SelectRow>& rows, std::int32_t rows_per_pool,
                                       const std::vector<std::int64_t>& budget, CudaContext& cuda) {
  std::vector<LongRow> searched;
  std::vector<std::uint32_t> floors, want;
  std::vector<std::int32_t> keep;
  std::int64_t longest = 0;
  const auto per_pool = static_cast<std::size_t>(rows_per_pool);
  for (std::size_t p = 0; p < budget.size(); ++p) {
    std::int64_t left = budget[p], rest = 0;
    for (std::size_t r = p * per_pool; r < (p + 1) * per_pool; ++r) {
      searched.push_back({rows[r].scores, rows[r].n, static_cast<std::int32_t>(p)});
      floors.push_back(static_cast<std::uint32_t>(rows[r].keep));
      keep.push_back(rows[r].keep);
      longest = std::max<std::int64_t>(longest, rows[r].n);
      left -= rows[r].keep, rest += rows[r].n - rows[r].keep;
    }
    want.push_back(static_cast<std::uint32_t>(std::clamp<std::int64_t>(left, 0, rest)));
  }
  if (longest == 0) return keep;
  const int stretches = stretches_of(longest);
  const PoolCounts counts = count_pools(searched, floors, want, stretches, cuda);
  for (std::size_t p = 0; p < budget.size(); ++p) {
    if (want[p] == 0) continue;
    const Cut cut = counts.cuts[p];
    std::uint32_t need = cut.need;
    for (std::size_t r = p * per_pool; r < (p + 1) * per_pool; ++r) {
      std::uint32_t above = 0, equal = 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(stretches); ++i) {
        const uint2& tally = counts.tallies[r * static_cast<std::size_t>(stretches) + i];
        above += tally.x, equal += tally.y;
      }
      const Cut& taken = counts.taken[r];
      if (taken.key > cut.key) above -= taken.need;
      if (taken.key == cut.key) equal -= taken.need;
      const std::uint32_t ties = std::min(equal, need);
      need -= ties;
      keep[r] += static_cast<std::int32_t>(above + ties);
    }
  }
  return keep;
}

void run_cuda(const TopK& a, CudaContext& cuda) {
  if (a.peer_ties) throw CudaError("top_k: peer_ties, the order that a CPU's library leaves equal scores in, runs on the CPU alone");
  const bool counts = a.kind == TopK::Kind::kCounts;
  std::vector<SelectRow> rows;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const auto n = static_cast<std::int32_t>(a.first[r + 1] - a.first[r]);
    const std::int32_t floor = a.floor_tokens == nullptr ? 0 : std::min(a.floor_tokens[r], n);
    rows.push_back({a.row_scores != nullptr ? a.row_scores[r] : a.scores + a.first[r], counts ? nullptr : a.index + a.index_first[r], n,
                    counts ? floor : a.keep[r]});
  }
  if (!counts) return select_indices(rows, cuda);
  const std::vector<std::int32_t> count = count_pooled(rows, a.rows_per_pool, {a.budget, a.budget + a.num_rows / a.rows_per_pool}, cuda);
  std::copy(count.begin(), count.end(), a.count);
}

}  // namespace kvlab
