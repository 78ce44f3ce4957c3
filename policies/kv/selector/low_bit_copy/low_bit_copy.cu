#include "kernels/device/cuda/listed_tools.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/upload.h"
#include "policies/kv/selector/low_bit_copy/low_bit_copy.h"

namespace kvlab {

namespace {

struct CopyCoded {
  DeviceRows from, to;
  LowBitCode code;
  const std::int32_t* covered;  // [num_rows]
  int chunks;                   // of code.group tokens
};

template <class Get, class Put>
__device__ __forceinline__ void code_group(const LowBitCode& code, int n, Get&& get, Put&& put) {
  float low = get(0), high = low;
  for (int i = 1; i < n; ++i) {
    const float x = get(i);
    low = x < low ? x : low, high = high < x ? x : high;
  }
  const auto levels = static_cast<float>((1 << code.bits) - 1);
  const float zero = as_half(code.bits == 1 ? __fadd_rn(__fmul_rn(0.75F, low), __fmul_rn(0.25F, high)) : low);
  const float scale = as_half(code.bits == 1 ? 0.5F * (high - low) : (high - low) / levels);
  for (int i = 0; i < n; ++i) {
    const float c = scale > 0 ? fminf(fmaxf(rintf((get(i) - zero) / scale), 0.0F), levels) : 0.0F;
    put(i, __fadd_rn(zero, __fmul_rn(scale, c)));
  }
}

// A block per row and group of tokens.
template <class T>
__global__ void __launch_bounds__(kRowThreads) copy_coded(CopyCoded a) {
  const int row = blockIdx.x / a.chunks, d = a.from.head_dim, group = a.code.group;
  const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) % a.chunks * group, n = min(group, a.from.len[row] - begin);
  if (n <= 0) return;
  for (int i = threadIdx.x; i < n; i += kRowThreads)
    a.to.position[a.to.slot(row, begin + i)] = a.from.position[a.from.slot(row, begin + i)];
  if (begin >= a.covered[row]) {
    for (int i = threadIdx.x; i < n * d; i += kRowThreads) {
      key_at<T>(a.to, row, begin + i / d)[i % d] = key_at<T>(a.from, row, begin + i / d)[i % d];
      value_at<T>(a.to, row, begin + i / d)[i % d] = value_at<T>(a.from, row, begin + i / d)[i % d];
    }
    return;
  }
  for (int c = threadIdx.x; c < d; c += kRowThreads)
    code_group(
        a.code, group, [&](int i) { return load_float(key_at<T>(a.from, row, begin + i) + c); },
        [&](int i, float x) { store_float(key_at<T>(a.to, row, begin + i) + c, x); });
  const int parts = (d + group - 1) / group;
  for (int item = threadIdx.x; item < group * parts; item += kRowThreads) {
    const int c = item % parts * group;
    const T* const from = value_at<T>(a.from, row, begin + item / parts) + c;
    T* const to = value_at<T>(a.to, row, begin + item / parts) + c;
    code_group(
        a.code, min(group, d - c), [&](int i) { return load_float(from + i); }, [&](int i, float x) { store_float(to + i, x); });
  }
}

}  // namespace

void run_cuda(const LowBitCopy& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  if (a.kv.type != a.out.type) throw CudaError("low_bit_copy: the copy has another element type than the cache");
  const CudaContext::Frame frame(cuda);
  CopyCoded c{on_device(a.kv, cuda), on_device(a.out, cuda), a.code, cuda.upload(a.covered, a.kv.num_rows), 0};
  c.chunks = static_cast<int>(ceil_div(c.from.longest, a.code.group));
  for_type(a.kv.type, [&](auto zero) {
    launch("low_bit_copy", cuda, block_each(std::int64_t{a.kv.num_rows} * c.chunks), copy_coded<decltype(zero)>, c);
  });
}

void run_cuda(const LowBitAttention& a, CudaContext& cuda) { run_cuda(a.stats, cuda); }

}  // namespace kvlab
