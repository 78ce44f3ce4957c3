#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <source_location>
#include <type_traits>

#include "kernels/device/cuda/blas.h"
#include "kernels/device/cuda/memory.h"

namespace kvlab {

namespace {

// NVIDIA's recommendation for Hopper.
constexpr std::int64_t kWorkspaceBytes = 32 << 20;
constexpr std::size_t kMostPlans = 4096;

void check(cublasStatus_t status, const char* what, std::source_location at = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string text =
      std::string(at.file_name()) + ":" + std::to_string(at.line()) + ": " + what + ": " + cublasLtGetStatusString(status);
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw GpuMemoryError(text, 0);
  throw CudaError(text);
}

template <class T, cublasStatus_t (*Destroy)(T)>
struct Destroyer {
  void operator()(std::remove_pointer_t<T>* p) const noexcept { static_cast<void>(Destroy(p)); }
};
template <class T, cublasStatus_t (*Destroy)(T)>
using Owner = std::unique_ptr<std::remove_pointer_t<T>, Destroyer<T, Destroy>>;
using Handle = Owner<cublasLtHandle_t, cublasLtDestroy>;
using Description = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owner<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t data_type(ElementType type) {
  return type == ElementType::kF32 ? CUDA_R_32F : type == ElementType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
}

// Largest power of two, up to 256.
std::uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  std::uint32_t bytes = 256;
  while (address % bytes != 0) bytes /= 2;
  return bytes;
}

template <class T>
void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what, const T& value) {
  check(cublasLtMatmulDescSetAttribute(d, what, &value, sizeof value), "describing a matrix product");
}
template <class T>
void set(cublasLtMatrixLayout_t d, cublasLtMatrixLayoutAttribute_t what, const T& value) {
  check(cublasLtMatrixLayoutSetAttribute(d, what, &value, sizeof value), "describing a matrix");
}
template <class T>
void set(cublasLtMatmulPreference_t d, cublasLtMatmulPreferenceAttributes_t what, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(d, what, &value, sizeof value), "asking for an algorithm");
}

// Column-major: our rows are its columns.
Layout layout(const MatrixProduct& p, ElementType type, std::int64_t rows, std::int64_t columns, std::int64_t distance, std::int64_t step) {
  cublasLtMatrixLayout_t l = nullptr;
  check(cublasLtMatrixLayoutCreate(&l, data_type(type), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), distance),
        "describing a matrix");
  Layout owner(l);
  if (p.batch > 1) {
    set(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(p.batch));
    set(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
  }
  return owner;
}

// c^T = op(b)^T a^T, in the library's order.
struct Plan {
  Description product;
  Layout a, b, c;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Plan(const MatrixProduct& p) {
    cublasLtMatmulDesc_t d = nullptr;
    check(cublasLtMatmulDescCreate(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a matrix product");
    product.reset(d);
    set(d, CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (p.bias != nullptr) {
      set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    }
    b = p.b_transposed ? layout(p, p.type, p.k, p.n, p.b_row, p.b_step) : layout(p, p.type, p.n, p.k, p.b_row, p.b_step);
    a = layout(p, p.type, p.k, p.m, p.a_row, p.a_step);
    c = layout(p, p.c_is_f32 ? ElementType::kF32 : p.type, p.n, p.m, p.c_row, p.c_step);
  }

  // True if `other` fits the workspace.
  [[nodiscard]] bool takes(const cublasLtMatmulAlgo_t& other, cublasLtHandle_t handle) const {
    cublasLtMatmulHeuristicResult_t found{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, product.get(), b.get(), a.get(), c.get(), c.get(), &other, &found);
    return status == CUBLAS_STATUS_SUCCESS && found.workspaceSize <= static_cast<std::size_t>(kWorkspaceBytes);
  }
};

// The heuristics' first choice.
std::optional<cublasLtMatmulAlgo_t> best_algorithm(const Plan& plan, const MatrixProduct& p, cublasLtHandle_t handle) {
  cublasLtMatmulPreference_t wish = nullptr;
  check(cublasLtMatmulPreferenceCreate(&wish), "asking for an algorithm");
  const Preference owner(wish);
  set(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(kWorkspaceBytes));
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p.b));
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p.a));
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p.c));
  set(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p.c));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, plan.product.get(), plan.b.get(), plan.a.get(), plan.c.get(),
                                                               plan.c.get(), wish, 1, &found, &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) return std::nullopt;
  return found.algo;
}

class Blas {
 public:
  Blas() : workspace_(kWorkspaceBytes) {
    cublasLtHandle_t handle = nullptr;
    check(cublasLtCreate(&handle), "starting cuBLASLt");
    handle_.reset(handle);
  }

