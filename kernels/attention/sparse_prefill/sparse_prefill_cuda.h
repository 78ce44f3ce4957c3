#pragma once

#include "kernels/attention/attention_prefill/attention_prefill_cuda.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"

namespace kvlab {

// SparsePrefill of several prompts against paged keys and values, on tensor cores; all of it, lists too, in device memory. A prompt's
// lists, [q_heads, query blocks of the prompt], come after those of the prompt before it, and its KV heads have the same kv_before:
// positions are places in the cache. Each query head reads keys of its own lists.
struct DeviceSparsePrefill {
  DevicePrefill prefill;  // causal; tuning is an index into sparse_prefill_variants(head_dim); splits and parts are not used
  SparseKeys keys;        // block a multiple of 16
};

// Rows of these are queries of one query head and query block.
std::vector<PrefillVariant> sparse_prefill_variants(std::int32_t head_dim);

// Throws CudaError for shapes and types that the kernels do not take.
void run_cuda(const DeviceSparsePrefill& a, CudaContext& cuda);

}  // namespace kvlab
