#include "kernels/cuda/over_rows.cuh"
#include "kernels/cuda/row_tools.cuh"
#include "kernels/pack_tokens/pack_tokens.h"

namespace kvlab {

namespace {

template <class T>
struct Pack {
  DeviceRows kv;
  const std::int64_t* first;
  const std::int32_t* index;
  T *k, *v;
  std::uint32_t* marks;
  std::int64_t listed;
  bool unpacks;

  __device__ std::int64_t count(int row) const { return (first[row + 1] - first[row]) * kv.head_dim; }
  template <class Element>
  __device__ void copy(Element* in_row, Element* packed) const {
    if (unpacks)
      *in_row = *packed;
    else
      *packed = *in_row;
  }
  __device__ void operator()(int row, std::int64_t i) const {
    const std::int64_t d = kv.head_dim, c = i % d, at = first[row] + i / d;
    const std::int64_t slot = kv.slot(row, index == nullptr ? static_cast<std::int32_t>(i / d) : index[at]);
    if (k != nullptr) copy(static_cast<T*>(kv.k) + slot * d + c, k + at * d + c);
    if (v != nullptr) copy(static_cast<T*>(kv.v) + slot * d + c, v + at * d + c);
    if (c != 0 || marks == nullptr) return;
    copy(reinterpret_cast<std::uint32_t*>(kv.position) + slot, marks + at);
    for (std::int64_t w = 0; w < kv.num_words; ++w) copy(kv.words + w * kv.pool_tokens + slot, marks + (w + 1) * listed + at);
  }
};

}  // namespace

void run_cuda(const PackTokens& a, CudaContext& cuda) {
  if (a.listed() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  const std::int64_t* const first = cuda.upload(a.first, std::int64_t{a.kv.num_rows} + 1);
  for_type(a.kv.type, [&](auto zero) {
    using T = decltype(zero);
    launch_over_rows("pack_tokens", cuda, a.kv.num_rows, longest_row(a.first, a.kv.num_rows) * a.kv.head_dim,
                     Pack<T>{kv, first, a.index, static_cast<T*>(a.k), static_cast<T*>(a.v), a.marks, a.listed(), a.unpacks});
  });
}

}  // namespace kvlab
