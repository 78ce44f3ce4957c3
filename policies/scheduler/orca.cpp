#include <algorithm>
#include <bit>

#include "policies/scheduler/scheduler.h"

namespace kvlab {

namespace {

// Iteration-level scheduling: every step gives each running request its next token and admits heads with their whole prompt,
// each with contiguous memory for all it may ever need (card 1.2). max_num_seqs limits a batch, so that a pipeline of n stages runs n
// times as many: whoever is not in flight is in the next batch, and only what room is left there is given to new requests. Published "Orca"
// baselines are re-implementations that differ in what they reserve, hence the parameter.
class Orca final : public Scheduler {
 public:
  explicit Orca(Params& p)
      : max_num_seqs_(p.optional<std::int32_t>("max_num_seqs", 128, 1, 1 << 20,
                                               "most requests in a step (b_max); a pipeline has a step in flight per stage")),
        reservation_(static_cast<Reservation>(p.choice("reservation", {"max", "pow2", "oracle"}, 0,
                                                       "memory per request: max_model_len, the next power of two of its final length, or "
                                                       "that length, in whole blocks"))) {}

  [[nodiscard]] bool wants_contiguous_memory() const override { return true; }
  [[nodiscard]] StepBounds step_bounds(std::int32_t) const override { return {max_num_seqs_, 0}; }

  void plan(ReplicaView& view, StepPlan& plan) override {
    for (const RequestId r : view.running()) {
      const std::int32_t m = view.needed_tokens(r);
      if (is_full(plan)) return;
      if (m > 0 && view.info(r).in_flight_steps == 0) plan.add(r, m);
    }
    while (view.num_waiting() > 0 && !is_full(plan)) {
      const RequestId r = view.waiting(0);
      if (!view.try_reserve(r, reserved_tokens(view, r))) return;
      view.admit(r);
      plan.add(r, view.info(r).prompt_tokens);
    }
  }

  // Whoever still waits needs a row or memory that only a completion gives back.
  [[nodiscard]] Horizon stable_for(const ReplicaView&) const override { return Horizon::whatever_is_cached(); }

 private:
  enum class Reservation : std::uint8_t { kMax, kPow2, kOracle };

  [[nodiscard]] bool is_full(const StepPlan& plan) const { return static_cast<std::int32_t>(plan.entries.size()) >= max_num_seqs_; }

  // No request is longer than max_model_len or than the memory, so neither is a reservation.
  [[nodiscard]] std::int32_t reserved_tokens(const ReplicaView& view, RequestId r) const {
    const RequestInfo& info = view.info(r);
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

[[maybe_unused]] const bool registered = SchedulerRegistry::add<Orca>(
    {"orca", "iteration-level batching with memory reserved for the whole request", "Yu et al. 2022, OSDI (Orca)"});

}  // namespace

}  // namespace kvlab
