#include "kernels/device/cuda/bucket_lists.cuh"
#include "kernels/device/cuda/token_walk.cuh"
#include "kernels/merge/merge_into/merge_into.h"

namespace kvlab {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;

struct Merge {
  DeviceParts rows;
  BucketLists lists;  // of dropped tokens by target
  const float *similarity, *mass;
  MergeInto::Combine combine;
  MergeInto::Weight weight;
  float sigma;
  bool values_times_count;
  float* weights;  // [total_dropped()]
};

// Over the warp: |x|^2, |y|^2 and |x - y|^2.
template <class T>
__device__ __forceinline__ void measure(const T* x, const T* y, int d, double (&sums)[3]) {
  sums[0] = sums[1] = sums[2] = 0;
  for (int c = lane_index(); c < d; c += kWarpSize) {
    const auto a = static_cast<double>(load_float(x + c)), b = static_cast<double>(load_float(y + c));
    sums[0] += a * a, sums[1] += b * b, sums[2] += (a - b) * (a - b);
  }
#pragma unroll
  for (double& sum : sums) sum = warp_sum(sum);
}

// A warp per dropped token with a target, before any merge.
template <class T>
__global__ void __launch_bounds__(kThreads) weigh_dropped(Merge a, int blocks) {
  const DeviceParts& rows = a.rows;
  const int row = blockIdx.x / blocks, d = rows.kv.head_dim;
  const std::int32_t i = blockIdx.x % blocks * kWarps + warp_index();
  if (i >= rows.num_dropped(row)) return;
  const std::int64_t place = rows.dropped_first[row] + i;
  const std::int32_t target = a.lists.bucket[place];
  if (target < 0) return;
  const std::int64_t from = rows.kv.slot(row, rows.dropped[place]) * d;
  const std::int64_t to = rows.kv.slot(row, rows.kept[rows.kept_first[row] + target]) * d;
  double sums[3];
  float weight = 0;
  if (a.weight == MergeInto::Weight::kMassShare) {
    const float* const mass = a.mass + rows.kv.first[row];
    const float kept = mass[rows.kept[rows.kept_first[row] + target]];
    weight = kept > 0.0F ? mass[rows.dropped[place]] / kept : 0.0F;
  } else if (a.weight == MergeInto::Weight::kGaussian) {
    const T* const k = static_cast<const T*>(rows.kv.k);
    measure(k + to, k + from, d, sums);
    weight = static_cast<float>(exp(-sums[2] / (2.0 * static_cast<double>(a.sigma) * static_cast<double>(a.sigma))));
  } else {
    const T* const v = static_cast<const T*>(rows.kv.v);
    measure(v + from, v + to, d, sums);
    const auto mine = static_cast<float>(sqrt(sums[0])), all = mine + static_cast<float>(sqrt(sums[1]));
    weight = all > 0.0F ? fmaxf(a.similarity[place], 0.0F) * mine / all : 0.0F;
  }
  if (lane_index() == 0) a.weights[place] = weight;
}

__device__ __forceinline__ float weight_of(const Merge& a, std::int64_t place) {
  switch (a.weight) {
    case MergeInto::Weight::kOne:
      return 1.0F;
    case MergeInto::Weight::kSimilarity:
      return a.combine == MergeInto::Combine::kWeightedMean ? fmaxf(a.similarity[place], 0.0F) : a.similarity[place];
    case MergeInto::Weight::kSoftmax:
      return expf(a.similarity[place] - 1.0F);
    default:
      return a.weights[place];
  }
}

template <int Spans>
struct Taken {
  float sum[Spans][8] = {}, own = 0, all = 0;

