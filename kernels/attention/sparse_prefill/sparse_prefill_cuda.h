#pragma once

#include "kernels/attention/attention_prefill/attention_prefill_cuda.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"

namespace kvlab {

// Several prompts over pages, on tensor cores. Lists [q_heads, query blocks] per prompt; a prompt's KV heads have equal kv_before.
struct DeviceSparsePrefill {
  DevicePrefill prefill;  // causal; tuning: index into sparse_prefill_variants(head_dim); no splits or parts
  SparseKeys keys;        // block % 16 == 0
};

// Rows: queries of one head and block.
std::vector<PrefillVariant> sparse_prefill_variants(std::int32_t head_dim);

// Throws CudaError for unsupported shapes and types.
void run_cuda(const DeviceSparsePrefill& a, CudaContext& cuda);

}  // namespace kvlab
