#include "kernels/device/cuda/row_tools.cuh"
#include "policies/kv/format/exponent_code/exponent_block.h"
#include "policies/kv/format/exponent_code/exponent_code.h"

namespace kvlab {

namespace {

using Count = unsigned long long;

template <class T>
__device__ __forceinline__ std::uint16_t bits_at(const DeviceList& list, int row, std::int32_t i, int c) {
  return from_float<bf16>(load_float(listed_at<T>(list, row, i) + c)).bits;
}
template <class T>
__device__ __forceinline__ int exponent_at(const DeviceList& list, int row, std::int32_t i, int c) {
  return exponent_bits(bits_at<T>(list, row, i, c));
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

// bytes [num_rows, chunks], length [num_sequences, 256]. One block each.
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

// begin [num_rows], offset [num_rows, chunks] from there. One block each; its first thread writes the bits.
template <class T>
__global__ void __launch_bounds__(kRowThreads) write_blocks(DeviceList list, int chunks, const PrefixCode* code, const std::int64_t* begin,
                                                            const std::int32_t* offset, std::uint8_t* packed) {
  const int row = blockIdx.x / chunks, chunk = static_cast<int>(blockIdx.x) % chunks, d = list.rows.head_dim;
  const std::int32_t first = chunk * kExponentBlock, n = min(kExponentBlock, listed_count(list, row) - first);
  if (n <= 0) return;
  std::uint8_t* const to = packed + begin[row];
  std::uint8_t* const block = to + offset[blockIdx.x];
  for (int i = threadIdx.x; i < n * d; i += kRowThreads) block[i] = sign_and_fraction(bits_at<T>(list, row, first + i / d, i % d));
  if (threadIdx.x != 0) return;
  put_offset(to + 4 * chunk, static_cast<std::uint32_t>(offset[blockIdx.x]));
  put_exponents(
      code[row / list.rows.kv_heads], n * d, [&](std::int32_t i) { return bits_at<T>(list, row, first + i / d, i % d); }, block + n * d);
}

template <class T>
__global__ void __launch_bounds__(kRowThreads)
    read_blocks(DeviceList list, int chunks, const PrefixCode* code, const std::int64_t* begin, const std::uint8_t* packed) {
  const int row = blockIdx.x / chunks, chunk = static_cast<int>(blockIdx.x) % chunks, d = list.rows.head_dim;
  const std::int32_t first = chunk * kExponentBlock, n = min(kExponentBlock, listed_count(list, row) - first);
  if (n <= 0 || threadIdx.x != 0) return;
  const std::uint8_t* const from = packed + begin[row];
  read_block(code[row / list.rows.kv_heads], n * d, from + offset_at(from + 4 * chunk), [&](std::int32_t i, std::uint16_t bits) {
    listed_at<T>(list, row, first + i / d)[i % d] = from_float<T>(to_float(bf16{bits}));
  });
}

// Offsets in the row and in `packed`, from bytes of blocks [num_rows, chunks].
std::vector<std::int32_t> lay_out(const ExponentCode& a, const std::vector<std::int32_t>& taken, std::int64_t chunks) {
  std::vector<std::int32_t> offset(taken.size());
  std::int64_t at = 0;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r) {
    const auto row = static_cast<std::size_t>(r * chunks);
    std::int32_t next = 0;
    for (std::int64_t c = 0; c < chunks; ++c) next += taken[row + static_cast<std::size_t>(c)] > 0 ? 4 : 0;
    for (std::int64_t c = 0; c < chunks; ++c) {
      const std::int32_t bytes = taken[row + static_cast<std::size_t>(c)];
      offset[row + static_cast<std::size_t>(c)] = next;
      next += bytes > 0 ? bytes - 4 : 0;
    }
    a.begin[r] = at;
    a.end[r] = at += next;
  }
  return offset;
}

void encode(const ExponentCode& a, CudaContext& cuda) {
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
  if (a.packed == nullptr) return;
  const std::vector<std::int32_t> offset = lay_out(a, taken, chunks);
  std::vector<PrefixCode> codes;
  std::vector<std::uint8_t> short_lengths(length.begin(), length.end());
  for (std::int64_t s = 0; s < kv.num_sequences(); ++s) codes.push_back(prefix_code(short_lengths.data() + s * kExponentTable));
  const PrefixCode* const code = cuda.upload(codes.data(), std::ssize(codes));
  const std::int64_t* const begin = cuda.upload(a.begin, kv.num_rows);
  const std::int32_t* const offsets = cuda.upload(offset.data(), std::ssize(offset));
  cuda::to_device(a.lengths, short_lengths.data(), symbols, cuda.stream());
  for_type(kv.type, [&](auto zero) {
    launch("exponent_code", cuda, block_each(kv.num_rows * chunks), write_blocks<decltype(zero)>, list, static_cast<int>(chunks), code,
           begin, offsets, a.packed);
  });
  cuda.synchronize();
}

void decode(const ExponentCode& a, CudaContext& cuda) {
  if (a.tokens.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const KvRows& kv = a.tokens.kv;
  const DeviceList list = on_device(a.tokens, cuda);
  const std::int64_t chunks = ceil_div(list.longest, kExponentBlock);
  const std::vector<std::uint8_t> lengths = download(cuda, a.lengths, std::int64_t{kExponentTable} * kv.num_sequences());
  std::vector<PrefixCode> codes;
  for (std::int64_t s = 0; s < kv.num_sequences(); ++s) codes.push_back(prefix_code(lengths.data() + s * kExponentTable));
  const PrefixCode* const code = cuda.upload(codes.data(), std::ssize(codes));
  const std::int64_t* const begin = cuda.upload(a.begin, kv.num_rows);
  for_type(kv.type, [&](auto zero) {
    launch("exponent_decode", cuda, block_each(kv.num_rows * chunks), read_blocks<decltype(zero)>, list, static_cast<int>(chunks), code,
           begin, a.packed);
  });
}

}  // namespace

void run_cuda(const ExponentCode& a, CudaContext& cuda) { a.unpacks ? decode(a, cuda) : encode(a, cuda); }

}  // namespace kvlab
