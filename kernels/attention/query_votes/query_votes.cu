#include <algorithm>

#include "kernels/attention/query_votes/head_sums.h"
#include "kernels/attention/query_votes/query_votes.h"
#include "kernels/device/cuda/over_rows.cuh"

namespace kvlab {

namespace {

struct Votes {
  DeviceRows kv;
  const float* sums;  // as sum_heads() returns them

  // Mean over the sequence's query heads.
  __device__ float mean(int sequence, std::int64_t i) const {
    float all = 0;
    for (int row = sequence * kv.kv_heads; row < (sequence + 1) * kv.kv_heads; ++row) {
      float own = 0;
      for (int g = 0; g < kv.group; ++g) own += sums[kv.group * kv.first[row] + std::int64_t{g} * kv.len[row] + i];
      all += own / static_cast<float>(kv.group);
    }
    return all / static_cast<float>(kv.kv_heads);
  }
};

struct WriteMeans {
  Votes votes;
  const std::int64_t* first;
  const Queries* queries;
  float* out;
  __device__ std::int64_t count(int sequence) const { return first[sequence + 1] - first[sequence]; }
  __device__ void operator()(int sequence, std::int64_t i) const {
    out[first[sequence] + i] = votes.mean(sequence, i) / static_cast<float>(max(1, queries[sequence].count));
  }
};

struct AddToWords {
  Votes votes;
  std::uint32_t* words;
  __device__ std::int64_t count(int row) const { return votes.kv.len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    std::uint32_t& word = words[votes.kv.slot(row, static_cast<std::int32_t>(i))];
    word = __float_as_uint(__uint_as_float(word) + votes.mean(row / votes.kv.kv_heads, i));
  }
};

}  // namespace

void run_cuda(const QueryVotes& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const std::int32_t sequences = a.kv.num_sequences();
  std::vector<VoteWeight> weights;
  for (std::int32_t s = 0; s < sequences; ++s)
    weights.push_back({a.has_groups() ? a.groups.base[s] : a.queries[s].first_position, a.groups.group_tokens,
                       a.has_groups() ? a.groups.recent[s] : 0, a.rise(s)});
  const char* const name = call(a).op.data();
  const Votes votes{kv, sum_heads(name, a.kv, kv, a.queries, weights.data(), cuda)};
  if (a.has_groups())
    launch_over_rows(name, cuda, kv.num_rows, kv.longest, AddToWords{votes, kv.words + a.groups.word * kv.pool_tokens});
  else
    launch_over_rows(name, cuda, sequences, longest_row(a.first, sequences),
                     WriteMeans{votes, cuda.upload(a.first, sequences + 1), cuda.upload(a.queries, sequences), a.out});
}

}  // namespace kvlab
