#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/config/registry.h"
#include "base/ids.h"
#include "base/request_facts.h"
#include "policies/predictor/predictor.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

// at(0), and at(i + 1) after at(i), must be fast. No call may take time proportional to the waiting requests; time-dependent keys are
// renewed a few at a time.
class Order {
 public:
  virtual ~Order() = default;
  // Called first; both outlive the order.
  virtual void attach(ReplicaView& view, Predictor& predictor) {
    view_ = &view;
    predictor_ = &predictor;
  }
  [[nodiscard]] virtual std::vector<Fact> needs() const { return {}; }
  [[nodiscard]] virtual bool uses_predictor() const { return false; }

  // The program refuses those without a request.
  [[nodiscard]] virtual std::vector<std::string> named_clients() const { return {}; }

  // ---- the waiting requests, sorted ----
  enum class Entry : std::uint8_t { kArrival, kPreemptedToFront, kPreemptedToBack };
  [[nodiscard]] virtual std::uint32_t size() const = 0;
  [[nodiscard]] virtual RequestId at(std::uint32_t position) const = 0;
  virtual void insert(RequestId r, Entry entry) = 0;
  virtual void erase(RequestId r) = 0;
  // False: a request that returns from CPU memory is erased and goes before all others until it runs.
  [[nodiscard]] virtual bool keeps_returning() const { return false; }

  // ---- preemption ----
  // a goes before b, both running. A strict order. Default: by arrival.
  [[nodiscard]] virtual bool precedes(RequestId a, RequestId b) const { return info(a).arrival < info(b).arrival; }
  // For exhausted memory; `usual`: the scheduler's choice. Default: the last by precedes().
  [[nodiscard]] virtual RequestId victim(RequestId /*usual*/) const {
    const std::span<const RequestId> running = view_->running();
    return *std::max_element(running.begin(), running.end(), [&](RequestId a, RequestId b) { return precedes(a, b); });
  }
  // How running requests give way to better waiting ones (make_way.h); none: never.
  [[nodiscard]] virtual std::optional<Preemption> overtaking() const { return std::nullopt; }
  // If true, the waiting one also goes first in the queue.
  [[nodiscard]] virtual bool overtakes(RequestId /*waiting*/, RequestId /*running*/) const { return false; }

  // Appends running requests to preempt in this plan for any waiting request; returns the mode. make_way() calls it once per plan, first,
  // if overtaking() has a value.
  virtual Preemption take_off(std::vector<RequestId>& /*off*/) { return Preemption::kRecompute; }
  // r and those after it stay out of this plan. Not called for one that returned from CPU memory. Must admit at least one once none runs
  // and no copy is under way.
  [[nodiscard]] virtual bool holds(RequestId /*r*/) { return false; }

  // ---- events ----
  // A plan begins at view().now(). May call view().try_swap_in().
  virtual void on_plan() {}
  virtual void on_admit(RequestId /*r*/) {}                           // it was erased before
  virtual void on_tokens(RequestId /*r*/, std::int32_t /*count*/) {}  // emitted; may cover many steps
  virtual void on_step_end(std::span<const StepEntry> /*entries*/, Span /*duration*/) {}
  virtual void on_leave(RequestId /*r*/) {}  // finished or was rejected
  // False: no on_step_end(), and on_tokens() only for a waiting request that was preempted with tokens in flight.
  [[nodiscard]] virtual bool watches_steps() const { return false; }

  // Plans for which the head, precedes() and overtakes() do not change if running requests only emit one token per plan. The default is
  // always right, and slow.
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
