#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/score/word_scores/word_scores.h"

namespace kvlab {

namespace {

struct ReadWords {
  using Kind = WordScores::Kind;
  DeviceRows kv;
  const std::uint32_t* words;  // of the first channel
  Kind kind;
  std::int32_t num_words;
  float* scores;
  __device__ std::int64_t count(int row) const { return kv.len[row]; }
  __device__ float score(std::int64_t slot, float before) const {
    if (kind == Kind::kFloat) return __uint_as_float(words[slot]);
    if (kind == Kind::kMark) return (words[slot] & kTokenMark) != 0 && before != INFINITY ? -INFINITY : before;
    float sum = 0;
    for (int j = 0; j < num_words; ++j) sum += __uint_as_float(words[j * kv.pool_tokens + slot]);
    return sum;
  }
  __device__ void operator()(int row, std::int64_t i) const {
    float& x = scores[kv.first[row] + i];
    x = score(kv.slot(row, static_cast<std::int32_t>(i)), x);
  }
};

}  // namespace

void run_cuda(const WordScores& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  launch_over_rows("word_scores", cuda, kv.num_rows, kv.longest,
                   ReadWords{kv, kv.words + a.channel * kv.pool_tokens, a.kind, a.words, a.scores});
}

}  // namespace kvlab