  template <int Lanes>
  __device__ __forceinline__ void join_groups() {
    own = sum_of_groups<Lanes>(own), all = sum_of_groups<Lanes>(all);
#pragma unroll
    for (int s = 0; s < Spans; ++s)
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[s][c] = sum_of_groups<Lanes>(sum[s][c]);
  }
};

// places[0, count), by groups of a warp; `first`: the row's first place.
template <class T, int Lanes, int Spans, bool Wide>
__device__ __forceinline__ void take_dropped(const Merge& a, const TokenWalk<T, Lanes, Spans, Wide>& walk, const TokenPlaces& slots,
                                             std::int64_t first, const std::int32_t* places, std::int32_t count, Taken<Spans>& taken) {
  for (std::int32_t i = 0; i < count; i += walk.kStep) {
    Raw8<T> raw[kTokensInFlight][Spans];
    float weight[kTokensInFlight];
#pragma unroll
    for (int t = 0; t < kTokensInFlight; ++t) {
      const std::int32_t j = walk.token(i, t);
      const std::int64_t place = first + places[min(j, count - 1)], slot = slots(a.rows.dropped[place]);
      weight[t] = j < count ? weight_of(a, place) : 0.0F;
      if (j < count) taken.all += a.combine == MergeInto::Combine::kWeightedMean ? weight[t] : 1.0F;
      if (a.combine == MergeInto::Combine::kPivot) weight[t] /= 2.0F, taken.own += weight[t];
      walk.load(slot, j < count, raw[t]);
    }
#pragma unroll
    for (int t = 0; t < kTokensInFlight; ++t) {
#pragma unroll
      for (int s = 0; s < Spans; ++s) {
        float x[8];
        unpack_raw8(raw[t][s], x);
#pragma unroll
        for (int c = 0; c < 8; ++c) taken.sum[s][c] += weight[t] * x[c];
      }
    }
  }
}

// Wide: as in load_raw8().
template <class T, bool Wide>
__device__ __forceinline__ void store_some(T* p, int n, const float (&x)[8]) {
  if constexpr (Wide) {
    if (n > 0) store8(p, x);
  } else {
#pragma unroll
    for (int c = 0; c < 8; ++c)
      if (c < n) store_float(p + c, x[c]);
  }
}

// A warp per kept token.
template <class T, int Lanes, int Spans, bool Wide>
__global__ void __launch_bounds__(kThreads, 2) take_in(Merge a, bool values, int blocks) {
  const DeviceParts& rows = a.rows;
  const int row = blockIdx.x / blocks, d = rows.kv.head_dim;
  const std::int32_t kept = blockIdx.x % blocks * kWarps + warp_index();
  if (kept >= rows.num_kept(row)) return;
  const std::int64_t at = rows.kept_first[row] + kept, first = rows.dropped_first[row];
  const std::int32_t count = a.lists.counts[at];
  if (count == 0) return;
  const TokenWalk<T, Lanes, Spans, Wide> walk(rows.kv, values);
  const TokenPlaces slots(rows.kv, row);
  Taken<Spans> taken;
  take_dropped(a, walk, slots, first, a.lists.items + first + a.lists.begin[at], count, taken);
  taken.template join_groups<Lanes>();
  if (walk.group != 0) return;
  const float scale = values && a.values_times_count ? 1.0F + static_cast<float>(count) : 1.0F;
  T* const mine = walk.data + slots(rows.kept[at]) * d;
#pragma unroll
  for (int s = 0; s < Spans; ++s) {
    const int channel = walk.channel(s);
    float x[8];
    unpack_raw8(load_raw8<T, Wide>(mine + channel, d - channel), x);
#pragma unroll
    for (int c = 0; c < 8; ++c) x[c] = ((1.0F + taken.own) * x[c] + taken.sum[s][c]) / (1.0F + taken.all) * scale;
    store_some<T, Wide>(mine + channel, d - channel, x);
  }
}

}  // namespace

void run_cuda(const MergeInto& a, CudaContext& cuda) {
  if (a.rows.total_dropped() == 0 || a.rows.total_kept() == 0) return;
  const CudaContext::Frame frame(cuda);
  const bool looks =
      a.weight == MergeInto::Weight::kNormShare || a.weight == MergeInto::Weight::kGaussian || a.weight == MergeInto::Weight::kMassShare;
  const std::int64_t total_kept = a.rows.total_kept(), total_dropped = a.rows.total_dropped();
  Merge merge{};
  merge.rows = on_device(a.rows, cuda);
  const DeviceParts& rows = merge.rows;
  merge.lists = make_bucket_lists(cuda, rows.dropped_first, rows.kept_first, a.target, total_dropped, total_kept);
  fill_bucket_lists("merge_into", cuda, merge.lists, rows.kv.num_rows, rows.most_dropped, total_kept);
  merge.similarity = a.similarity, merge.mass = a.mass, merge.combine = a.combine, merge.weight = a.weight;
  merge.sigma = a.sigma, merge.values_times_count = a.values_times_count;
  if (looks) {
    merge.weights = cuda.scratch<float>(total_dropped);
    const auto blocks = static_cast<int>(ceil_div(rows.most_dropped, kWarps));
    for_type(a.rows.kv.type, [&](auto zero) {
      launch("merge_into", cuda, blocks_of(std::int64_t{rows.kv.num_rows} * blocks, kThreads), weigh_dropped<decltype(zero)>, merge,
             blocks);
    });
  }
  const auto blocks = static_cast<int>(ceil_div(rows.most_kept, kWarps));
  for_token_lanes("merge_into", rows.kv, [&](auto lanes, auto spans, auto wide) {
    for_type(a.rows.kv.type, [&](auto zero) {
      for (const bool values : {true, false}) {
        if (!values && !a.keys) continue;
        launch("merge_into", cuda, blocks_of(std::int64_t{rows.kv.num_rows} * blocks, kThreads),
               take_in<decltype(zero), decltype(lanes)::value, decltype(spans)::value, decltype(wide)::value>, merge, values, blocks);
      }
    });
  });
}

}  // namespace kvlab
