#include "policies/order/fcfs.h"
#include "policies/order/keyed_order.h"

namespace kvlab {

namespace {

KVLAB_REGISTER(Order, Fcfs, "fcfs", "first come, first served; preempted requests where the scheduler puts them", "");

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

// Running requests stay.
class Edf final : public KeyedOrder {
 public:
  explicit Edf(Params& p)
      : default_(p.milliseconds("default_ttft_ms", 0, 0, 1e9, "target of requests without 'ttft_slo_ms'; 0: the column is needed")) {}
  [[nodiscard]] std::vector<Fact> needs() const override {
    return default_ == Span{0} ? std::vector<Fact>{Fact::kTtftSlo} : std::vector<Fact>{};
  }
  [[nodiscard]] Horizon stable_for() const override { return Horizon::whatever_is_cached(); }

 private:
  [[nodiscard]] std::int64_t rank(RequestId r) const override {
    const Request& request = info(r);
    return ns(request.arrival + (has_fact(request.facts, Fact::kTtftSlo) ? request.facts->ttft_slo : default_));
  }

  Span default_;
};

KVLAB_REGISTER(Order, Edf, "edf", "earliest deadline first: arrival + column 'ttft_slo_ms'", "Liu and Layland 1973");

}  // namespace

}  // namespace kvlab
