#pragma once

#include "kernels/attention/attention_decode/decode_direct.cuh"
#include "kernels/attention/attention_decode/decode_launch.cuh"
#include "kernels/attention/attention_decode/decode_plain.cuh"

namespace kvlab::decode {

template <class T, int D, class Tuning>
void run_plain_as(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  const LaunchShape launch_shape = decode::launch_shape(a, plan, Tuning::kThreads);
  if (a.group <= 8)
    launch("decode_plain", cuda, launch_shape, decode_plain<T, 1, D, Tuning>, a);
  else
    launch("decode_plain", cuda, launch_shape, decode_plain<T, 2, D, Tuning>, a);
}

template <class T, int D, class Tuning>
void run_direct_as(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  const LaunchShape launch_shape = decode::launch_shape(a, plan, Tuning::kThreads);
  if (a.group <= 8)
    launch("decode_direct", cuda, launch_shape, decode_direct<T, 1, D, Tuning>, a);
  else
    launch("decode_direct", cuda, launch_shape, decode_direct<T, 2, D, Tuning>, a);
}

template <class T>
void run_plain(const Args& a, const DecodePlan& plan, CudaContext& cuda) {
  const bool first = plan.tuning == 0;
  if (a.kv.head_dim == 64)
    return first ? run_plain_as<T, 64, Tune<4, 4, 3>>(a, plan, cuda) : run_plain_as<T, 64, Tune<2, 2, 1>>(a, plan, cuda);
  if (a.kv.head_dim == 96)
    return first ? run_plain_as<T, 96, Tune<4, 4, 3>>(a, plan, cuda) : run_plain_as<T, 96, Tune<2, 2, 1>>(a, plan, cuda);
  if (a.kv.head_dim == 256)
    return first ? run_plain_as<T, 256, Tune<4, 3, 1>>(a, plan, cuda) : run_plain_as<T, 256, Tune<2, 2, 1>>(a, plan, cuda);
  switch (plan.tuning) {
    case 0:
      return run_plain_as<T, 128, Tune<4, 3, 2>>(a, plan, cuda);
    case 1:
      return run_plain_as<T, 128, Tune<4, 2, 3>>(a, plan, cuda);
    case 2:
      return run_plain_as<T, 128, Tune<8, 3, 1>>(a, plan, cuda);
    case 3:
      return run_plain_as<T, 128, Tune<2, 4, 3>>(a, plan, cuda);
    case 4:
      return run_direct_as<T, 128, Tune<4, 0, 3>>(a, plan, cuda);
    default:
      return run_plain_as<T, 128, Tune<2, 2, 1>>(a, plan, cuda);
  }
}

}  // namespace kvlab::decode
