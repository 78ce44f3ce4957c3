#include <algorithm>
#include <bit>

#include "policies/scheduler/batching.h"

namespace kvlab {

namespace {

// A pipeline of n stages runs up to n batches of max_num_seqs. Published "Orca" baselines reserve different memory.
class Orca final : public Scheduler {
  enum class Reservation : std::uint8_t { kMax, kPow2, kOracle };

 public:
  explicit Orca(Params& p)
      : max_num_seqs_(p.optional<std::int32_t>("max_num_seqs", 128, 1, 1 << 20,
                                               "most requests in a step (b_max); a pipeline has a step in flight per stage")),
        reservation_(p.choice("reservation", {{"max", Reservation::kMax}, {"pow2", Reservation::kPow2}, {"oracle", Reservation::kOracle}},
                              Reservation::kMax,
                              "memory per request: max_model_len, the next power of two of its final length, or "
                              "that length, in whole blocks")) {}

  [[nodiscard]] bool wants_contiguous_memory() const override { return true; }
  [[nodiscard]] StepBounds step_bounds(std::int32_t) const override { return {max_num_seqs_, 0}; }

  void plan(ReplicaView& view, StepPlan& plan) override {
    StepBuilder step{view, plan};
    const auto is_full = [&] { return step.num_requests() >= max_num_seqs_; };
    for (const RequestId r : view.running()) {
      if (is_full()) return;
      if (const std::int32_t m = tokens_at_rest(view, r); m > 0) step.add(r, m);
    }
    walk_waiting(view, is_full, [&](RequestId r) { return admit_reserved(step, r, reserved_tokens(view, r)); });
  }

  [[nodiscard]] Horizon stable_for(const ReplicaView&) const override { return Horizon::whatever_is_cached(); }

 private:
  [[nodiscard]] std::int32_t reserved_tokens(const ReplicaView& view, RequestId r) const {
    const Request& info = view.info(r);
    const std::int64_t final_len = std::int64_t{info.prompt_tokens} + info.output_limit;
    std::int64_t tokens = view.max_model_len();
    if (reservation_ == Reservation::kOracle) tokens = final_len;
    if (reservation_ == Reservation::kPow2) tokens = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(final_len)));
    tokens = std::min<std::int64_t>(tokens, view.max_model_len());
    const std::int64_t blocks = std::min(view.blocks_for(r, static_cast<std::int32_t>(tokens)), view.num_blocks());
    return static_cast<std::int32_t>(blocks * view.block_tokens());
  }

  std::int32_t max_num_seqs_;
  Reservation reservation_;
};

KVLAB_REGISTER(Scheduler, Orca, "orca", "iteration-level batching with memory reserved for the whole request",
               "Yu et al. 2022, OSDI (Orca)");

}  // namespace

}  // namespace kvlab
