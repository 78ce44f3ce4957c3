#include "kernels/attention/attention_decode/decode_bytes.cuh"
#include "kernels/attention/attention_decode/decode_launch.cuh"

namespace kvlab::decode {

namespace {

template <KvFormat Format, int D, class Tuning>
void run_as(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  const LaunchShape launch_shape = decode::launch_shape(a, plan, Tuning::kThreads);
  if (a.group <= 8)
    launch("decode_bytes", cuda, launch_shape, decode_bytes<Format, 1, D, Tuning>, a);
  else
    launch("decode_bytes", cuda, launch_shape, decode_bytes<Format, 2, D, Tuning>, a);
}

template <KvFormat Format>
void run_format(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  if (a.kv.head_dim == 64) return run_as<Format, 64, Tune<4, 4, 3>>(a, plan, cuda);
  if (a.kv.head_dim == 256)
    return plan.tuning == 0 ? run_as<Format, 256, Tune<4, 3, 2>>(a, plan, cuda) : run_as<Format, 256, Tune<2, 3, 2>>(a, plan, cuda);
  if (plan.tuning == 0) return run_as<Format, 128, Tune<4, 4, 3>>(a, plan, cuda);
  if (plan.tuning == 1) return run_as<Format, 128, Tune<8, 3, 2>>(a, plan, cuda);
  run_as<Format, 128, Tune<4, 2, 4>>(a, plan, cuda);
}

}  // namespace

void run_bytes(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  if (a.kv.format == KvFormat::kFp8)
    run_format<KvFormat::kFp8>(a, plan, cuda);
  else
    run_format<KvFormat::kInt8>(a, plan, cuda);
}

}  // namespace kvlab::decode
