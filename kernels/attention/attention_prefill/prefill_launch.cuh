#pragma once

#include <vector>

#include "kernels/attention/attention_prefill/attention_prefill_cuda.h"
#include "kernels/attention/attention_prefill/prefill_kernel.cuh"

namespace kvlab::prefill {

// A kernel for both types.
template <template <class> class Args>
struct Compiled {
  PrefillVariant tiles;
  int blocks;  // per multiprocessor, by registers
  void (*for_f16)(Args<f16>);
  void (*for_bf16)(Args<bf16>);
};

template <class Kernels>
std::vector<PrefillVariant> variants_of(const Kernels& all) {
  std::vector<PrefillVariant> variants;
  for (const auto& c : all) variants.push_back(c.tiles);
  return variants;
}

// The one that a.tuning names; null: automatic.
template <class Kernels>
auto tuned(const std::string& op, const Kernels& all, const DevicePrefill& a) {
  if (a.tuning >= static_cast<int>(all.size()))
    throw CudaError(op + ": no tuning " + std::to_string(a.tuning) + " for head_dim " + std::to_string(a.head_dim));
  return a.tuning < 0 ? nullptr : &all[static_cast<std::size_t>(a.tuning)];
}

[[noreturn]] inline void refuse_shared_memory(const std::string& op, std::int64_t head_dim, const GpuInfo& gpu) {
  throw CudaError(op + ": head_dim " + std::to_string(head_dim) + " needs more shared memory than " + gpu.name + " has");
}

inline std::int64_t q_stride_of(const DevicePrefill& a) { return a.q_stride == 0 ? std::int64_t{a.q_heads} * a.head_dim : a.q_stride; }

// Without splits.
template <class T>
PrefillArgs<T> prefill_args(const DevicePrefill& a) {
  PrefillArgs<T> args{};
  args.q = static_cast<const T*>(a.q), args.k = static_cast<const T*>(a.k), args.v = static_cast<const T*>(a.v);
  args.out = static_cast<T*>(a.out), args.parts = a.parts, args.log_sum = a.log_sum;
  args.query_first = a.query_first, args.kv_before = a.kv_before, args.page_begin = a.page_begin, args.page = a.page;
  args.q_stride = q_stride_of(a), args.tokens = a.tokens, args.prompts = a.prompts, args.kv_heads = a.kv_heads;
  args.group = a.q_heads / a.kv_heads, args.page_units = a.page_tokens / kPageUnit, args.window = a.window, args.splits = 1;
  args.causal = a.causal, args.scale = a.scale * kLog2E;
  return args;
}

// args_of(zero): the arguments for the type.
template <template <class> class Args, class ArgsOf>
void launch_compiled(const char* op, CudaContext& cuda, const Compiled<Args>& c, ElementType type, dim3 grid, ArgsOf&& args_of) {
  const LaunchShape shape = blocks_of(grid, c.tiles.warps * kWarpSize, c.tiles.shared_bytes());
  if (type == ElementType::kF16)
    launch(op, cuda, shape, c.for_f16, args_of(f16{}));
  else
    launch(op, cuda, shape, c.for_bf16, args_of(bf16{}));
}

}  // namespace kvlab::prefill
