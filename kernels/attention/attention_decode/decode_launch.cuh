#pragma once

#include <utility>

#include "kernels/attention/attention_decode/decode_core.cuh"

// Separate files shorten compilation.
namespace kvlab::decode {

void run_f16(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_bf16(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_bytes(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_kivi(const Args& a, const DecodePlan& plan, CudaContext& cuda);
void run_token_codes(const Args& a, const DecodePlan& plan, CudaContext& cuda);

// run(head_dim, Tune{}) for the plan's tuning.
template <KvFormat Format, int... HeadDims, class F>
void for_tuning(const Args& a, const DecodePlan& plan, F&& run) {
  for_value<HeadDims...>(a.kv.head_dim, [&](auto d) {
    constexpr int kD = decltype(d)::value;
    const auto choose = [&]<int... I>(std::integer_sequence<int, I...>) {
      for_value<I...>(plan.tuning, [&](auto i) {
        constexpr DecodeTuning t = tunings(Format, kD)[decltype(i)::value];
        run(d, Tune<t.warps, t.stages, t.blocks>{});
      });
    };
    choose(std::make_integer_sequence<int, tunings(Format, kD).size()>{});
  });
}

// Up to 8 query heads per KV head, or up to 16.
inline void launch_tuned(const char* name, const Args& a, const DecodePlan& plan, CudaContext& cuda, int threads, void (*few)(Args),
                         void (*many)(Args)) {
  launch(name, cuda, blocks_of(a.kv.num_rows * a.max_splits, threads, plan.shared_bytes), a.group <= 8 ? few : many, a);
}

}  // namespace kvlab::decode
