#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "bindings/policies/requests.h"
#include "policies/scheduler/batching.h"

namespace kvlab {

// Mistakes in Python raise ValueError.
class Planning {
 public:
  // reasons: for rejections; must outlive the plan.
  Planning(ReplicaView& view, StepPlan& plan, const LeasePtr& lease, std::set<std::string>& reasons)
      : step_{view, plan}, lease_(lease), reasons_(reasons) {}

  [[nodiscard]] ReplicaView& view() const { return step_.view; }
  [[nodiscard]] const StepBuilder& step() const { return step_; }
  [[nodiscard]] PythonRequest request(RequestId id) const { return {lease_, view().info(id), id}; }
  [[nodiscard]] PythonRequest waiting(std::int64_t position) const;
  // In this step, without cached prefix tokens if it waits.
  [[nodiscard]] std::int32_t needed_tokens(RequestId r) const;
  [[nodiscard]] Readiness readiness(RequestId r) const;
  bool try_allocate(RequestId r, std::int32_t tokens, std::int32_t ahead);
  bool allocate_or_preempt(RequestId r, std::int32_t tokens);
  void admit(RequestId r);
  void preempt(RequestId r, Preemption mode, QueueEnd end);
  void reject(RequestId r, const std::string& reason);
  void add(RequestId r, std::int32_t tokens);

 private:
  void require_running(RequestId r, const char* act) const;
  void require_waiting(RequestId r, const char* act) const;
  void require_tokens(RequestId r, std::int32_t tokens) const;

  StepBuilder step_;
  LeasePtr lease_;
  std::set<std::string>& reasons_;
  std::map<RequestId, std::int32_t> room_;  // tokens allocated in this plan
  std::set<RequestId> rejected_;            // in this plan; their slots are free
};

void bind_planning(nb::module_& m);

// For plan().
struct PlanArguments {
  nb::object view, plan;
};
PlanArguments lend_planning(Planning& planning, const LeasePtr& lease);

}  // namespace kvlab
