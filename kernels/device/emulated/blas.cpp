#include "kernels/device/cuda/blas.h"

#include "kernels/device/emulated/device_memory.h"
#include "kernels/device/emulated/emulator.h"

namespace kvlab {

namespace {

template <class T, class C>
void multiply_one(const MatrixProduct& p, const T* a, const T* b, C* c) {
  const std::int64_t a_row = p.a_row != 0 ? p.a_row : p.k, c_row = p.c_row != 0 ? p.c_row : p.n;
  const std::int64_t b_row = p.b_row != 0 ? p.b_row : p.b_transposed ? p.k : p.n;
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      float sum = 0;
      for (std::int64_t l = 0; l < p.k; ++l)
        sum += to_float(a[i * a_row + l]) * to_float(p.b_transposed ? b[j * b_row + l] : b[l * b_row + j]);
      c[i * c_row + j] = from_float<C>(p.bias != nullptr ? sum + to_float(static_cast<const T*>(p.bias)[j]) : sum);
    }
}

template <class T, class C>
void multiply_all(const MatrixProduct& p) {
  for (std::int64_t i = 0; i < p.batch; ++i)
    multiply_one(p, static_cast<const T*>(p.a) + i * p.a_step, static_cast<const T*>(p.b) + i * p.b_step,
                 static_cast<C*>(p.c) + i * p.c_step);
}

}  // namespace

void multiply(const MatrixProduct& p, CudaContext&) {
  if (p.m == 0 || p.n == 0 || p.batch == 0) return;
  if (p.k == 0) throw CudaError("a matrix product over no columns");
  emulated::expect_device_argument("of a matrix product", p);
  emulated::enqueue([p] {
    emulated::note_launch("matrix_product " + std::to_string(p.m) + "x" + std::to_string(p.k) + "x" + std::to_string(p.n) +
                          (p.c_is_f32 ? " to f32" : "") + (p.bias != nullptr ? " with bias" : ""));
    if (p.type == ElementType::kF32) multiply_all<float, float>(p);
    if (p.type == ElementType::kF16) p.c_is_f32 ? multiply_all<f16, float>(p) : multiply_all<f16, f16>(p);
    if (p.type == ElementType::kBf16) p.c_is_f32 ? multiply_all<bf16, float>(p) : multiply_all<bf16, bf16>(p);
  });
}

}  // namespace kvlab
