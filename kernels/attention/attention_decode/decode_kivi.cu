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

void run_kivi4(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  constexpr KvFormat kFormat = KvFormat::kKivi4;
  if (a.kv.head_dim == 64)
    return plan.tuning == 0 ? run_as<kFormat, 64, Tune<4, 4, 3>>(a, plan, cuda) : run_as<kFormat, 64, Tune<2, 4, 3>>(a, plan, cuda);
  if (a.kv.head_dim == 256)
    return plan.tuning == 0 ? run_as<kFormat, 256, Tune<4, 3, 1>>(a, plan, cuda) : run_as<kFormat, 256, Tune<1, 3, 1>>(a, plan, cuda);
  if (plan.tuning == 0) return run_as<kFormat, 128, Tune<4, 2, 3>>(a, plan, cuda);
  if (plan.tuning == 1) return run_as<kFormat, 128, Tune<4, 3, 2>>(a, plan, cuda);
  run_as<kFormat, 128, Tune<2, 2, 3>>(a, plan, cuda);
}

void run_kivi2(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  constexpr KvFormat kFormat = KvFormat::kKivi2;
  if (a.kv.head_dim == 64) return run_as<kFormat, 64, Tune<4, 6, 3>>(a, plan, cuda);
  if (a.kv.head_dim == 256)
    return plan.tuning == 0 ? run_as<kFormat, 256, Tune<4, 6, 1>>(a, plan, cuda) : run_as<kFormat, 256, Tune<1, 6, 1>>(a, plan, cuda);
  if (plan.tuning == 0) return run_as<kFormat, 128, Tune<4, 6, 3>>(a, plan, cuda);
  run_as<kFormat, 128, Tune<2, 6, 3>>(a, plan, cuda);
}

}  // namespace

void run_kivi(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  if (a.kv.format == KvFormat::kKivi4)
    run_kivi4(a, plan, cuda);
  else
    run_kivi2(a, plan, cuda);
}

}  // namespace kvlab::decode
