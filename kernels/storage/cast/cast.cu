#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/storage/cast/cast.h"

namespace kvlab {

namespace {

constexpr int kWarps = 4;
constexpr int kInFlight = 4;

struct CastArgs {
  DeviceList list;
  std::uint8_t* stored;
  StoredType type;
  std::int32_t tiles;  // per row
};

__device__ __forceinline__ float within(float x, float most) { return fminf(fmaxf(x, -most), most); }

// As to_stored() in cast.cpp, bit for bit.
__device__ __forceinline__ std::uint32_t bits_of(StoredType type, float x) {
  if (x != x) x = 0.0F;
  switch (type) {
    case StoredType::kFp32:
      return __float_as_uint(within(x, 0x1.fffffep127F));
    case StoredType::kFp16:
      return pack<f16>(within(x, 65504.0F), 0.0F) & 0xFFFFU;
    case StoredType::kBf16:
      return pack<bf16>(within(x, 0x1.fep127F), 0.0F) & 0xFFFFU;
    case StoredType::kFp8E4M3:
      return from_float<fp8>(x).bits;
    case StoredType::kFp8E5M2:
      return to_e5m2(within(x, 57344.0F));
  }
  return 0;
}

// As from_stored() in cast.cpp.
__device__ __forceinline__ float back(StoredType type, std::uint32_t bits) {
  switch (type) {
    case StoredType::kFp32:
      return __uint_as_float(bits);
    case StoredType::kFp16:
      return unpack<f16>(bits).x;
    case StoredType::kBf16:
      return unpack<bf16>(bits).x;
    case StoredType::kFp8E4M3:
      return to_float(fp8{static_cast<std::uint8_t>(bits)});
    case StoredType::kFp8E5M2:
      return unpack<f16>(bits << 8).x;
  }
  return 0;
}

// With N = 8 the place is a multiple of 8 * bytes_of(type).
template <int N>
__device__ __forceinline__ void put_stored(std::uint8_t* p, StoredType type, const std::uint32_t (&bits)[N]) {
  const auto width = static_cast<int>(bytes_of(type));
  if constexpr (N == 8) {
    if (width == 1) {
      *reinterpret_cast<uint2*>(p) =
          make_uint2(bits[0] | bits[1] << 8 | bits[2] << 16 | bits[3] << 24, bits[4] | bits[5] << 8 | bits[6] << 16 | bits[7] << 24);
    } else if (width == 2) {
      *reinterpret_cast<uint4*>(p) =
          make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16, bits[6] | bits[7] << 16);
    } else {
      reinterpret_cast<uint4*>(p)[0] = make_uint4(bits[0], bits[1], bits[2], bits[3]);
      reinterpret_cast<uint4*>(p)[1] = make_uint4(bits[4], bits[5], bits[6], bits[7]);
    }
  } else {
    for (int i = 0; i < width; ++i) p[i] = static_cast<std::uint8_t>(bits[0] >> 8 * i);
  }
}

// A warp takes 32 entries, a lane N neighbouring channels at a time.
template <class T, int N>
__global__ void __launch_bounds__(kWarps* kWarpSize) cast_tokens(CastArgs a) {
  const int row = blockIdx.x / a.tiles, d = a.list.rows.head_dim, parts = d / N;
  const int entries = a.list.entries(row), begin = (blockIdx.x % a.tiles * kWarps + warp_index()) * kWarpSize;
  if (begin >= entries) return;
  const int n = min(kWarpSize, entries - begin);
  const std::int64_t slot = lane_index() < n ? a.list.slot(row, begin + lane_index()) : -1;
  const auto width = static_cast<int>(bytes_of(a.type));
  std::uint8_t* const stored = a.stored + (a.list.first[row] + begin) * d * width;
  T* const data = static_cast<T*>(a.list.data);
  TileWalk walk(1, parts);
  for (int step = 0; step < parts && step * kWarpSize < n * parts; step += kInFlight) {
    float x[kInFlight][N];
    std::int64_t place[kInFlight];
    int out[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const std::int64_t from = __shfl_sync(kAllLanes, slot, walk.token & 31);
      const bool mine = step + u < parts && walk.token < n;
      place[u] = mine && from >= 0 ? from * d + walk.part * N : -1;
      out[u] = mine ? (walk.token * d + walk.part * N) * width : -1;
#pragma unroll
      for (int i = 0; i < N; ++i) x[u][i] = 0.0F;
      if (place[u] >= 0) load_numbers(data + place[u], x[u]);
      walk.next();
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (out[u] < 0) continue;
      std::uint32_t bits[N];
#pragma unroll
      for (int i = 0; i < N; ++i) bits[i] = bits_of(a.type, x[u][i]), x[u][i] = back(a.type, bits[i]);
      put_stored<N>(stored + out[u], a.type, bits);
      if (place[u] >= 0) store_numbers(data + place[u], x[u]);
    }
  }
}

// A thread per number.
template <class T>
struct UncastNumbers {
  DeviceList list;
  const std::uint8_t* stored;
  StoredType type;
  __device__ std::int64_t count(int row) const { return std::int64_t{list.entries(row)} * list.rows.head_dim; }
  __device__ void operator()(int row, std::int64_t at) const {
    const std::int64_t d = list.rows.head_dim, slot = list.slot(row, static_cast<std::int32_t>(at / d));
    if (slot < 0) return;
    const auto width = static_cast<int>(bytes_of(type));
    const std::uint8_t* const from = stored + (list.first[row] * d + at) * width;
    const std::uint32_t bits = width == 1   ? *from
                               : width == 2 ? *reinterpret_cast<const std::uint16_t*>(from)
                                            : *reinterpret_cast<const std::uint32_t*>(from);
    store_float(static_cast<T*>(list.data) + slot * d + at % d, back(type, bits));
  }
};

void uncast(const Cast& op, const DeviceList& list, CudaContext& cuda) {
  for_type(op.tokens.kv.type, [&](auto zero) {
    launch_over_rows("uncast_tokens", cuda, op.tokens.kv.num_rows, std::int64_t{list.longest} * op.tokens.kv.head_dim,
                     UncastNumbers<decltype(zero)>{list, op.stored, op.type});
  });
}

}  // namespace

void run_cuda(const Cast& op, CudaContext& cuda) {
  if (op.tokens.total() == 0 || op.tokens.kv.head_dim == 0) return;
  const CudaContext::Frame frame(cuda);
  CastArgs a{on_device(op.tokens, cuda), op.stored, op.type, 1};
  if (op.unpacks) return uncast(op, a.list, cuda);
  a.tiles = static_cast<std::int32_t>(ceil_div(a.list.longest, kWarps * kWarpSize));
  const bool vectors = op.tokens.kv.head_dim % 8 == 0 && aligned16({a.list.data, op.stored});
  for_type(op.tokens.kv.type, [&](auto zero) {
    using T = decltype(zero);
    launch("cast_tokens", cuda, blocks_of(std::int64_t{op.tokens.kv.num_rows} * a.tiles, kWarps * kWarpSize),
           vectors ? cast_tokens<T, 8> : cast_tokens<T, 1>, a);
  });
}

}  // namespace kvlab
