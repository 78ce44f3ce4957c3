#include <bit>
#include <cmath>

#include "kernels/attention/attention_decode/decode_core.cuh"

namespace kvlab {

namespace {

constexpr float kLog2E = 1.4426950408889634F;
constexpr int kThreads = 256;

struct ProbabilityArgs {
  const float* logits;
  const float* log_sum;
  const std::int32_t* len;
  const std::int64_t* first;
  float* column_sum;
  float* probabilities;
  std::int32_t group, row_blocks;
};

// row_blocks blocks per row, Width adjacent heads at once.
template <int Width>
__global__ void __launch_bounds__(kThreads) decode_probabilities(ProbabilityArgs a) {
  KVLAB_SHARED(float, log_sum, decode::kMostGroup);
  const std::int64_t row = blockIdx.x / a.row_blocks, first = a.first[row];
  const std::int32_t block = blockIdx.x % a.row_blocks, len = a.len[row];
  if (block * kThreads >= len) return;
  if (static_cast<int>(threadIdx.x) < a.group) log_sum[threadIdx.x] = a.log_sum[row * a.group + threadIdx.x] * kLog2E;
  __syncthreads();
  for (std::int32_t i = block * kThreads + threadIdx.x; i < len; i += a.row_blocks * kThreads) {
    const float* const logits = a.logits + (first + i) * a.group;
    float sum = 0;
    for (std::int32_t h = 0; h < a.group; h += Width) {
      float x[Width];
      if constexpr (Width == 4) {
        const float4 y = *reinterpret_cast<const float4*>(logits + h);
        x[0] = y.x, x[1] = y.y, x[2] = y.z, x[3] = y.w;
      } else {
        x[0] = logits[h];
      }
#pragma unroll
      for (int j = 0; j < Width; ++j) {
        const float p = fast_exp2(x[j] - log_sum[h + j]);
        sum += p;
        if (a.probabilities != nullptr) a.probabilities[first * a.group + static_cast<std::int64_t>(h + j) * len + i] = p;
      }
    }
    if (a.column_sum != nullptr) a.column_sum[first + i] = sum;
  }
}

void refuse(const std::string& why) { throw CudaError("attention_decode: " + why); }

void check(const PagedDecode& a, const CudaContext& cuda) {
  const PagedKv& kv = a.kv;
  if (kv.kv_heads <= 0 || kv.num_rows % kv.kv_heads != 0 || a.q_heads % kv.kv_heads != 0 || a.q_heads < kv.kv_heads ||
      a.q_heads > decode::kMostGroup * kv.kv_heads)
    refuse(std::to_string(a.q_heads) + " query heads, " + std::to_string(kv.kv_heads) + " KV heads and " + std::to_string(kv.num_rows) +
           " rows: each KV head needs 1 to 16 query heads, each sequence a row for each KV head");
  const bool plain = kv.format <= KvFormat::kBf16;
  if (kv.head_dim != 64 && kv.head_dim != 128 && kv.head_dim != 256 && !(plain && kv.head_dim == 96))
    refuse("head_dim " + std::to_string(kv.head_dim) + " has no kernel: 64, 128, 256, and 96 in 16 bits, have");
  if (kv.type == ElementType::kF32) refuse("queries are f16 or bf16");
  if (a.out_type != kv.type && a.out_type != ElementType::kF32) refuse("results are of the queries' type or f32");
  if (plain && kv.type != (kv.format == KvFormat::kF16 ? ElementType::kF16 : ElementType::kBf16))
    refuse("a cache in 16 bits is of the queries' type");
  if (kv.type == ElementType::kBf16 && cuda.gpu().compute_capability < 80)
    refuse("bf16 needs a GPU of compute capability 8.0 or more; use f16 on " + cuda.gpu().name);
  const std::int32_t fixed = fixed_page_tokens(kv.format);
  if (fixed > 0 ? kv.page_tokens != fixed : kv.page_tokens < 16 || !std::has_single_bit(static_cast<unsigned>(kv.page_tokens)))
    refuse(std::to_string(kv.page_tokens) + " tokens per page; format " + std::string(name_of(kv.format)) + " needs " +
           (fixed > 0 ? std::to_string(fixed) : std::string("a power of two of at least 16")));
  if (is_kivi(kv.format) && (kv.residual < 0 || kv.residual % 16 != 0)) refuse("a window of whole units of 16 tokens");
  if ((a.column_sum != nullptr || a.probabilities != nullptr) && a.first == nullptr) refuse("probabilities need `first`");
  if (!(a.scale >= 0.0F) || std::isinf(a.scale)) refuse("scale must be a number and not negative");
}

decode::Args arguments(const PagedDecode& a, const DecodePlan& plan, CudaContext& cuda) {
  decode::Args d{};
  d.kv = a.kv, d.q = a.q, d.out = a.out, d.log_sum = a.log_sum, d.first = a.first, d.out_type = a.out_type;
  d.group = a.q_heads / a.kv.kv_heads, d.chunk = plan.chunk_tokens, d.max_splits = plan.splits;
  d.units_shift = std::countr_zero(static_cast<unsigned>(a.kv.page_tokens / decode::unit_tokens(a.kv.format)));
  d.scale = kLog2E * (a.scale > 0 ? a.scale : 1.0F / std::sqrt(static_cast<float>(a.kv.head_dim)));
  const std::int64_t rows = a.kv.num_rows, heads = rows * d.group;
  if (a.column_sum != nullptr || a.probabilities != nullptr) {
    d.logits = cuda.scratch<float>(a.kv_tokens * d.group);
    if (d.log_sum == nullptr) d.log_sum = cuda.scratch<float>(heads);
  }
  if (plan.splits == 1) return d;
  d.partial = cuda.scratch<float>(heads * plan.splits * a.kv.head_dim);
  d.partial_stats = cuda.scratch<float>(rows * plan.splits * 2 * decode::kMostGroup);
  d.counters = a.counters;
  if (d.counters == nullptr) {
    d.counters = cuda.scratch<std::int32_t>(rows);
    cuda::fill(d.counters, 0, rows * 4, cuda.stream());
  }
  return d;
}

}  // namespace

void run_cuda(const PagedDecode& a, CudaContext& cuda) {
  if (a.kv.num_rows == 0) return;
  check(a, cuda);
  const CudaContext::Frame frame(cuda);
  const DecodePlan plan = plan_of(a, cuda.gpu());
  const decode::Args args = arguments(a, plan, cuda);
  constexpr void (*kByFormat[])(const decode::Args&, const DecodePlan&, CudaContext&) = {
      decode::run_f16,  decode::run_bf16, decode::run_bytes,       decode::run_bytes,
      decode::run_kivi, decode::run_kivi, decode::run_token_codes, decode::run_token_codes};
  kByFormat[static_cast<int>(a.kv.format)](args, plan, cuda);
  if (args.logits == nullptr) return;
  const auto row_blocks = static_cast<std::int32_t>(ceil_div(std::max(a.longest, 1), 4 * kThreads));
  const ProbabilityArgs rest{args.logits, args.log_sum, a.kv.len, a.first, a.column_sum, a.probabilities, args.group, row_blocks};
  launch("decode_probabilities", cuda, blocks_of(a.kv.num_rows * row_blocks, kThreads),
         args.group % 4 == 0 ? decode_probabilities<4> : decode_probabilities<1>, rest);
}

}  // namespace kvlab
