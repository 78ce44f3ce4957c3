#include "kernels/attention/attention_decode/decode_codes.cuh"
#include "kernels/attention/attention_decode/decode_launch.cuh"

namespace kvlab::decode {

namespace {

template <KvFormat Format, int D, class Tuning>
void run_as(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  const LaunchShape launch_shape = decode::launch_shape(a, plan, Tuning::kThreads);
  if (a.group <= 8)
    launch("decode_codes", cuda, launch_shape, decode_codes<Format, 1, D, Tuning>, a);
  else
    launch("decode_codes", cuda, launch_shape, decode_codes<Format, 2, D, Tuning>, a);
}

template <KvFormat Format>
void run_format(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  const bool first = plan.tuning == 0;
  if (a.kv.head_dim == 64)
    return first ? run_as<Format, 64, Tune<4, 4, 3>>(a, plan, cuda) : run_as<Format, 64, Tune<2, 2, 3>>(a, plan, cuda);
  if (a.kv.head_dim == 256)
    return first ? run_as<Format, 256, Tune<4, 3, 1>>(a, plan, cuda) : run_as<Format, 256, Tune<1, 3, 1>>(a, plan, cuda);
  if (first) return run_as<Format, 128, Tune<4, 2, 3>>(a, plan, cuda);
  run_as<Format, 128, Tune<2, 2, 3>>(a, plan, cuda);
}

}  // namespace

void run_token_codes(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  if (a.kv.format == KvFormat::kToken4)
    run_format<KvFormat::kToken4>(a, plan, cuda);
  else
    run_format<KvFormat::kToken2>(a, plan, cuda);
}

}  // namespace kvlab::decode
