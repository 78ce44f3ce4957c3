#pragma once

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"

namespace kvlab::emulator_test {

void run_reverse(const int* in, int* out, bool waits, CudaContext& cuda);  // 64 numbers; `waits`: with the barrier that it needs
void run_barrier_in_a_branch(int* out, CudaContext& cuda);
void run_copy(const int* in, int* out, bool waits, CudaContext& cuda);  // 32 numbers
void run_set(int* out, int value, CudaContext& cuda);                   // one number
struct Blocks {
  unsigned x = 1, y = 1, z = 1;
};
void run_set(int* out, const Blocks& grid, CudaContext& cuda);  // 1, by every block
void run_multiply(const f16* a, const f16* b, float* c, CudaContext& cuda);
void run_load(const f16* a, std::uint32_t* plain, std::uint32_t* transposed, CudaContext& cuda);
void run_scan(const int* in, int* out, int n, CudaContext& cuda);  // n <= 256; out [n + 1]

}  // namespace kvlab::emulator_test
