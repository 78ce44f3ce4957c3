#include "policies/scheduler/scheduler.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <map>
#include <set>

#include "base/time.h"
#include "bindings/policies/requests.h"
#include "policies/scheduler/batching.h"

namespace kvlab {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw nb::value_error(what.c_str()); }

// Mistakes in Python raise ValueError.
class Planning {
 public:
  // reasons: for rejections; must outlive the plan.
  Planning(ReplicaView& view, StepPlan& plan, const LeasePtr& lease, std::set<std::string>& reasons)
      : step_{view, plan}, lease_(lease), reasons_(reasons) {}
  [[nodiscard]] ReplicaView& view() const { return step_.view; }
  [[nodiscard]] const StepBuilder& step() const { return step_; }
  [[nodiscard]] PythonRequest request(RequestId id) const { return {lease_, view().info(id), id}; }
  [[nodiscard]] PythonRequest waiting(std::int64_t position) const {
    if (position < 0 || position >= view().num_waiting())
      throw nb::index_error(fmt::format("{} requests wait", view().num_waiting()).c_str());
    return request(view().waiting(static_cast<std::uint32_t>(position)));
  }
  // In this step, without cached prefix tokens if it waits.
  [[nodiscard]] std::int32_t needed_tokens(RequestId r) const {
    const Request& info = view().info(r);
    return info.is_running ? tokens_at_rest(view(), r) : info.known_tokens() - computed_or_cached(view(), r);
  }
  [[nodiscard]] Readiness readiness(RequestId r) const {
    if (rejected_.contains(r)) refuse(fmt::format("readiness: request {} was rejected in this plan", view().info(r).number));
    if (view().info(r).is_running) refuse(fmt::format("readiness: request {} runs already", view().info(r).number));
    return ready_to_admit(view(), r);
  }
  bool try_allocate(RequestId r, std::int32_t tokens, std::int32_t ahead) {
    if (!view().info(r).is_running) require_waiting(r, "try_allocate");
    require_tokens(r, tokens);
    if (ahead < 0) refuse("try_allocate: 'ahead' is below 0");
    if (!view().try_allocate(r, tokens, ahead)) return false;
    room_[r] = tokens;
    return true;
  }
  bool allocate_or_preempt(RequestId r, std::int32_t tokens) {
    require_running(r, "allocate_or_preempt");
    require_tokens(r, tokens);
    const auto preempt_one = [&] {
      const RequestId victim = step_.preempt_one();
      room_.erase(victim);
      return victim;
    };
    if (!kvlab::allocate_or_preempt(view(), r, tokens, preempt_one)) return false;
    room_[r] = tokens;
    return true;
  }
  void admit(RequestId r) {
    require_waiting(r, "admit");
    if (!room_.contains(r))
      refuse(fmt::format("admit: request {} has no room: call view.try_allocate(request, tokens) first", view().info(r).number));
    view().admit(r);
  }
  void preempt(RequestId r, Preemption mode, QueueEnd end) {
    require_running(r, "preempt");
    room_.erase(r);
    step_.drop(r);
    view().preempt(r, mode, end);
  }
  void reject(RequestId r, const std::string& reason) {
    require_waiting(r, "reject");
    room_.erase(r);
    rejected_.insert(r);
    view().reject(r, reasons_.insert(reason).first->c_str());
  }
  void add(RequestId r, std::int32_t tokens) {
    require_running(r, "add");
    require_tokens(r, tokens);
    const auto room = room_.find(r);
    if (room == room_.end() || room->second < tokens)
      refuse(fmt::format("add: {} tokens of request {}, which has room for {} in this plan", tokens, view().info(r).number,
                         room == room_.end() ? 0 : room->second));
    room_.erase(room);  // once per plan
    step_.add(r, tokens);
  }

