#include <algorithm>

#include "kernels/device/cuda/block_choose.cuh"
#include "kernels/device/cuda/listed_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/storage/outliers/outliers.h"

namespace kvlab {

namespace {

constexpr int kFewOutliers = 16;  // of both sides: a cut is found in 64 reads of the vector

struct Vectors {
  DeviceList list;
  bool per_channel;
  int most;                        // vectors of a row
  const std::int64_t* room_first;  // [num_rows] of the row's first vector
  const std::int32_t* room;        // [num_rows] outliers per vector
  std::uint16_t* value;
  OutlierPlaces place;
  int most_room;        // outliers of a vector
  std::int32_t* found;  // scratch like place, for more than few

  __device__ std::int32_t vectors(int row) const {
    return list.entries(row) == 0 ? 0 : per_channel ? list.rows.head_dim : list.entries(row);
  }
  // Numbers that belong to tokens.
  __device__ std::int32_t length(int row, std::int32_t vector) const {
    const std::int32_t tokens = listed_count(list, row);
    return per_channel ? tokens : vector < tokens ? list.rows.head_dim : 0;
  }
  template <class T>
  __device__ T& number(int row, std::int32_t vector, std::int32_t i) const {
    return per_channel ? listed_at<T>(list, row, i)[vector] : listed_at<T>(list, row, vector)[i];
  }
};

// A warp per vector, which is read once per pair of outliers: for few outliers, or short vectors.
template <class T>
__global__ void __launch_bounds__(kRowThreads) take_one_by_one(Vectors a, std::int64_t items) {
  const std::int64_t item = warp_item();
  if (item >= items) return;
  const auto row = static_cast<int>(item / a.most), vector = static_cast<int>(item % a.most);
  if (vector >= a.vectors(row)) return;
  const std::int32_t n = a.length(row, vector), room = a.room[row], half = min(room / 2, n / 2);
  const std::int64_t first = a.room_first[row] + std::int64_t{vector} * room;
  for (int i = 2 * half + lane_index(); i < room; i += kWarpSize) a.place.set(first + i, -1), a.value[first + i] = 0;
  if (half == 0) return;
  const auto number = [&](std::int32_t i) { return load_float(&a.number<T>(row, vector, i)); };
  double sum = 0;
  for (int i = lane_index(); i < n; i += kWarpSize) sum += number(i);
  sum = warp_sum(sum);
  const auto rank_of = [&](int i) { return std::uint64_t{ordered_key(number(i))} << 32 | (~0U - i); };  // of equals the earlier
  const auto keep = [&](std::int64_t at, std::uint64_t rank) {
    const auto i = static_cast<std::int32_t>(~0U - static_cast<std::uint32_t>(rank));
    a.place.set(first + at, i);
    a.value[first + at] = half_bits(number(i));
  };
  std::uint64_t high = ~std::uint64_t{0}, low = 0;
  for (int k = 0; k < half; ++k) {
    std::uint64_t below = 0, above = ~std::uint64_t{0};
    for (int i = lane_index(); i < n; i += kWarpSize) {
      const std::uint64_t rank = rank_of(i);
      if (rank < high) below = max(below, rank);
      if (rank > low) above = min(above, rank);
    }
    high = warp_max(below), low = warp_min(above);
    if (lane_index() == 0) keep(k, high), keep(half + k, low);
  }
  __syncwarp();
  for (int k = lane_index(); k < 2 * half; k += kWarpSize)
    store_float(&a.number<T>(row, vector, a.place.at(first + k)), static_cast<float>(sum / n));
}

// A block per vector; the number of reads is fixed.
template <class T>
__global__ void __launch_bounds__(kRowThreads) take_by_cut(Vectors a) {
  KVLAB_SHARED(std::int32_t, counts, 33);
  KVLAB_SHARED(std::uint64_t, scans, 33);
  KVLAB_SHARED(double, sums, 33);
  const int row = blockIdx.x / a.most, vector = blockIdx.x % a.most;
  if (vector >= a.vectors(row)) return;
  const std::int32_t n = a.length(row, vector), room = a.room[row], half = min(room / 2, n / 2);
  const std::int64_t first = a.room_first[row] + std::int64_t{vector} * room;
  std::int32_t* const found = a.found + first;
  for (int i = threadIdx.x; i < room; i += kRowThreads)
    if (i >= 2 * half) a.place.set(first + i, -1), a.value[first + i] = 0;
  if (half == 0) return;
  double sum = 0;
  for (int i = threadIdx.x; i < n; i += kRowThreads) sum += load_float(&a.number<T>(row, vector, i));
  sum = block_sum(sum, sums);
  const auto high = [&](std::int32_t i) { return ordered_key(load_float(&a.number<T>(row, vector, i))); };
  const auto low = [&](std::int32_t i) { return ~ordered_key(load_float(&a.number<T>(row, vector, n - 1 - i))); };  // of equals the last
  block_choose(n, block_cut(n, half, high, counts), high, scans, [&](std::int32_t i, bool chosen, std::int32_t before) {
    if (chosen) found[before] = i;
  });
  block_choose(n, block_cut(n, half, low, counts), low, scans, [&](std::int32_t i, bool chosen, std::int32_t before) {
    if (chosen) found[half + before] = n - 1 - i;
  });
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * half; i += kRowThreads) {  // from the most extreme one on
    const int side = i < half ? 0 : half;
    const std::uint32_t mine = high(found[i]);
    int before = 0;
    for (int j = side; j < side + half; ++j) {
      const std::uint32_t other = high(found[j]);
      before += (side == 0 ? other > mine : other < mine) || (other == mine && j < i) ? 1 : 0;
    }
    a.place.set(first + side + before, found[i]);
    a.value[first + side + before] = half_bits(load_float(&a.number<T>(row, vector, found[i])));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * half; i += kRowThreads) store_float(&a.number<T>(row, vector, found[i]), static_cast<float>(sum / n));
}

// A block per vector.
template <class T>
__global__ void __launch_bounds__(kRowThreads) restore_outliers(Vectors a) {
  const int row = blockIdx.x / a.most, vector = blockIdx.x % a.most;
  if (vector >= a.vectors(row)) return;
  const std::int64_t first = a.room_first[row] + std::int64_t{vector} * a.room[row];
  for (int i = threadIdx.x; i < a.room[row]; i += kRowThreads)
    if (const std::int32_t place = a.place.at(first + i); place >= 0)
      store_float(&a.number<T>(row, vector, place), to_float(f16{a.value[first + i]}));
}

Vectors vectors_of(const Outliers& a, CudaContext& cuda) {
  const KvRows& kv = a.tokens.kv;
  std::vector<std::int64_t> room_first;
  std::vector<std::int32_t> room;
  std::int64_t next = 0;
  std::int32_t most = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const std::int32_t entries = a.tokens.entries(r), vectors = entries == 0 ? 0 : a.per_channel ? kv.head_dim : entries;
    room_first.push_back(next), room.push_back(outliers_of(a.share, a.per_channel ? entries : kv.head_dim));
    next += std::int64_t{vectors} * room.back();
    most = std::max(most, vectors);
  }
  Vectors v{};
  v.list = on_device(a.tokens, cuda), v.per_channel = a.per_channel, v.most = most, v.value = a.value, v.place = a.place;
  std::tie(v.room_first, v.room) = upload_all(cuda, std::span<const std::int64_t>(room_first), std::span<const std::int32_t>(room));
  v.most_room = room.empty() ? 0 : *std::max_element(room.begin(), room.end());
  if (v.most_room > kFewOutliers) v.found = cuda.scratch<std::int32_t>(next);
  return v;
}

}  // namespace

void run_cuda(const Outliers& a, CudaContext& cuda) {
  if (a.tokens.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const Vectors v = vectors_of(a, cuda);
  for_type(a.tokens.kv.type, [&](auto zero) {
    const std::int64_t vectors = std::int64_t{a.tokens.kv.num_rows} * v.most;
    if (a.unpacks)
      launch("restore_outliers", cuda, block_each(vectors), restore_outliers<decltype(zero)>, v);
    else if (v.most_room <= kFewOutliers || !a.per_channel)
      launch("outliers", cuda, warp_each(vectors), take_one_by_one<decltype(zero)>, v, vectors);
    else
      launch("outliers", cuda, block_each(vectors), take_by_cut<decltype(zero)>, v);
  });
}

}  // namespace kvlab
