#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kernels/device/emulated/emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define threadIdx (::kvlab::emulated::thread_index())
#define blockIdx (::kvlab::emulated::block_index())
#define blockDim (::kvlab::emulated::block_shape())
#define gridDim (::kvlab::emulated::grid_shape())
// decltype([] {}) differs at every place.
#define KVLAB_SHARED(T, name, n) T(&name)[n] = ::kvlab::emulated::static_shared<T[n], decltype([] {})>()
#define KVLAB_DYNAMIC_SHARED(T, name) T* name = reinterpret_cast<T*>(::kvlab::emulated::dynamic_shared())

using dim3 = kvlab::emulated::Dim3;

// CUDA's global names.
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using std::max;
using std::min;

inline void __syncthreads() { kvlab::emulated::sync_block(); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFU) { kvlab::emulated::warp_instruction("__syncwarp", mask, nullptr, nullptr, nullptr); }
inline void __threadfence() {}

namespace kvlab::emulated {

template <class T, class Place>
T& static_shared() {
  alignas(128) static std::byte storage[sizeof(T)];
  static const bool noted = (note_shared(storage, sizeof(T)), true);
  static_cast<void>(noted);
  return reinterpret_cast<T&>(storage);
}

template <class T>
struct Shuffle {
  T value;
  int from;  // source lane
};

template <class T>
T shuffle(const char* name, unsigned mask, T value, int from) {
  const Shuffle<T> in{value, from};
  T out = value;
  warp_instruction(name, mask, &in, &out, [](const auto& inputs, const auto& outputs, unsigned m) {
    for (int l = 0; l < 32; ++l) {
      if ((m >> l & 1U) == 0) continue;
      const int source = static_cast<const Shuffle<T>*>(inputs[static_cast<std::size_t>(l)])->from;
      if (source < 0 || source > 31 || inputs[static_cast<std::size_t>(source)] == nullptr) continue;
      *static_cast<T*>(outputs[static_cast<std::size_t>(l)]) =
          static_cast<const Shuffle<T>*>(inputs[static_cast<std::size_t>(source)])->value;
    }
  });
  return out;
}

inline unsigned ballot(const char* name, unsigned mask, bool predicate) {
  unsigned out = 0;
  warp_instruction(name, mask, &predicate, &out, [](const auto& inputs, const auto& outputs, unsigned m) {
    unsigned bits = 0;
    for (std::size_t l = 0; l < 32; ++l) bits |= (m >> l & 1U) != 0 && *static_cast<const bool*>(inputs[l]) ? 1U << l : 0U;
    for (std::size_t l = 0; l < 32; ++l)
      if ((m >> l & 1U) != 0) *static_cast<unsigned*>(outputs[l]) = bits;
  });
  return out;
}

}  // namespace kvlab::emulated

template <class T>
T __shfl_sync(unsigned mask, T x, int from, int width = 32) {
  const int lane = kvlab::emulated::lane();
  return kvlab::emulated::shuffle("__shfl_sync", mask, x, lane / width * width + ((from % width) + width) % width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32) {
  const int lane = kvlab::emulated::lane(), from = lane ^ bits;
  return kvlab::emulated::shuffle("__shfl_xor_sync", mask, x, from / width > lane / width ? lane : from);
}
template <class T>
T __shfl_up_sync(unsigned mask, T x, unsigned delta, int width = 32) {
  const int lane = kvlab::emulated::lane(), from = lane - static_cast<int>(delta);
  return kvlab::emulated::shuffle("__shfl_up_sync", mask, x, from < lane / width * width ? lane : from);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return kvlab::emulated::ballot("__ballot_sync", mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0 ? 1 : 0; }
// One thread runs at a time.
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> x) {
  return std::exchange(*p, *p + x);
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> x) {
  return std::exchange(*p, std::max(*p, x));
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> x) {
  return std::exchange(*p, *p | x);
}
template <class T>
void __stcs(T* p, T x) {
  *p = x;
}

inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdividef(float x, float y) { return x / y; }
inline float __expf(float x) { return std::exp(x); }
inline float rsqrtf(float x) { return 1.0F / std::sqrt(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t both = static_cast<std::uint64_t>(b) << 32 | a;
  unsigned out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i) & 15U;
    auto byte = static_cast<unsigned>(both >> (8 * (s & 7U)) & 0xFFU);
    if ((s & 8U) != 0) byte = (byte & 0x80U) != 0 ? 0xFFU : 0U;
    out |= byte << (8 * i);
  }
  return out;
}

