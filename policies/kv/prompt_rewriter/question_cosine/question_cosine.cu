#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/prompt_rewriter/question_cosine/question_cosine.h"

namespace kvlab {

namespace {

struct Cosines {
  const float* const* vectors;  // [kinds], each [tokens, head_dim]
  std::int32_t tokens, question_begin, head_dim, kinds;
  float* norm;  // [kinds, tokens]
  float* out;

  __device__ const float* vector(std::int32_t kind, std::int32_t i) const { return vectors[kind] + std::int64_t{i} * head_dim; }
};

// A warp per kind and token.
__global__ void __launch_bounds__(kRowThreads) norms_of_vectors(Cosines a) {
  const std::int64_t item = warp_item();
  if (item >= std::int64_t{a.kinds} * a.tokens) return;
  const float* const x = a.vector(static_cast<std::int32_t>(item / a.tokens), static_cast<std::int32_t>(item % a.tokens));
  const float squares = warp_dot(x, x, a.head_dim);
  if (lane_index() == 0) a.norm[item] = sqrtf(squares);
}

// A warp per token.
__global__ void __launch_bounds__(kRowThreads) largest_cosine(Cosines a) {
  const auto i = static_cast<std::int32_t>(warp_item());
  if (i >= a.tokens) return;
  float largest = -INFINITY;
  for (std::int32_t t = a.question_begin; t < a.tokens; ++t) {
    float sum = 0;
    for (std::int32_t kind = 0; kind < a.kinds; ++kind) {
      const float* const norm = a.norm + std::int64_t{kind} * a.tokens;
      const float dot = warp_dot(a.vector(kind, i), a.vector(kind, t), a.head_dim);
      if (norm[i] > 0 && norm[t] > 0) sum += dot / norm[i] / norm[t];
    }
    largest = fmaxf(largest, sum);
  }
  if (lane_index() == 0) a.out[i] = largest / static_cast<float>(a.kinds);
}

}  // namespace

void run_cuda(const QuestionCosine& a, CudaContext& cuda) {
  if (a.tokens == 0) return;
  const CudaContext::Frame frame(cuda);
  const auto kinds = static_cast<std::int32_t>(a.vectors.size());
  const std::int64_t items = std::int64_t{kinds} * a.tokens;
  const Cosines cosines{cuda.upload(a.vectors.data(), kinds), a.tokens, a.question_begin, a.head_dim, kinds,
                        cuda.scratch<float>(items),           a.out};
  launch("question_cosine", cuda, warp_each(items), norms_of_vectors, cosines);
  launch("question_cosine", cuda, warp_each(a.tokens), largest_cosine, cosines);
}

}  // namespace kvlab