  void multiply(const MatrixProduct& p, CudaStream stream) {
    const Plan& plan = plan_for(p);
    if (p.bias != nullptr) set(plan.product.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    const float one = 1, zero = 0;
    check(cublasLtMatmul(handle_.get(), plan.product.get(), &one, p.b, plan.b.get(), p.a, plan.a.get(), &zero, p.c, plan.c.get(), p.c,
                         plan.c.get(), &plan.algorithm, workspace_.data(), static_cast<std::size_t>(kWorkspaceBytes), stream),
          "matrix product");
  }

 private:
  using Key = std::array<std::int64_t, 12>;

  static Key key_of(const MatrixProduct& p) {
    const std::int64_t kind =
        static_cast<std::int64_t>(p.type) | (p.b_transposed ? 4 : 0) | (p.bias != nullptr ? 8 : 0) | (p.c_is_f32 ? 16 : 0);
    const std::int64_t aligned = std::int64_t{alignment(p.a)} | std::int64_t{alignment(p.b)} << 10 | std::int64_t{alignment(p.c)} << 20 |
                                 std::int64_t{p.bias != nullptr ? alignment(p.bias) : 256} << 30;
    return {kind, aligned, p.m, p.n, p.k, p.a_row, p.b_row, p.c_row, p.batch, p.a_step, p.b_step, p.c_step};
  }

  const Plan& plan_for(const MatrixProduct& p) {
    const Key key = key_of(p);
    if (const auto known = plans_.find(key); known != plans_.end()) return known->second;
    Plan plan(p);
    plan.algorithm = algorithm_for(plan, p);
    if (plans_.size() >= kMostPlans) plans_.clear();
    return plans_.try_emplace(key, std::move(plan)).first->second;
  }

  cublasLtMatmulAlgo_t algorithm_for(const Plan& plan, const MatrixProduct& p) {
    MatrixProduct wide = p;
    if (p.batch == 1) wide.m = algorithm_rows(p.m);
    if (wide.m != p.m) {
      const std::optional<cublasLtMatmulAlgo_t> shared = algorithm_of_rows(wide);
      if (shared && plan.takes(*shared, handle_.get())) return *shared;
    }
    const std::optional<cublasLtMatmulAlgo_t> own = wide.m == p.m ? algorithm_of_rows(p) : best_algorithm(plan, p, handle_.get());
    if (own) return *own;
    throw CudaError("cuBLASLt has no algorithm for a product [" + std::to_string(p.m) + ", " + std::to_string(p.k) + "] x [" +
                    std::to_string(p.k) + ", " + std::to_string(p.n) + "] of " + std::string(name_of(p.type)) + " on this GPU");
  }

  std::optional<cublasLtMatmulAlgo_t> algorithm_of_rows(const MatrixProduct& p) {
    const Key key = key_of(p);
    if (const auto known = algorithms_.find(key); known != algorithms_.end()) return known->second;
    if (algorithms_.size() >= kMostPlans) algorithms_.clear();
    return algorithms_.try_emplace(key, best_algorithm(Plan(p), p, handle_.get())).first->second;
  }

  DeviceBuffer<std::uint8_t> workspace_;
  Handle handle_;
  std::map<Key, Plan> plans_;
  std::map<Key, std::optional<cublasLtMatmulAlgo_t>> algorithms_;  // of rounded rows; nullopt: none
};

}  // namespace

void multiply(const MatrixProduct& given, CudaContext& cuda) {
  MatrixProduct p = given;
  if (p.m == 0 || p.n == 0 || p.batch == 0) return;
  if (p.k == 0) throw CudaError("a matrix product over no columns");
  if (p.c_is_f32 && p.bias != nullptr) throw CudaError("a matrix product of two types takes no bias");
  if (p.type == ElementType::kBf16 && cuda.gpu().compute_capability < 80)
    throw CudaError("matrix products of bf16 need compute capability 8.0; this GPU has " +
                    std::to_string(cuda.gpu().compute_capability / 10) + "." + std::to_string(cuda.gpu().compute_capability % 10) +
                    ": use f16");
  if (p.a_row == 0) p.a_row = p.k;
  if (p.b_row == 0) p.b_row = p.b_transposed ? p.k : p.n;
  if (p.c_row == 0) p.c_row = p.n;
  if (cuda.blas() == nullptr) cuda.blas() = std::make_shared<Blas>();
  static_cast<Blas*>(cuda.blas().get())->multiply(p, cuda.stream());
}

}  // namespace kvlab
