#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/registry.h"
#include "base/request_facts.h"
#include "policies/predictor/predictor.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

// Decides whose turn it is. It holds the waiting requests of one replica, sorted: ReplicaView::waiting(0) is the first of them. It names
// the running request that gives way when memory runs out, and may let a waiting request take the place of a running one. Schedulers decide
// how much of the queue enters a step and ask here for everything else; the host reports the events below.
//
// A scheduler mostly reads the head and a few after it, so at(0) is fast and at(i + 1) after at(i) too. No call may take time in proportion
// to the waiting requests; keys that depend on time are renewed a few at a time.
class Order {
 public:
  virtual ~Order() = default;
  // Called once, before all else; both outlive the order.
  virtual void attach(ReplicaView& view, Predictor& predictor) {
    view_ = &view;
    predictor_ = &predictor;
  }
  // Facts that every request must have. The host refuses a request without one.
  [[nodiscard]] virtual std::vector<Fact> needs() const { return {}; }
  [[nodiscard]] virtual bool uses_predictor() const { return false; }

  // Clients that its parameters name, as in the trace. The program refuses one that no request of the trace has.
  [[nodiscard]] virtual std::vector<std::string> named_clients() const { return {}; }

  // ---- the waiting requests, sorted ----
  enum class Entry : std::uint8_t { kArrival, kPreemptedToFront, kPreemptedToBack };
  [[nodiscard]] virtual std::uint32_t size() const = 0;
  [[nodiscard]] virtual RequestId at(std::uint32_t position) const = 0;
  virtual void insert(RequestId r, Entry entry) = 0;
  virtual void erase(RequestId r) = 0;
  // True: a request that comes back from CPU memory keeps its place. False: it is erased and goes before all others until it runs.
  [[nodiscard]] virtual bool keeps_returning() const { return false; }

  // ---- who gives way ----
  // a goes before b, both running. A strict order.
  [[nodiscard]] virtual bool precedes(RequestId a, RequestId b) const = 0;
  // The running request that is preempted for want of memory; `usual` is the scheduler's own choice. The default is the last by precedes().
  [[nodiscard]] virtual RequestId victim(RequestId usual) const;
  // How running requests give way to better waiting ones (make_way.h); none: they never do.
  [[nodiscard]] virtual std::optional<Preemption> overtaking() const { return std::nullopt; }
  // The waiting request may take the place of the running one; then it also goes before it in the queue.
  [[nodiscard]] virtual bool overtakes(RequestId /*waiting*/, RequestId /*running*/) const { return false; }

  // Appends running requests that are preempted in this plan for any waiting request, and returns how. Schedulers with lets_overtake() ask
  // for it once per plan, before they plan anything (make_way.h), and only if overtaking() has a value.
  virtual Preemption take_off(std::vector<RequestId>& /*off*/) { return Preemption::kRecompute; }
  // The waiting r stays out of this plan, and so do those after it in the queue. Never asked of one that came back from CPU memory: it has
  // its blocks. At least one request that waits must get in once no request runs and no copy is under way.
  [[nodiscard]] virtual bool holds(RequestId /*r*/) { return false; }

  // ---- events ----
  // A plan begins; view().now() is its time. It may call view().try_swap_in(), to bring requests back ahead of their turn.
  virtual void on_plan() {}
  virtual void on_admit(RequestId /*r*/) {}                           // r runs; it was erased before
  virtual void on_tokens(RequestId /*r*/, std::int32_t /*count*/) {}  // r emitted them; one call may report those of many steps
  virtual void on_step_end(std::span<const StepEntry> /*entries*/, Span /*duration*/) {}
  virtual void on_leave(RequestId /*r*/) {}  // r finished or was rejected
  // False: the host leaves the calls of on_step_end() out, and those of on_tokens() but for a request that was preempted with tokens in
  // flight and waits.
  [[nodiscard]] virtual bool watches_steps() const { return false; }

  // Fast-forward: the number of plans for which the head of the queue, precedes() and overtakes() stay as they are while running requests
  // emit one token per plan and nothing else happens. ends_with_hits: as of schedulers. The default is no promise: always right, and slow.
  [[nodiscard]] virtual Horizon stable_for() const { return Horizon::none(); }

 protected:
  [[nodiscard]] ReplicaView& view() const { return *view_; }
  [[nodiscard]] const Request& info(RequestId r) const { return view_->info(r); }
  [[nodiscard]] Predictor& predictor() const { return *predictor_; }

 private:
  ReplicaView* view_ = nullptr;
  Predictor* predictor_ = nullptr;
};

using OrderRegistry = Registry<Order>;

}  // namespace kvlab
