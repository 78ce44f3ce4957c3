#include "policies/scheduler/scheduler.h"

#include <set>
#include <string>

#include "bindings/policies/planning.h"

namespace kvlab {

namespace {

// Promises nothing to fast-forward.
class PythonScheduler final : public Scheduler {
 public:
  PythonScheduler(const PolicyPtr& policy, const PythonValues& values) : python_(policy, values), plan_(*python_.method("plan")) {
    policy->call([&] { predicts_ = policy->option<bool>("predicts"); });
  }

  void plan(ReplicaView& view, StepPlan& plan) override {
    python_.policy().call([&] {
      const Lending lending(*lease_);
      Planning planning(view, plan, lease_, reasons_);
      const PlanArguments arguments = lend_planning(planning, lease_);
      plan_(arguments.view, arguments.plan);
    });
  }
  [[nodiscard]] bool uses_predictor() const override { return predicts_; }

 private:
  PythonInstance python_;
  const PythonMethod& plan_;
  LeasePtr lease_ = std::make_shared<Lease>();
  std::set<std::string> reasons_;  // of rejections
  bool predicts_ = false;
};

}  // namespace

void add_scheduler(const PolicyPtr& policy) { add_to_registry<Scheduler, PythonScheduler>(policy); }

}  // namespace kvlab