 private:
  void require_running(RequestId r, const char* act) const {
    if (!view().info(r).is_running) refuse(fmt::format("{}: request {} does not run", act, view().info(r).number));
  }
  void require_waiting(RequestId r, const char* act) const {
    const Request& info = view().info(r);
    if (rejected_.contains(r)) refuse(fmt::format("{}: request {} was rejected in this plan", act, info.number));
    if (info.is_running) refuse(fmt::format("{}: request {} runs already", act, info.number));
    if (info.is_parked || info.is_swapped || info.in_flight_steps > 0)
      refuse(fmt::format("{}: request {} is not ready: ask view.readiness(request) first", act, info.number));
  }
  void require_tokens(RequestId r, std::int32_t tokens) const {
    const Request& info = view().info(r);
    const std::int32_t most = info.is_running ? tokens_at_rest(view(), r) : info.known_tokens() - info.computed_tokens;
    if (tokens < 1 || tokens > most) refuse(fmt::format("{} tokens of request {}, which needs {}", tokens, info.number, most));
  }

  StepBuilder step_;
  LeasePtr lease_;
  std::set<std::string>& reasons_;
  std::map<RequestId, std::int32_t> room_;  // tokens allocated in this plan
  std::set<RequestId> rejected_;            // in this plan; their slots are free
};

// Argument of plan().
class LentPlanning {
 public:
  LentPlanning(Planning& planning, LeasePtr lease) : planning_(&planning), lease_(std::move(lease)), call_(lease_->call) {}
  [[nodiscard]] Planning& get() const {
    require_lent(lease_, call_, "the view");
    return *planning_;
  }
  [[nodiscard]] ReplicaView& view() const { return get().view(); }
  // Raises ValueError for a request of another replica or policy.
  [[nodiscard]] RequestId id(const PythonRequest& r) const {
    if (!r.is_lent_by(lease_)) refuse("the request is not of this view: take it from view.waiting(), running() or each_running()");
    return r.id();
  }

 private:
  Planning* planning_;
  LeasePtr lease_;
  std::uint64_t call_;
};
struct LentPlan : LentPlanning {
  using LentPlanning::LentPlanning;
};

// In admission order, tolerating preemptions: each_running() of batching.h.
class RunningWalk {
 public:
  explicit RunningWalk(const LentPlanning& planning) : planning_(planning) {}

  PythonRequest next() {
    const std::span<const RequestId> running = planning_.view().running();
    if (last_ != kNoRequest) {
      at_ = std::min(at_, running.size());
      while (at_ > 0 && (at_ == running.size() || running[at_] != last_)) --at_;
      if (running.empty() || running[at_] != last_) throw nb::stop_iteration();  // it was preempted itself
      ++at_;
    }
    if (at_ >= running.size()) throw nb::stop_iteration();
    last_ = running[at_];
    return planning_.get().request(last_);
  }

 private:
  LentPlanning planning_;
  std::size_t at_ = 0;
  RequestId last_ = kNoRequest;
};

using PythonView = LentPlanning;
using R = PythonRequest;

nb::list running_requests(const PythonView& v) {
  nb::list all;
  for (const RequestId r : v.view().running()) all.append(nb::cast(v.get().request(r)));
  return all;
}

Preemption mode_named(const std::string& name) {
  if (name == "recompute") return Preemption::kRecompute;
  if (name == "swap") return Preemption::kSwap;
  refuse(fmt::format("preempt: mode is \"recompute\" or \"swap\", not \"{}\"", name));
}

QueueEnd end_named(const std::string& name) {
  if (name == "front") return QueueEnd::kFront;
  if (name == "back") return QueueEnd::kBack;
  refuse(fmt::format("preempt: end is \"front\" or \"back\", not \"{}\"", name));
}

const char* name_of_readiness(Readiness readiness) {
  if (readiness == Readiness::kReady) return "ready";
  return readiness == Readiness::kLater ? "later" : "no_room";
}

