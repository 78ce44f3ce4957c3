#include <algorithm>

#include "kernels/attention/attention_prefill/prefill_kernel.cuh"
#include "kernels/attention/sparse_prefill/sparse_kernel.cuh"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"
#include "kernels/model/layer/layer.h"

namespace kvlab {

namespace {

using namespace prefill;  // NOLINT

using CompiledSparse = Compiled<SparseArgs>;

template <int D, int RowTiles, int Warps, int Keys, int Blocks>
constexpr CompiledSparse compiled_sparse() {
  return {{D, RowTiles, Warps, Keys},
          Blocks,
          sparse_tile<f16, D, RowTiles, Warps, Keys, Blocks>,
          sparse_tile<bf16, D, RowTiles, Warps, Keys, Blocks>};
}

// By preference. 128 rows need query blocks of 128 tokens.
std::vector<CompiledSparse> sparse_kernels(std::int32_t head_dim) {
  if (head_dim == 64) return {compiled_sparse<64, 2, 4, 64, 2>(), compiled_sparse<64, 1, 4, 64, 3>()};
  if (head_dim == 128)
    return {compiled_sparse<128, 2, 4, 64, 2>(), compiled_sparse<128, 1, 4, 64, 2>(), compiled_sparse<128, 1, 4, 32, 3>()};
  if (head_dim == 256) return {compiled_sparse<256, 1, 4, 32, 2>()};
  return {};
}

CompiledSparse choose_sparse(const DeviceSparsePrefill& a, const GpuInfo& gpu) {
  const std::vector<CompiledSparse> all = sparse_kernels(a.prefill.head_dim);
  if (const CompiledSparse* const c = tuned("sparse_prefill", all, a.prefill)) return *c;
  for (const CompiledSparse& c : all) {
    const auto fixed =
        static_cast<std::int64_t>(sizeof(SparseWork) + sizeof(std::int32_t) * static_cast<std::size_t>(2 * kListed + 2 * c.tiles.keys));
    if (c.tiles.rows() <= std::max(64, a.keys.block) && c.tiles.shared_bytes() + fixed <= gpu.shared_bytes_per_block) return c;
  }
  refuse_shared_memory("sparse_prefill", a.prefill.head_dim, gpu);
}

template <class T>
SparseArgs<T> sparse_args(const DeviceSparsePrefill& a) {
  const DevicePrefill& p = a.prefill;
  SparseArgs<T> args{};
  args.prefill = prefill_args<T>(p);
  args.prefill.kv_heads = p.q_heads, args.prefill.group = 1;
  args.block_first = a.keys.block_first, args.column_first = a.keys.column_first;
  args.blocks = a.keys.blocks, args.columns = a.keys.columns;
  args.sharing = p.q_heads / p.kv_heads, args.block = a.keys.block;
  return args;
}

// [tokens, heads, head_dim] to f16 [heads, tokens, head_dim].
f16* round_heads(const float* x, std::int64_t tokens, std::int64_t heads, std::int64_t head_dim, std::int64_t room, CudaContext& cuda) {
  f16* const rounded = cuda.scratch<f16>(heads * room * head_dim);
  for (std::int64_t h = 0; h < heads; ++h)
    run_cuda(DeviceConvert{x + h * head_dim, rounded + h * room * head_dim, tokens, head_dim, heads * head_dim, head_dim, ElementType::kF32,
                           ElementType::kF16},
             cuda);
  return rounded;
}

}  // namespace

std::vector<PrefillVariant> sparse_prefill_variants(std::int32_t head_dim) { return variants_of(sparse_kernels(head_dim)); }

void run_cuda(const DeviceSparsePrefill& a, CudaContext& cuda) {
  if (a.prefill.tokens == 0 || a.prefill.prompts == 0) return;
  check(a.prefill, cuda.gpu());
  if (!a.prefill.causal) throw CudaError("sparse_prefill: queries outside of the cache are not supported");
  if (a.prefill.parts != nullptr || a.prefill.splits > 1)
    throw CudaError("sparse_prefill: keys are not split; leave splits and parts unset");
  if (a.keys.block < kPageUnit || a.keys.block % kPageUnit != 0)
    throw CudaError("sparse_prefill: blocks of " + std::to_string(a.keys.block) + " tokens; a multiple of 16 is needed");
  const CompiledSparse c = choose_sparse(a, cuda.gpu());
  // First and last query blocks may be partial.
  const std::int64_t blocks = a.prefill.tokens / a.keys.block + 2LL * a.prefill.prompts;
  const std::int64_t tiles = blocks * ceil_div(a.keys.block, c.tiles.rows());
  launch_compiled("sparse_prefill", cuda, c, a.prefill.type, grid_of(tiles * a.prefill.q_heads, 1),
                  [&](auto zero) { return sparse_args<decltype(zero)>(a); });
}

void run_cuda(const SparsePrefill& a, CudaContext& cuda) {
  if (a.new_tokens == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t total = a.kv_before + a.new_tokens, room = ceil_div<std::int64_t>(total, kPageUnit) * kPageUnit;
  const std::int64_t width = a.q_heads * a.head_dim, lists = a.q_heads * query_blocks(a);
  std::vector<std::int32_t> query_first{0, static_cast<std::int32_t>(a.new_tokens)}, page, before;
  for (std::int64_t h = 0; h < a.kv_heads; ++h) {
    page.push_back(static_cast<std::int32_t>(h));  // one of all tokens
    before.push_back(static_cast<std::int32_t>(a.kv_before));
  }
  DeviceSparsePrefill op;
  DevicePrefill& p = op.prefill;
  f16 *const q = cuda.scratch<f16>(a.new_tokens * width), *const out = cuda.scratch<f16>(a.new_tokens * width);
  run_cuda(DeviceConvert{a.q, q, a.new_tokens, width, 0, 0, ElementType::kF32, ElementType::kF16}, cuda);
  p.q = q, p.out = out, p.log_sum = a.log_sum, p.type = ElementType::kF16;
  p.k = round_heads(a.k, total, a.kv_heads, a.head_dim, room, cuda), p.v = round_heads(a.v, total, a.kv_heads, a.head_dim, room, cuda);
  p.query_first = cuda.upload(query_first.data(), 2), p.kv_before = cuda.upload(before.data(), a.kv_heads);
  p.page = p.page_begin = cuda.upload(page.data(), a.kv_heads);
  p.prompts = 1, p.tokens = query_first[1], p.longest_kv = static_cast<std::int32_t>(total);
  p.q_heads = static_cast<std::int32_t>(a.q_heads), p.kv_heads = static_cast<std::int32_t>(a.kv_heads);
  p.head_dim = static_cast<std::int32_t>(a.head_dim), p.page_tokens = static_cast<std::int32_t>(room);
  p.window = static_cast<std::int32_t>(a.window), p.scale = a.scale;
  op.keys = a.keys;
  op.keys.block_first = cuda.upload(a.keys.block_first, lists + 1), op.keys.column_first = cuda.upload(a.keys.column_first, lists + 1);
  run_cuda(op, cuda);
  run_cuda(DeviceConvert{out, a.out, a.new_tokens, width, 0, 0, ElementType::kF16, ElementType::kF32}, cuda);
}

}  // namespace kvlab