namespace kvlab {

template <class T>
std::uint32_t pack(float low, float high) {
  return from_float<T>(low).bits | static_cast<std::uint32_t>(from_float<T>(high).bits) << 16;
}
template <class T>
float2 unpack(std::uint32_t packed) {
  return {to_float(T{static_cast<std::uint16_t>(packed)}), to_float(T{static_cast<std::uint16_t>(packed >> 16)})};
}

template <int Bytes>
void cp_async(void* shared, const void* global, bool valid = true) {
  emulated::copy_async(shared, global, Bytes, valid ? Bytes : 0);
}
inline void cp_async_commit() { emulated::commit_copies(); }
template <int Left>
void cp_async_wait() {
  emulated::wait_copies(Left);
}

namespace emulated {

template <bool Transposed>
void load_matrices(const std::array<const void*, 32>& in, const std::array<void*, 32>& out, unsigned) {
  for (std::size_t lane = 0; lane < 32; ++lane) {
    auto* r = static_cast<std::uint32_t*>(out[lane]);
    for (std::size_t m = 0; m < 4; ++m) {
      const auto at = [&](std::size_t row, std::size_t column) {
        return static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(*static_cast<const void* const*>(in[m * 8 + row]))[column]);
      };
      const std::size_t g = lane / 4, c = 2 * (lane % 4);
      r[m] = Transposed ? at(c, g) | at(c + 1, g) << 16 : at(g, c) | at(g, c + 1) << 16;
    }
  }
}

inline void transpose(const std::array<const void*, 32>& in, const std::array<void*, 32>& out, unsigned) {
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const auto at = [&](std::size_t row, std::size_t column) {
      return *static_cast<const std::uint32_t*>(in[row * 4 + column / 2]) >> 16 * (column % 2) & 0xFFFFU;
    };
    const std::size_t g = lane / 4, c = 2 * (lane % 4);
    *static_cast<std::uint32_t*>(out[lane]) = at(c, g) | at(c + 1, g) << 16;
  }
}

struct MmaOperands {
  std::uint32_t a[4], b[2];
};

template <class T>
void multiply_matrices(const std::array<const void*, 32>& in, const std::array<void*, 32>& out, unsigned) {
  float a[16][16], b[16][8];
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const auto& x = *static_cast<const MmaOperands*>(in[lane]);
    const std::size_t g = lane / 4, c = 2 * (lane % 4);
    for (std::size_t i = 0; i < 4; ++i) {
      const float2 pair = unpack<T>(x.a[i]);
      a[g + i % 2 * 8][c + i / 2 * 8] = pair.x, a[g + i % 2 * 8][c + i / 2 * 8 + 1] = pair.y;
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const float2 pair = unpack<T>(x.b[i]);
      b[c + i * 8][g] = pair.x, b[c + i * 8 + 1][g] = pair.y;
    }
  }
  for (std::size_t lane = 0; lane < 32; ++lane) {
    auto* d = static_cast<float*>(out[lane]);
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
      float sum = 0;
      for (std::size_t k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      d[i] += sum;
    }
  }
}

}  // namespace emulated

using SharedPlace = std::uintptr_t;
inline SharedPlace shared_place(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
inline void cp_async16(SharedPlace shared, const void* global, bool valid = true) {
  emulated::copy_async(reinterpret_cast<void*>(shared), global, 16, valid ? 16 : 0);
}
inline uint4 load_shared16(SharedPlace shared) { return *reinterpret_cast<const uint4*>(shared); }
inline uint2 load_shared8(SharedPlace shared) { return *reinterpret_cast<const uint2*>(shared); }
inline std::uint32_t load_shared4(SharedPlace shared) { return *reinterpret_cast<const std::uint32_t*>(shared); }
inline void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) {
  emulated::warp_instruction("ldmatrix", 0xFFFFFFFFU, &row, r, emulated::load_matrices<false>);
}
inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* row) {
  emulated::warp_instruction("ldmatrix.trans", 0xFFFFFFFFU, &row, r, emulated::load_matrices<true>);
}
inline void ldmatrix_x4(std::uint32_t (&r)[4], SharedPlace row) { ldmatrix_x4(r, reinterpret_cast<const void*>(row)); }
inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], SharedPlace row) { ldmatrix_x4_trans(r, reinterpret_cast<const void*>(row)); }
inline std::uint32_t transpose_matrix(std::uint32_t x) {
  std::uint32_t y = 0;
  emulated::warp_instruction("movmatrix", 0xFFFFFFFFU, &x, &y, emulated::transpose);
  return y;
}
template <class T>
void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  const emulated::MmaOperands in{{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  emulated::warp_instruction("mma", 0xFFFFFFFFU, &in, d, emulated::multiply_matrices<T>);
}

template <class T>
std::uint32_t min2(std::uint32_t a, std::uint32_t b) {
  const float2 x = unpack<T>(a), y = unpack<T>(b);
  return pack<T>(std::fmin(x.x, y.x), std::fmin(x.y, y.y));
}
template <class T>
std::uint32_t max2(std::uint32_t a, std::uint32_t b) {
  const float2 x = unpack<T>(a), y = unpack<T>(b);
  return pack<T>(std::fmax(x.x, y.x), std::fmax(x.y, y.y));
}
template <class T>
std::uint32_t fma2(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const float2 x = unpack<T>(a), y = unpack<T>(b), z = unpack<T>(c);
  return pack<T>(std::fma(x.x, y.x, z.x), std::fma(x.y, y.y, z.y));
}
template <int Half>
std::uint32_t unpack_fp8(std::uint32_t word) {
  const auto at = [&](int i) { return to_float(fp8{static_cast<std::uint8_t>(word >> (16 * Half + 8 * i))}); };
  return pack<f16>(at(0), at(1));
}
inline std::uint32_t and_or(std::uint32_t a, std::uint32_t b, std::uint32_t c) { return (a & b) | c; }
inline uint4 load_streaming(const void* p) { return *static_cast<const uint4*>(p); }
inline float fast_exp2(float x) { return std::exp2(x); }

}  // namespace kvlab
