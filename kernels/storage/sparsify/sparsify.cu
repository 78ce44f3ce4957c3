#include "kernels/device/cuda/listed_tools.cuh"
#include "kernels/device/cuda/ordered_key.cuh"
#include "kernels/storage/sparsify/sparsify.h"

namespace kvlab {

namespace {

constexpr int kHeader = 12, kWarps = kRowThreads / kWarpSize;

struct Sparse {
  DeviceList list;
  std::int32_t keep, tiles;
  std::int64_t token_bytes;
  std::uint8_t* packed;
  int chunks;

  // The warp's row, and the entry or -1.
  __device__ int2 mine() const {
    const int row = blockIdx.x / chunks, i = static_cast<int>(blockIdx.x) % chunks * kWarps + warp_index();
    return {row, i < listed_count(list, row) ? i : -1};
  }
  __device__ std::uint8_t* token(int row, int i) const { return packed + (list.first[row] + i) * token_bytes; }
};

__device__ __forceinline__ int padded_numbers(int n) { return (n + kSparsePad - 1) / kSparsePad * kSparsePad; }
// Packed tokens begin at even addresses.
__device__ __forceinline__ void put_words(std::uint8_t* to, std::uint64_t x, int bytes) {
  for (int i = 0; i < bytes; i += 2) *reinterpret_cast<std::uint16_t*>(to + i) = static_cast<std::uint16_t>(x >> (8 * i));
}
__device__ __forceinline__ std::uint64_t get_words(const std::uint8_t* from, int bytes) {
  std::uint64_t x = 0;
  for (int i = 0; i < bytes; i += 2) x |= std::uint64_t{*reinterpret_cast<const std::uint16_t*>(from + i)} << (8 * i);
  return x;
}

// kept [d], shared: 1 for the `keep` largest magnitudes, earlier ones first; else 0.
template <class T>
__device__ __forceinline__ void mark_kept(const T* x, int d, int keep, std::uint32_t* kept) {
  for (int c = lane_index(); c < d; c += kWarpSize) {  // the order of |x|
    const float y = load_float(x + c);
    kept[c] = ordered_key(y == y ? fabsf(y) : -1.0F);
  }
  __syncwarp();
  std::uint32_t bits = 0;  // bit j: channel lane + 32 j, j < 32
  for (int c = lane_index(), j = 0; c < d; c += kWarpSize, ++j) {
    int larger = 0;
    for (int other = 0; other < d; ++other) larger += kept[other] > kept[c] || (kept[other] == kept[c] && other < c) ? 1 : 0;
    bits |= (larger < keep ? 1U : 0U) << j;
  }
  __syncwarp();
  for (int c = lane_index(), j = 0; c < d; c += kWarpSize, ++j) kept[c] = bits >> j & 1U;
  __syncwarp();
}

__device__ __forceinline__ int bytes_before(const std::uint32_t* kept, int t) {
  int offset = 0;
  for (int before = 0; before < t; ++before) {
    int n = 0;
    for (int c = before * kSparseTile; c < (before + 1) * kSparseTile; ++c) n += static_cast<int>(kept[c]);
    offset += 2 * padded_numbers(n);
  }
  return offset;
}

// A warp per token, a lane per tile when it packs.
template <class T>
__global__ void __launch_bounds__(kRowThreads) sparsify(Sparse a) {
  KVLAB_DYNAMIC_SHARED(std::uint32_t, marks);  // [warps, head_dim]
  const int2 at = a.mine();
  if (at.y < 0) return;
  const int d = a.list.rows.head_dim;
  const T* const x = listed_at<T>(a.list, at.x, at.y);
  std::uint32_t* const kept = marks + warp_index() * d;
  mark_kept(x, d, a.keep, kept);
  std::uint8_t* const token = a.token(at.x, at.y);
  for (int t = lane_index(); t < a.tiles; t += kWarpSize) {
    const int offset = bytes_before(kept, t);
    std::uint64_t bitmap = 0;
    std::uint8_t* number = token + a.tiles * kHeader + offset;
    int n = 0;
    for (int c = t * kSparseTile; c < min(d, (t + 1) * kSparseTile); ++c) {
      if (kept[c] == 0) continue;
      bitmap |= std::uint64_t{1} << (c % kSparseTile);
      put_words(number + 2 * n++, half_bits(load_float(x + c)), 2);
    }
    for (; n % kSparsePad != 0; ++n) put_words(number + 2 * n, 0, 2);
    put_words(token + t * kHeader, bitmap, 8);
    put_words(token + t * kHeader + 8, static_cast<std::uint32_t>(offset), 4);
  }
}

// A warp per token.
template <class T>
__global__ void __launch_bounds__(kRowThreads) unsparsify(Sparse a) {
  const int2 at = a.mine();
  if (at.y < 0) return;
  T* const x = listed_at<T>(a.list, at.x, at.y);
  const std::uint8_t* const token = a.token(at.x, at.y);
  for (int c = lane_index(); c < a.list.rows.head_dim; c += kWarpSize) {
    const std::uint8_t* const header = token + c / kSparseTile * kHeader;
    const std::uint64_t bitmap = get_words(header, 8), bit = std::uint64_t{1} << (c % kSparseTile);
    const std::uint8_t* const number = token + a.tiles * kHeader + get_words(header + 8, 4) + 2 * __popcll(bitmap & (bit - 1));
    store_float(x + c, (bitmap & bit) == 0 ? 0.0F : to_float(f16{static_cast<std::uint16_t>(get_words(number, 2))}));
  }
}

Sparse sparse_of(const Sparsify& a, CudaContext& cuda) {
  const std::int32_t d = a.tokens.kv.head_dim;
  Sparse s{on_device(a.tokens, cuda), a.keep, 0, most_sparse_bytes(d, a.keep), a.packed, 0};
  s.tiles = (d + kSparseTile - 1) / kSparseTile;
  s.chunks = static_cast<int>(ceil_div(s.list.longest, kWarps));
  return s;
}

}  // namespace

void run_cuda(const Sparsify& a, CudaContext& cuda) {
  if (a.tokens.total() == 0) return;
  if (a.tokens.kv.head_dim > 1024) throw CudaError("sparsify: heads of more than 1024 channels");
  const CudaContext::Frame frame(cuda);
  const Sparse s = sparse_of(a, cuda);
  LaunchShape shape = block_each(std::int64_t{a.tokens.kv.num_rows} * s.chunks);
  if (!a.unpacks)
    shape.shared_bytes = static_cast<std::size_t>(kWarps) * static_cast<std::size_t>(a.tokens.kv.head_dim) * sizeof(std::uint32_t);
  for_type(a.tokens.kv.type, [&](auto zero) {
    launch(a.unpacks ? "unsparsify" : "sparsify", cuda, shape, a.unpacks ? unsparsify<decltype(zero)> : sparsify<decltype(zero)>, s);
  });
}

}  // namespace kvlab
