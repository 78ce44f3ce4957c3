#include <algorithm>

#include "kernels/attention/attention_prefill/prefill_kernel.cuh"
#include "kernels/attention/merge_partials/merge_partials.h"

namespace kvlab {

namespace {

using namespace prefill;  // NOLINT

template <int D, int RowTiles, int Warps, int Keys, int Blocks>
constexpr Compiled<PrefillArgs> compiled() {
  return {{D, RowTiles, Warps, Keys},
          Blocks,
          prefill_tile<f16, D, RowTiles, Warps, Keys, Blocks>,
          prefill_tile<bf16, D, RowTiles, Warps, Keys, Blocks>};
}

std::vector<Compiled<PrefillArgs>> kernels(std::int32_t head_dim) {
  if (head_dim == 64) return {compiled<64, 2, 4, 64, 2>(), compiled<64, 1, 4, 64, 3>(), compiled<64, 2, 4, 128, 2>()};
  if (head_dim == 128)
    return {compiled<128, 2, 4, 64, 2>(), compiled<128, 1, 4, 64, 2>(), compiled<128, 1, 4, 32, 3>(),
            compiled<128, 2, 4, 32, 2>(), compiled<128, 2, 8, 32, 1>(), compiled<128, 2, 8, 64, 1>()};
  if (head_dim == 256) return {compiled<256, 1, 4, 32, 2>()};
  return {};
}

// Upper bound: last tiles may be short.
std::int64_t tiles_of(const DevicePrefill& a, const PrefillVariant& v) {
  return static_cast<std::int64_t>(a.tokens) * (a.q_heads / a.kv_heads) / v.rows() + a.prompts;
}

// 0: does not fit. The system takes 1 KiB per block.
std::int64_t resident_warps(const Compiled<PrefillArgs>& c, const GpuInfo& gpu) {
  const std::int64_t block = c.tiles.shared_bytes() + 4 * kListed + static_cast<std::int64_t>(sizeof(Work));
  if (block > gpu.shared_bytes_per_block) return 0;
  return c.tiles.warps * std::min<std::int64_t>(c.blocks, (gpu.shared_bytes_per_block + 1024) / (block + 1024));
}

// Two row tiles (operands are reused) and most warps; or small blocks against idle multiprocessors.
Compiled<PrefillArgs> choose(const DevicePrefill& a, const GpuInfo& gpu) {
  const std::vector<Compiled<PrefillArgs>> all = kernels(a.head_dim);
  const Compiled<PrefillArgs>* best = tuned("attention_prefill", all, a);
  if (best != nullptr) return *best;
  std::int64_t most = 0;
  for (const Compiled<PrefillArgs>& c : all) {
    const bool fills = tiles_of(a, c.tiles) * a.kv_heads >= c.blocks * std::int64_t{gpu.multiprocessors};
    const std::int64_t warps = c.tiles.row_tiles == 2 && fills ? 100 + resident_warps(c, gpu) : 1;
    if (resident_warps(c, gpu) > 0 && (c.tiles.row_tiles == 1 || fills) && warps > most) best = &c, most = warps;
  }
  if (best == nullptr) refuse_shared_memory("attention_prefill", a.head_dim, gpu);
  return *best;
}

// Two blocks per multiprocessor, at least four key tiles per split.
std::int32_t choose_splits(const DevicePrefill& a, const PrefillVariant& v, const GpuInfo& gpu) {
  if (a.splits > 0) return a.splits;
  const std::int64_t blocks = tiles_of(a, v) * a.kv_heads, tiles = ceil_div(a.longest_kv, v.keys);
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(2 * gpu.multiprocessors / blocks, 1, std::clamp<std::int64_t>(tiles / 4, 1, 64)));
}

void run(const DevicePrefill& a, const Compiled<PrefillArgs>& c, CudaContext& cuda) {
  DevicePrefill parts = a;
  const std::int32_t splits = choose_splits(a, c.tiles, cuda.gpu());
  const std::int64_t rows = static_cast<std::int64_t>(a.tokens) * a.q_heads;
  const CudaContext::Frame frame(cuda);
  const bool merges = splits > 1 && a.parts == nullptr;
  if (merges) parts.parts = cuda.scratch<float>(splits * rows * a.head_dim), parts.log_sum = cuda.scratch<float>(splits * rows);
  launch_compiled("attention_prefill", cuda, c, a.type, grid_of(tiles_of(a, c.tiles) * a.kv_heads, splits), [&](auto zero) {
    auto args = prefill_args<decltype(zero)>(parts);
    args.splits = splits;
    return args;
  });
  if (merges) run_cuda(DeviceMergePartials{parts.parts, parts.log_sum, a.out, a.log_sum, splits, rows, a.head_dim, a.type}, cuda);
}

}  // namespace

void check(const DevicePrefill& a, const GpuInfo& gpu) {
  const auto refuse = [](const std::string& why) { throw CudaError("attention_prefill: " + why); };
  if (kernels(a.head_dim).empty()) refuse("head_dim " + std::to_string(a.head_dim) + "; 64, 128 and 256 are there");
  if (a.kv_heads < 1 || a.q_heads % a.kv_heads != 0 || a.q_heads / a.kv_heads > 16 || a.q_heads < 1)
    refuse(std::to_string(a.q_heads) + " query heads on " + std::to_string(a.kv_heads) + " KV heads; 1 to 16 on each are possible");
  if (a.page_tokens < kPageUnit || a.page_tokens % kPageUnit != 0)
    refuse(std::to_string(a.page_tokens) + " tokens in a page; a multiple of 16 is needed");
  if (a.type == ElementType::kF32) refuse("f32; f16 and bf16 are there");
  if (a.type == ElementType::kBf16 && gpu.compute_capability < 80)
    refuse("bf16 needs compute capability 8.0, " + gpu.name + " has " + std::to_string(gpu.compute_capability / 10) + "." +
           std::to_string(gpu.compute_capability % 10) + "; f16 is possible");
  if (!(a.scale > 0.0F)) refuse("the scale must be above 0");
  if (a.q_stride % 8 != 0) refuse("q_stride " + std::to_string(a.q_stride) + " is not a multiple of 8");
}

std::vector<PrefillVariant> prefill_variants(std::int32_t head_dim) { return variants_of(kernels(head_dim)); }

std::int32_t splits_of(const DevicePrefill& a, const GpuInfo& gpu) {
  if (a.tokens == 0 || a.prompts == 0) return 1;
  check(a, gpu);
  return choose_splits(a, choose(a, gpu).tiles, gpu);
}

void run_cuda(const DevicePrefill& a, CudaContext& cuda) {
  if (a.tokens == 0 || a.prompts == 0) return;
  check(a, cuda.gpu());
  run(a, choose(a, cuda.gpu()), cuda);
}

}  // namespace kvlab
