#include "policies/order/keyed_order.h"

namespace kvlab {

namespace {

// vllm/v1/core/sched/request_queue.py and scheduler.py. `preemptive` is our extension.
class Priority final : public KeyedOrder {
 public:
  explicit Priority(Params& p) : preemptive_(p.flag("preemptive", false, "whether a more urgent waiting request preempts a running one")) {}
  [[nodiscard]] std::vector<Fact> needs() const override { return {Fact::kPriority}; }
  [[nodiscard]] std::optional<Preemption> overtaking() const override {
    return preemptive_ ? std::optional(Preemption::kRecompute) : std::nullopt;
  }
  [[nodiscard]] bool overtakes(RequestId waiting, RequestId running) const override { return rank(waiting) < rank(running); }
  [[nodiscard]] Horizon stable_for() const override { return Horizon::whatever_is_cached(); }

 private:
  [[nodiscard]] std::int64_t rank(RequestId r) const override { return info(r).facts->priority; }

  bool preemptive_;
};

KVLAB_REGISTER(Order, Priority, "priority", "column 'priority', the smallest first; equal ones by arrival",
               "vLLM v0.19, --scheduling-policy priority");

}  // namespace

}  // namespace kvlab
