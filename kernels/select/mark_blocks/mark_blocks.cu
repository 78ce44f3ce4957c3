#include "kernels/device/cuda/block_team.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/select/mark_blocks/mark_blocks_body.h"

namespace kvlab {

namespace {

class MarkingBlock : public BlockTeam {
 public:
  __device__ MarkingBlock(float* room, double* shared) : BlockTeam(room, shared), shared_(shared) {}

  static __device__ void mark(std::int32_t* words, std::int64_t i) {
    atomicOr(reinterpret_cast<unsigned*>(words) + i / 32, 1U << (i % 32));
  }
  static __device__ float dot(const float* x, const float* y, std::int64_t n) {
    float sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += x[i] * y[i];
    return sum;
  }
  __device__ void soften(float* row, std::int64_t n) const {
    const float top = max(n, -INFINITY, [&](std::int64_t i) { return row[i]; });
    const float sum = this->sum(n, [&](std::int64_t i) { return row[i] = std::exp(row[i] - top); });
    each(n, [&](std::int64_t i) { row[i] /= sum; });
  }
  template <class Score, class F>
  __device__ void best(std::int64_t n, std::int64_t k, Score&& score, F&& f) const {
    const auto key = [&](std::int32_t i) { return ordered_key(static_cast<float>(score(i))); };
    const auto length = static_cast<std::int32_t>(n), keep = static_cast<std::int32_t>(k < n ? k : n);
    choose(length, block_cut(length, keep, key, reinterpret_cast<std::int32_t*>(shared_)), key, f);
  }
  // Finds, bit by bit, the largest key of which not all are taken: those from `higher` on are, if the last of them is.
  template <class Score, class More, class F>
  __device__ std::int64_t best_while(std::int64_t n, Score&& score, double start, More&& more, F&& f) const {
    const auto key = [&](std::int64_t i) { return ordered_key(static_cast<float>(score(i))); };
    const auto taken_from = [&](std::uint32_t least) {
      return start + sum<double>(n, [&](std::int64_t i) { return key(i) >= least ? static_cast<double>(score(i)) : 0.0; });
    };
    std::uint32_t cut = 0;
    for (int bit = 31; bit >= 0; --bit) {
      const std::uint32_t higher = cut | 1U << bit;
      const std::uint32_t last = ~max(n, std::uint32_t{0}, [&](std::int64_t i) { return key(i) >= higher ? ~key(i) : 0U; });
      if (last == ~0U) continue;
      const double x = static_cast<double>(float_of_key(last));
      if (!more(taken_from(higher) - x, x)) cut = higher;
    }
    double held = taken_from(cut + 1);
    const auto x = static_cast<double>(float_of_key(cut));
    const auto equals = static_cast<std::int32_t>(sum<std::int64_t>(n, [&](std::int64_t i) { return std::int64_t{key(i) == cut}; }));
    std::int32_t equal = 0;
    for (; equal < equals && more(held, x); ++equal) held += x;
    choose(static_cast<std::int32_t>(n), BlockCut{cut, equal}, key, f);
    return sum<std::int64_t>(n, [&](std::int64_t i) { return std::int64_t{key(i) > cut}; }) + equal;
  }
  template <class Score>
  __device__ double falling_sum(std::int64_t n, Score&& score) const {
    return sum<double>(n, [&](std::int64_t i) { return static_cast<double>(score(i)); });
  }

 private:
  template <class Key, class F>
  __device__ void choose(std::int32_t n, const BlockCut& cut, const Key& key, F&& f) const {
    block_choose(n, cut, key, reinterpret_cast<std::uint64_t*>(shared_), [&](std::int32_t i, bool chosen, std::int32_t) {
      if (chosen) f(i);
    });
    __syncthreads();
  }

  double* shared_;  // [33]
};

// Tokens outside of the chunk count as zeros.
__device__ float antidiagonal_sum(const MarkBlocks& a, std::int64_t head, std::int64_t group, std::int64_t keys) {
  const PromptBlocks& p = a.prompt;
  float sum = 0;
  for (std::int64_t u = 0; u < a.stride; ++u) {
    const std::int64_t query = (group + 1) * a.stride - 1 - u - p.kv_before, key = keys * a.stride + u;
    if (query >= 0 && query < p.new_tokens && key < p.end()) sum += MarkingBlock::dot(p.query(query, head), p.key(key, head), p.head_dim);
  }
  return sum;
}

__device__ void mark_antidiagonals(const MarkingBlock& team, const MarkBlocks& a, std::int64_t list) {
  const PromptBlocks& p = a.prompt;
  const std::int64_t head = list / p.num_query_blocks(), b = list % p.num_query_blocks(), own = p.first_block() + b;
  const std::int64_t per_block = p.block / a.stride, first = p.kv_before / a.stride;
  double* const sums = reinterpret_cast<double*>(team.room());
  float* const row = team.room() + 2 * (own + 1);
  const float scale = 1.0F / (static_cast<float>(a.stride) * std::sqrt(static_cast<float>(p.head_dim)));
  const std::int64_t after = first + query_blocks(p.new_tokens, p.kv_before, a.stride);
  const std::int64_t begin = own * per_block < first ? first : own * per_block;
  const std::int64_t end = (own + 1) * per_block < after ? (own + 1) * per_block : after;
  team.each(own + 1, [&](std::int64_t j) { sums[j] = 0; });
  for (std::int64_t g = begin; g < end; ++g) {
    team.each(g + 1, [&](std::int64_t j) { row[j] = scale * antidiagonal_sum(a, head, g, j); });
    team.soften(row, g + 1);
    team.each(own + 1, [&](std::int64_t j) {
      for (std::int64_t i = j * per_block; i < (j + 1) * per_block && i <= g; ++i) sums[j] += row[i];
    });
  }
  mark_blocks::mark_mass(team, a, sums, own, mark_blocks::words_of(a, head, b));
}

__global__ void __launch_bounds__(kRowThreads) mark_of_heads(MarkBlocks a, float* room, std::int64_t each) {
  KVLAB_SHARED(double, shared, 33);
  mark_blocks::mark_head(MarkingBlock(room + each * blockIdx.x, shared), a, blockIdx.x);
}

__global__ void __launch_bounds__(kRowThreads) mark_of_lists(MarkBlocks a, float* room, std::int64_t each) {
  KVLAB_SHARED(double, shared, 33);
  mark_antidiagonals(MarkingBlock(room + each * blockIdx.x, shared), a, blockIdx.x);
}

}  // namespace

void run_cuda(const MarkBlocks& a, CudaContext& cuda) {
  if (a.prompt.new_tokens == 0) return;
  const CudaContext::Frame frame(cuda);
  const bool of_lists = a.kind == MarkBlocks::Kind::kAntidiagonal;
  const std::int64_t blocks = of_lists ? a.prompt.num_lists() : a.prompt.q_heads, each = mark_blocks::room_of(a);
  MarkBlocks on_gpu = a;
  on_gpu.first = cuda.upload(a.first, a.prompt.q_heads), on_gpu.second = cuda.upload(a.second, a.prompt.q_heads);
  launch("mark_blocks", cuda, block_each(blocks), of_lists ? mark_of_lists : mark_of_heads, on_gpu, cuda.scratch<float>(blocks * each),
         each);
}

}  // namespace kvlab
