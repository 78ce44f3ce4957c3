#pragma once

#include "kernels/attention/attention_decode/decode_core.cuh"

// Separate files shorten compilation.
namespace kvlab::decode {

void run_f16(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_bf16(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_bytes(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_kivi(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_token_codes(const Args& a, const DecodePlan& plan, CudaContext& cuda);

inline LaunchShape launch_shape(const Args& a, const DecodePlan& plan, int threads) {
  return {dim3(static_cast<unsigned>(a.kv.num_rows * a.max_splits)), dim3(static_cast<unsigned>(threads)),
          static_cast<std::size_t>(plan.shared_bytes)};
}

}  // namespace kvlab::decode
