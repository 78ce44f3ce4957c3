#include "kernels/hydragen/hydragen_cuda.h"
#include "kernels/merge_partials/merge_partials.h"

namespace kvlab {

// Parts lie side by side: those of the prefix, as many as its keys are split into, then the suffix.
void run_cuda(const DeviceHydragen& a, CudaContext& cuda) {
  PagedDecode suffix = a.suffix;
  if (suffix.kv.num_rows == 0) return;
  if (suffix.probabilities != nullptr || suffix.column_sum != nullptr)
    throw CudaError("hydragen: probabilities over prefix and suffix are not supported");
  if (a.prefixes == 0) return run_cuda(suffix, cuda);
  const std::int64_t d = suffix.kv.head_dim, rows = static_cast<std::int64_t>(suffix.kv.num_rows / suffix.kv.kv_heads) * suffix.q_heads;
  DevicePrefill prefix = prefix_part(a);
  prefix.splits = splits_of(prefix, cuda.gpu());
  const CudaContext::Frame frame(cuda);
  const std::int32_t parts = prefix.splits + 1;
  auto* out = cuda.scratch<float>(parts * rows * d);
  auto* log_sums = cuda.scratch<float>(parts * rows);
  prefix.parts = out, prefix.log_sum = log_sums;
  run_cuda(prefix, cuda);
  suffix.out = out + prefix.splits * rows * d, suffix.log_sum = log_sums + prefix.splits * rows, suffix.out_type = ElementType::kF32;
  run_cuda(suffix, cuda);
  run_cuda(DeviceMergePartials{out, log_sums, a.suffix.out, a.suffix.log_sum, parts, rows, suffix.kv.head_dim, a.suffix.out_type}, cuda);
}

}  // namespace kvlab
