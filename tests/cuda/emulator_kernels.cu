// Kernels with mistakes in them, and right ones beside them: what the emulator has to tell apart.
#include "kernels/device/cuda/launch.cuh"
#include "tests/cuda/emulator_kernels.h"

namespace kvlab::emulator_test {

namespace {

__global__ void reverse(const int* in, int* out, bool waits) {
  KVLAB_SHARED(int, held, 64);
  held[threadIdx.x] = in[threadIdx.x];
  if (waits) __syncthreads();
  out[threadIdx.x] = held[63 - threadIdx.x];
}

__global__ void barrier_in_a_branch(int* out) {
  if (threadIdx.x % 2 == 0) __shfl_xor_sync(kAllLanes, 1, 1);
  out[threadIdx.x] = 1;
}

__global__ void copy_through_shared(const int* in, int* out, bool waits) {
  KVLAB_DYNAMIC_SHARED(int, held);
  cp_async<4>(held + threadIdx.x, in + threadIdx.x);
  cp_async_commit();
  if (waits) cp_async_wait<0>();
  out[threadIdx.x] = held[threadIdx.x];
}

__global__ void set(int* out, int value) { *out = value; }

// c [16, 8] = a [16, 16] * b [8, 16]^T.
__global__ void multiply(const f16* a, const f16* b, float* c) {
  const int lane = lane_index(), g = lane / 4, k = 2 * (lane % 4);
  const auto pair = [](const f16* p) { return static_cast<std::uint32_t>(p[0].bits) | static_cast<std::uint32_t>(p[1].bits) << 16; };
  const std::uint32_t left[4] = {pair(a + g * 16 + k), pair(a + (g + 8) * 16 + k), pair(a + g * 16 + k + 8),
                                 pair(a + (g + 8) * 16 + k + 8)};
  const std::uint32_t right[2] = {pair(b + g * 16 + k), pair(b + g * 16 + k + 8)};
  float d[4] = {};
  mma_16x8x16<f16>(d, left, right);
  c[g * 8 + k] = d[0], c[g * 8 + k + 1] = d[1], c[(g + 8) * 8 + k] = d[2], c[(g + 8) * 8 + k + 1] = d[3];
}

// Loads a [16, 16] (row-major, in shared memory) as the operand of an mma, directly and transposed.
__global__ void load(const f16* a, std::uint32_t* plain, std::uint32_t* transposed) {
  KVLAB_SHARED(f16, held, 256);
  for (int i = 0; i < 8; ++i) held[threadIdx.x * 8 + i] = a[threadIdx.x * 8 + i];
  __syncthreads();
  const int lane = lane_index();
  const f16* row = held + (lane % 8 + lane / 8 % 2 * 8) * 16 + lane / 16 * 8;
  std::uint32_t r[4], t[4];
  ldmatrix_x4(r, row);
  ldmatrix_x4_trans(t, row);
  for (int i = 0; i < 4; ++i) plain[lane * 4 + i] = r[i], transposed[lane * 4 + i] = t[i];
}

__global__ void scan(const int* in, int* out, int n) {
  KVLAB_SHARED(int, scratch, 33);
  int total = 0;
  const int i = static_cast<int>(threadIdx.x);
  const int before = block_scan_exclusive(i < n ? in[i] : 0, scratch, total);
  if (i < n) out[i] = before;
  if (i == 0) out[n] = total;
}

}  // namespace

void run_reverse(const int* in, int* out, bool waits, CudaContext& cuda) { launch("reverse", cuda, {1, 64}, reverse, in, out, waits); }
void run_barrier_in_a_branch(int* out, CudaContext& cuda) { launch("barrier_in_a_branch", cuda, {1, 32}, barrier_in_a_branch, out); }
void run_copy(const int* in, int* out, bool waits, CudaContext& cuda) {
  launch("copy", cuda, {1, 32, 128}, copy_through_shared, in, out, waits);
}
void run_set(int* out, int value, CudaContext& cuda) { launch("set", cuda, {dim3(1), dim3(1)}, set, out, value); }
void run_set(int* out, const Blocks& grid, CudaContext& cuda) { launch("set", cuda, {dim3(grid.x, grid.y, grid.z), dim3(1)}, set, out, 1); }

void run_multiply(const f16* a, const f16* b, float* c, CudaContext& cuda) { launch("multiply", cuda, {1, 32}, multiply, a, b, c); }
void run_load(const f16* a, std::uint32_t* plain, std::uint32_t* transposed, CudaContext& cuda) {
  launch("load", cuda, {1, 32}, load, a, plain, transposed);
}
void run_scan(const int* in, int* out, int n, CudaContext& cuda) { launch("scan", cuda, {1, 256}, scan, in, out, n); }

}  // namespace kvlab::emulator_test
