#include "kernels/attention/attention_decode/decode_plain_run.cuh"

namespace kvlab::decode {

void run_bf16(const Args& a, const DecodePlan& plan, CudaContext& cuda) { run_plain<bf16>(a, plan, cuda); }

}  // namespace kvlab::decode
