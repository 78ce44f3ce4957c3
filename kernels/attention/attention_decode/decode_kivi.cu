#include "kernels/attention/attention_decode/decode_codes.cuh"

namespace kvlab::decode {

void run_kivi(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  if (a.kv.format == KvFormat::kKivi4)
    run_codes<KvFormat::kKivi4>(a, plan, cuda);
  else
    run_codes<KvFormat::kKivi2>(a, plan, cuda);
}

}  // namespace kvlab::decode
