#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#define KVLAB_SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define KVLAB_DYNAMIC_SHARED(T, name)                                     \
  extern __shared__ __align__(1024) unsigned char kvlab_dynamic_shared[]; \
  T* name = reinterpret_cast<T*>(kvlab_dynamic_shared)

namespace kvlab {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(p)); }

// The first in the low half.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack<f16>(float low, float high) {
  const __half2 h = __floats2half2_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&h);
}
template <>
__device__ __forceinline__ std::uint32_t pack<bf16>(float low, float high) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&h);
}
template <class T>
__device__ __forceinline__ float2 unpack(std::uint32_t packed);
template <>
__device__ __forceinline__ float2 unpack<f16>(std::uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}
template <>
__device__ __forceinline__ float2 unpack<bf16>(std::uint32_t packed) {
  return make_float2(__uint_as_float(packed << 16), __uint_as_float(packed & 0xFFFF0000U));
}

// 4, 8 or 16 bytes from global to shared memory, or zeros if not `valid` (`global` is not read). Asynchronous from sm_80 on. 16 bytes
// bypass L1.
template <int Bytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global, bool valid = true) {
#if __CUDA_ARCH__ >= 800
  const int read = valid ? Bytes : 0;
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global), "r"(read) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;\n" ::"r"(shared_address(shared)), "l"(global), "r"(read), "n"(Bytes)
                 : "memory");
#else
  if constexpr (Bytes == 16)
    *static_cast<uint4*>(shared) = valid ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
  else if constexpr (Bytes == 8)
    *static_cast<uint2*>(shared) = valid ? *static_cast<const uint2*>(global) : make_uint2(0, 0);
  else
    *static_cast<std::uint32_t*>(shared) = valid ? *static_cast<const std::uint32_t*>(global) : 0U;
#endif
}
__device__ __forceinline__ void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}
template <int Left>
__device__ __forceinline__ void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;\n" ::"n"(Left) : "memory");
#endif
}

// In bytes: one register.
using SharedPlace = std::uint32_t;
__device__ __forceinline__ SharedPlace shared_place(const void* p) { return shared_address(p); }

__device__ __forceinline__ void cp_async16(SharedPlace shared, const void* global, bool valid = true) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0) : "memory");
#else
  const uint4 x = valid ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(shared), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
#endif
}
__device__ __forceinline__ uint4 load_shared16(SharedPlace shared) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(shared) : "memory");
  return x;
}
__device__ __forceinline__ uint2 load_shared8(SharedPlace shared) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(x.x), "=r"(x.y) : "r"(shared) : "memory");
  return x;
}
__device__ __forceinline__ std::uint32_t load_shared4(SharedPlace shared) {
  std::uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(x) : "r"(shared) : "memory");
  return x;
}

// Four 8 x 8 matrices of 16-bit numbers. Lane l gives the address (aligned to 16 bytes) of row l % 8 of matrix l / 8 and gets numbers 2 *
// (l % 4) and the next of row l / 4 of each; transposed: of column l / 4.
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], SharedPlace row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], SharedPlace row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4(std::uint32_t (&r)[4], const void* row) { ldmatrix_x4(r, shared_place(row)); }
__device__ __forceinline__ void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* row) { ldmatrix_x4_trans(r, shared_place(row)); }

__device__ __forceinline__ std::uint32_t transpose_matrix(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(y) : "r"(x));
  return y;
}

// d [16, 8] += a [16, 16] * b [16, 8], sums in fp32 (PTX mma.m16n8k16). With g = lane / 4 and c = 2 * (lane % 4) a lane holds
// a: rows g | g+8 | g | g+8, columns c, c+1 | c, c+1 | c+8, c+9 | c+8, c+9;  b: rows c, c+1 | c+8, c+9 of column g;
// d: row g columns c, c+1, then row g+8. sm_75: fp16 only.
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
template <>
__device__ __forceinline__ void mma_16x8x16<f16>(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}
template <>
__device__ __forceinline__ void mma_16x8x16<bf16>(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();  // the launcher refuses bf16 before sm_80
#endif
}

// Per half; with one NaN, the number.
template <class T>
__device__ __forceinline__ std::uint32_t min2(std::uint32_t a, std::uint32_t b) {
#if __CUDA_ARCH__ >= 800
  std::uint32_t d;
  if constexpr (std::is_same_v<T, f16>)
    asm("min.f16x2 %0, %1, %2;\n" : "=r"(d) : "r"(a), "r"(b));
  else
    asm("min.bf16x2 %0, %1, %2;\n" : "=r"(d) : "r"(a), "r"(b));
  return d;
#else
  const float2 x = unpack<T>(a), y = unpack<T>(b);
  return pack<T>(fminf(x.x, y.x), fminf(x.y, y.y));
#endif
}
template <class T>
__device__ __forceinline__ std::uint32_t max2(std::uint32_t a, std::uint32_t b) {
#if __CUDA_ARCH__ >= 800
  std::uint32_t d;
  if constexpr (std::is_same_v<T, f16>)
    asm("max.f16x2 %0, %1, %2;\n" : "=r"(d) : "r"(a), "r"(b));
  else
    asm("max.bf16x2 %0, %1, %2;\n" : "=r"(d) : "r"(a), "r"(b));
  return d;
#else
  const float2 x = unpack<T>(a), y = unpack<T>(b);
  return pack<T>(fmaxf(x.x, y.x), fmaxf(x.y, y.y));
#endif
}

template <class T>
__device__ __forceinline__ std::uint32_t fma2(std::uint32_t a, std::uint32_t b, std::uint32_t c);
template <>
__device__ __forceinline__ std::uint32_t fma2<f16>(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
template <>
__device__ __forceinline__ std::uint32_t fma2<bf16>(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
#if __CUDA_ARCH__ >= 800
  std::uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
#else
  const float2 x = unpack<bf16>(a), y = unpack<bf16>(b), z = unpack<bf16>(c);
  return pack<bf16>(fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y));
#endif
}

// Bytes 2 * Half and the next, E4M3. Before sm_89 NaN becomes 480.
template <int Half>
__device__ __forceinline__ std::uint32_t unpack_fp8(std::uint32_t word) {
#if __CUDA_ARCH__ >= 890
  std::uint32_t y;
  if constexpr (Half == 0)
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, low;}\n" : "=r"(y) : "r"(word));
  else
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.rn.f16x2.e4m3x2 %0, high;}\n" : "=r"(y) : "r"(word));
  return y;
#else
  const std::uint32_t x = __byte_perm(word, 0U, Half == 0 ? 0x1404 : 0x3424);     // each byte at the top of its half
  return fma2<f16>((x & 0x80008000U) | (x >> 1 & 0x3F803F80U), 0x5C005C00U, 0U);  // * 256: the biases are 7 and 15
#endif
}

__device__ __forceinline__ std::uint32_t and_or(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Does not stay in L1.
__device__ __forceinline__ uint4 load_streaming(const void* p) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
  return x;
}

__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace kvlab
