#include "kernels/attention/attention_decode/decode_codes.cuh"

namespace kvlab::decode {

void run_token_codes(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  if (a.kv.format == KvFormat::kToken4)
    run_codes<KvFormat::kToken4>(a, plan, cuda);
  else
    run_codes<KvFormat::kToken2>(a, plan, cuda);
}

}  // namespace kvlab::decode
