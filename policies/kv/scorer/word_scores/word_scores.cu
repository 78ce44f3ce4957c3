#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "policies/kv/scorer/word_scores/word_scores.h"

namespace kvlab {

namespace {

struct CopyWords {
  DeviceRows kv;
  const std::uint32_t* words;
  float* out;
  __device__ std::int64_t count(int row) const { return kv.len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    out[kv.first[row] + i] = __uint_as_float(words[kv.slot(row, static_cast<std::int32_t>(i))]);
  }
};

}  // namespace

void run_cuda(const WordScores& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  launch_over_rows("word_scores", cuda, kv.num_rows, kv.longest, CopyWords{kv, kv.words + a.channel * kv.pool_tokens, a.out});
}

}  // namespace kvlab
