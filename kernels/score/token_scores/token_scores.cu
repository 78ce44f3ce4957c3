#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/draw.cuh"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/score/token_scores/token_scores.h"

namespace kvlab {

namespace {

__device__ __forceinline__ float logistic(float x) { return 1.0F / (1.0F + expf(-x)); }

struct Score {
  using Kind = TokenScores::Kind;
  DeviceRows kv;
  Kind kind;
  std::int32_t ring_tokens, num_words;
  const std::uint32_t* words;  // the first channel in use
  const std::int32_t* end_position;
  const std::int64_t* seeds;
  float* scores;

  __device__ std::int64_t count(int row) const { return kv.len[row]; }
  __device__ std::uint32_t u(std::int64_t slot, int c) const { return words[c * kv.pool_tokens + slot]; }
  __device__ float f(std::int64_t slot, int c) const { return __uint_as_float(u(slot, c)); }
  __device__ std::int32_t ring_ones(std::int64_t slot) const {
    std::int32_t ones = 0;
    for (int c = 0; c < num_words; ++c) ones += __popc(u(slot, c));
    return ones;
  }
  __device__ float spread(std::int64_t slot, float queries) const {
    const float mean = f(slot, 0) / queries;
    return sqrtf(fmaxf(0.0F, __fadd_rn(f(slot, 1) / queries, -__fmul_rn(mean, mean))));  // rounded as on the CPU
  }
  __device__ float recurrence(std::int64_t slot, std::int32_t position, std::int32_t age) const {
    const std::uint32_t hit = u(slot, 0);
    const std::int32_t last = hit != 0 ? static_cast<std::int32_t>(hit) - 1 : position;
    const auto idle = static_cast<float>(position + age - 1 - last), gap = static_cast<float>(u(slot, 1));
    return 2.0F * logistic(-idle / fmaxf(gap, 1.0F)) + (gap > 0.0F ? 2.0F * logistic(-gap - 1.0F) : 0.0F);
  }
  __device__ float score(int row, std::int64_t slot, std::int32_t position, std::int32_t age) const {
    const auto queries = static_cast<float>(max(age, 1));
    switch (kind) {
      case Kind::kPosition:
        return static_cast<float>(position);
      case Kind::kRandom:
        return static_cast<float>(uniform_draw(static_cast<std::uint64_t>(seeds[row / kv.kv_heads]), Purpose::kPolicy,
                                               static_cast<std::uint64_t>(position), static_cast<std::uint64_t>(row % kv.kv_heads)));
      case Kind::kSum:
        return f(slot, 0);
      case Kind::kMean:
        return f(slot, 0) / queries;
      case Kind::kSpread:
        return spread(slot, queries);
      case Kind::kRingSet:
        return static_cast<float>(ring_ones(slot));
      case Kind::kRingClear:
        return static_cast<float>(ring_ones(slot) - min(ring_tokens, age));
      case Kind::kRecurrence:
        return recurrence(slot, position, age);
      case Kind::kLastHit:
        return static_cast<float>(u(slot, 0) != 0 ? u(slot, 0) : static_cast<std::uint32_t>(position) + 1);
      case Kind::kHits:
        return static_cast<float>(u(slot, 1) + 1);
    }
    return 0.0F;
  }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t slot = kv.slot(row, static_cast<std::int32_t>(i));
    const std::int32_t position = kv.position[slot];
    scores[kv.first[row] + i] = score(row, slot, position, end_position[row / kv.kv_heads] - position);
  }
};

}  // namespace

void run_cuda(const TokenScores& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t sequences = a.kv.num_sequences();
  const auto [end, seeds] = upload_all(cuda, host_array(a.end_position, sequences), host_array(a.seeds, sequences));
  const DeviceRows kv = on_device(a.kv, cuda);
  const std::uint32_t* const words = kv.words == nullptr ? nullptr : kv.words + a.first_word * kv.pool_tokens;
  launch_over_rows("token_scores", cuda, kv.num_rows, kv.longest,
                   Score{kv, a.kind, a.ring_tokens, a.num_words(), words, end, seeds, a.scores});
}

}  // namespace kvlab
