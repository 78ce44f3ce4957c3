#include "kernels/merge/merge_into/merge_into.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace kvlab {

namespace {

float norm(const float* x, std::int32_t n) {
  double square = 0;
  for (std::int32_t c = 0; c < n; ++c) square += static_cast<double>(x[c]) * static_cast<double>(x[c]);
  return static_cast<float>(std::sqrt(square));
}

float gaussian(const float* a, const float* b, std::int32_t n, float sigma) {
  double square = 0;
  for (std::int32_t c = 0; c < n; ++c) {
    const double difference = static_cast<double>(a[c]) - static_cast<double>(b[c]);
    square += difference * difference;
  }
  return static_cast<float>(std::exp(-square / (2.0 * static_cast<double>(sigma) * static_cast<double>(sigma))));
}

// Places in the dropped lists, ascending, and weights.
struct Received {
  const std::int64_t* place = nullptr;
  const float* weight = nullptr;
  std::int32_t count = 0;
};

float weight_of(const MergeInto& a, std::int32_t row, std::int32_t token, std::int64_t place) {
  const KvRows& kv = a.rows.kv;
  const std::int32_t from = a.rows.dropped[place], d = kv.head_dim;
  switch (a.weight) {
    case MergeInto::Weight::kOne:
      return 1.0F;
    case MergeInto::Weight::kSimilarity:
      return a.combine == MergeInto::Combine::kWeightedMean ? std::max(a.similarity[place], 0.0F) : a.similarity[place];
    case MergeInto::Weight::kSoftmax:
      return std::exp(a.similarity[place] - 1.0F);
    case MergeInto::Weight::kNormShare: {
      const float mine = norm(kv.value(row, from), d), all = mine + norm(kv.value(row, token), d);
      return all > 0.0F ? std::max(a.similarity[place], 0.0F) * mine / all : 0.0F;
    }
    case MergeInto::Weight::kGaussian:
      return gaussian(kv.key(row, token), kv.key(row, from), d, a.sigma);
    case MergeInto::Weight::kMassShare: {
      const float* const mass = a.mass + kv.first[row];
      return mass[token] > 0.0F ? mass[from] / mass[token] : 0.0F;
    }
  }
  return 0.0F;
}

void take_in(const MergeInto& a, std::int32_t row, std::int32_t token, bool values, const Received& received, std::vector<float>& sum) {
  const KvRows& kv = a.rows.kv;
  const auto vector = [&](std::int32_t i) { return values ? kv.value(row, i) : kv.key(row, i); };
  float own = 1.0F, all = 1.0F;
  std::fill(sum.begin(), sum.end(), 0.0F);
  for (std::int32_t i = 0; i < received.count; ++i) {
    const bool halves = a.combine == MergeInto::Combine::kPivot;
    const float w = halves ? received.weight[i] / 2.0F : received.weight[i];
    const float* other = vector(a.rows.dropped[received.place[i]]);
    for (std::int32_t c = 0; c < kv.head_dim; ++c) sum[static_cast<std::size_t>(c)] += w * other[c];
    if (halves) own += w;
    all += a.combine == MergeInto::Combine::kWeightedMean ? received.weight[i] : 1.0F;
  }
  float* const x = vector(token);
  const float scale = values && a.values_times_count ? 1.0F + static_cast<float>(received.count) : 1.0F;
  for (std::int32_t c = 0; c < kv.head_dim; ++c) x[c] = (own * x[c] + sum[static_cast<std::size_t>(c)]) / all * scale;
}

// In target order; first[c]: target c's first place. Others are left out.
void order_by_target(const MergeInto& a, std::int32_t row, std::vector<std::int32_t>& first, std::vector<std::int64_t>& places) {
  first.assign(static_cast<std::size_t>(a.rows.num_kept(row)) + 1, 0);
  const std::int64_t begin = a.rows.dropped_first[row], end = a.rows.dropped_first[row + 1];
  for (std::int64_t i = begin; i < end; ++i)
    if (a.target[i] >= 0) ++first[static_cast<std::size_t>(a.target[i]) + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  places.resize(static_cast<std::size_t>(first.back()));
  std::vector<std::int32_t> next(first.begin(), first.end() - 1);
  for (std::int64_t i = begin; i < end; ++i)
    if (a.target[i] >= 0) places[static_cast<std::size_t>(next[static_cast<std::size_t>(a.target[i])]++)] = i;
}

}  // namespace

OpCall call(const MergeInto& a) {
  const KvRows& kv = a.rows.kv;
  const std::int64_t vector = kv.head_dim, dropped = a.rows.total_dropped(), targets = a.rows.most_targets(), sides = a.keys ? 2 : 1;
  const bool looks = a.weight == MergeInto::Weight::kGaussian || a.weight == MergeInto::Weight::kNormShare;
  const std::int64_t read = sides * (dropped + targets) + (looks ? dropped + targets : 0), written = sides * targets;
  return {.op = "merge_into",
          .rows = kv.num_rows,
          .tokens = dropped,
          .outputs = targets,
          .bytes = (read + written) * vector * kv.kv_bytes + 12 * dropped +
                   (a.weight == MergeInto::Weight::kMassShare ? 4 * (dropped + targets) : 0),
          .flops = 2 * sides * dropped * vector + (looks ? 3 * dropped * vector : 0)};
}
KVLAB_WITHOUT_CUDA(MergeInto)

void run_cpu(const MergeInto& a) {
  const KvRows& kv = a.rows.kv;
  std::vector<std::int32_t> first;
  std::vector<std::int64_t> places;
  std::vector<float> weights, sum(static_cast<std::size_t>(kv.head_dim));
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    order_by_target(a, r, first, places);
    for (std::int32_t c = 0; c < a.rows.num_kept(r); ++c) {
      const auto begin = static_cast<std::size_t>(first[static_cast<std::size_t>(c)]);
      const std::int32_t count = first[static_cast<std::size_t>(c) + 1] - first[static_cast<std::size_t>(c)];
      if (count == 0) continue;
      const std::int32_t token = a.rows.kept[a.rows.kept_first[r] + c];
      weights.clear();
      for (std::int32_t i = 0; i < count; ++i) weights.push_back(weight_of(a, r, token, places[begin + static_cast<std::size_t>(i)]));
      const Received received{places.data() + begin, weights.data(), count};
      take_in(a, r, token, true, received, sum);
      if (a.keys) take_in(a, r, token, false, received, sum);
    }
  }
}

}  // namespace kvlab