void bind_memory(nb::class_<PythonView>& c) {
  c.def_prop_ro("max_model_len", [](const PythonView& v) { return v.view().max_model_len(); });
  c.def_prop_ro("block_tokens", [](const PythonView& v) { return v.view().block_tokens(); });
  c.def_prop_ro("num_blocks", [](const PythonView& v) { return v.view().num_blocks(); });
  c.def_prop_ro("free_blocks", [](const PythonView& v) { return v.view().free_blocks(); });
  c.def("blocks_for", [](const PythonView& v, const R& r, std::int32_t tokens) { return v.view().blocks_for(v.id(r), tokens); });
  c.def("blocks_needed", [](const PythonView& v, const R& r, std::int32_t tokens) { return v.view().blocks_needed(v.id(r), tokens); });
  c.def("peak_blocks", [](const PythonView& v, const R& r) { return v.view().peak_blocks(v.id(r)); });
  c.def("lookup", [](const PythonView& v, const R& r) { return v.view().lookup(v.id(r)); });
  c.def(
      "try_allocate",
      [](const PythonView& v, const R& r, std::int32_t tokens, std::int32_t ahead) { return v.get().try_allocate(v.id(r), tokens, ahead); },
      nb::arg("request"), nb::arg("tokens"), nb::arg("ahead") = 0);
  c.def("allocate_or_preempt",
        [](const PythonView& v, const R& r, std::int32_t tokens) { return v.get().allocate_or_preempt(v.id(r), tokens); });
}

void bind_queues(nb::class_<PythonView>& c) {
  c.def_prop_ro("now", [](const PythonView& v) { return to_s(v.view().now() - kStart); });
  c.def_prop_ro("num_waiting", [](const PythonView& v) { return v.view().num_waiting(); });
  c.def_prop_ro("num_running", [](const PythonView& v) { return v.view().running().size(); });
  c.def("waiting", [](const PythonView& v, std::int64_t position) { return v.get().waiting(position); });
  c.def("running", &running_requests);
  c.def("each_running", [](const PythonView& v) { return RunningWalk(v); });
  c.def("needed_tokens", [](const PythonView& v, const R& r) { return v.get().needed_tokens(v.id(r)); });
  c.def("predicted_tokens", [](const PythonView& v, const R& r) { return v.view().predicted_output(v.id(r)); });
  c.def("precedes", [](const PythonView& v, const R& a, const R& b) { return v.view().precedes(v.id(a), v.id(b)); });
  c.def("readiness", [](const PythonView& v, const R& r) { return name_of_readiness(v.get().readiness(v.id(r))); });
  c.def("admit", [](const PythonView& v, const R& r) { v.get().admit(v.id(r)); });
  c.def("reject", [](const PythonView& v, const R& r, const std::string& reason) { v.get().reject(v.id(r), reason); });
  c.def(
      "preempt",
      [](const PythonView& v, const R& r, const std::string& mode, const std::string& end) {
        v.get().preempt(v.id(r), mode_named(mode), end_named(end));
      },
      nb::arg("request"), nb::arg("mode") = "recompute", nb::arg("end") = "front");
}

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
      plan_(nb::cast(LentPlanning(planning, lease_)), nb::cast(LentPlan(planning, lease_)));
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

void bind_planning(nb::module_& m) {
  nb::class_<PythonView> view(m, "ReplicaView", "One replica while its scheduler plans a step.");
  bind_queues(view);
  bind_memory(view);
  nb::class_<LentPlan> plan(m, "StepPlan", "The work of one step.");
  plan.def("add", [](const LentPlan& p, const R& r, std::int32_t tokens) { p.get().add(p.id(r), tokens); });
  plan.def_prop_ro("tokens", [](const LentPlan& p) { return p.get().step().tokens; });
  plan.def_prop_ro("num_requests", [](const LentPlan& p) { return p.get().step().num_requests(); });
  nb::class_<RunningWalk> walk(m, "RunningWalk");
  walk.def("__iter__", [](nb::handle self) { return nb::borrow(self); });
  walk.def("__next__", &RunningWalk::next);
}

void add_scheduler(const PolicyPtr& policy) { add_to_registry<Scheduler, PythonScheduler>(policy); }

}  // namespace kvlab
