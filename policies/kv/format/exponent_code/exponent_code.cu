#include "kernels/device/cuda/download.h"
#include "kernels/device/cuda/listed_tools.cuh"
#include "policies/kv/format/exponent_code/exponent_code.h"

namespace kvlab {

namespace {

using Count = unsigned long long;

template <class T>
__device__ __forceinline__ int exponent_at(const DeviceList& list, int row, std::int32_t i, int c) {
  return from_float<bf16>(load_float(listed_at<T>(list, row, i) + c)).bits >> 7 & 0xFF;
}

// count [num_sequences, 256]. A block per row and kExponentBlock tokens.
template <class T>
__global__ void __launch_bounds__(kRowThreads) count_exponents(DeviceList list, int chunks, Count* count) {
  KVLAB_SHARED(std::uint32_t, mine, 256);
  const int row = blockIdx.x / chunks, d = list.rows.head_dim;
  const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) % chunks * kExponentBlock,
                     n = min(kExponentBlock, listed_count(list, row) - begin);
  if (n <= 0) return;
  for (int i = threadIdx.x; i < 256; i += kRowThreads) mine[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n * d; i += kRowThreads) atomicAdd(&mine[exponent_at<T>(list, row, begin + i / d, i % d)], 1U);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += kRowThreads)
    if (mine[i] != 0) atomicAdd(&count[row / list.rows.kv_heads * 256 + i], static_cast<Count>(mine[i]));
}

// bytes [num_rows, chunks]: what a block of tokens takes. length [num_sequences, 256]. One block each.
template <class T>
__global__ void __launch_bounds__(kRowThreads) block_bytes(DeviceList list, int chunks, const std::int32_t* length, std::int32_t* bytes) {
  KVLAB_SHARED(std::int32_t, shared, 33);
  const int row = blockIdx.x / chunks, d = list.rows.head_dim;
  const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) % chunks * kExponentBlock,
                     n = min(kExponentBlock, listed_count(list, row) - begin);
  const std::int32_t* const of_symbol = length + row / list.rows.kv_heads * 256;
  std::int32_t bits = 0;
  for (int i = threadIdx.x; i < n * d; i += kRowThreads) bits += 8 + of_symbol[exponent_at<T>(list, row, begin + i / d, i % d)];
  bits = block_sum(bits, shared);
  if (threadIdx.x == 0) bytes[blockIdx.x] = n <= 0 ? 0 : (bits + 7) / 8 + 4;
}

}  // namespace

void run_cuda(const ExponentCode& a, CudaContext& cuda) {
  if (a.tokens.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const KvRows& kv = a.tokens.kv;
  const DeviceList list = on_device(a.tokens, cuda);
  const std::int64_t chunks = ceil_div(list.longest, kExponentBlock), symbols = 256LL * kv.num_sequences();
  Count* const count = cuda.scratch<Count>(symbols);
  cuda::fill(count, 0, symbols * static_cast<std::int64_t>(sizeof(Count)), cuda.stream());
  std::int32_t* const bytes = cuda.scratch<std::int32_t>(kv.num_rows * chunks);
  for_type(kv.type, [&](auto zero) {
    launch("exponent_code", cuda, block_each(kv.num_rows * chunks), count_exponents<decltype(zero)>, list, static_cast<int>(chunks), count);
  });
  const std::vector<Count> counted = download(cuda, count, symbols);
  std::vector<std::int32_t> length(static_cast<std::size_t>(symbols));
  for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
    std::int64_t of_symbol[256], tokens = 0;
    for (std::int64_t i = 0; i < 256; ++i)
      tokens += of_symbol[i] = static_cast<std::int64_t>(counted[static_cast<std::size_t>(s * 256 + i)]);
    huffman_lengths(of_symbol, length.data() + s * 256LL);
    if (tokens > 0) a.bytes[s * kv.kv_heads] += kExponentTable;
  }
  const std::int32_t* const lengths = cuda.upload(length.data(), symbols);
  for_type(kv.type, [&](auto zero) {
    launch("exponent_code", cuda, block_each(kv.num_rows * chunks), block_bytes<decltype(zero)>, list, static_cast<int>(chunks), lengths,
           bytes);
  });
  const std::vector<std::int32_t> taken = download(cuda, bytes, kv.num_rows * chunks);
  for (std::int64_t i = 0; i < kv.num_rows * chunks; ++i) a.bytes[i / chunks] += taken[static_cast<std::size_t>(i)];
}

}  // namespace kvlab
