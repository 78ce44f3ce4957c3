#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "serving/device.h"
#include "serving/event_queue.h"
#include "serving/host_setup.h"
#include "serving/replica_state.h"
#include "serving/step.h"
#include "serving/transfers.h"

namespace kvlab {

struct FleetContext {
  const HostSetup& setup;
  EventQueue& queue;
  Clock& clock;
  RunSink& sink;
  LogHistogram& itl;
  Transfers& transfers;
};

// With its seed; true lengths without make_predictor.
std::unique_ptr<Predictor> make_predictor(const HostSetup& setup, const PoolSetup& pool);

// A scheduler with queues, KV memory and device; several per replica with data parallelism. It starts copies, and queues an event for the
// end of each copy without a waiter.
class Rank {
 public:
  // number: over all replicas.
  Rank(const FleetContext& fleet, const PoolSetup& pool, std::uint32_t number, std::unique_ptr<Device> its_device);

  // As in ReplicaState::receive().
  void receive(const TraceRequest& request, Time arrival, bool prefill_only, const std::optional<PromptStores>& stores);
  // Plans steps.next() and starts its copies. Returns when the step may start.
  Picoseconds plan(Picoseconds at);
  // Starts steps.next(), which may be empty; steps.push() follows.
  void begin(std::uint64_t number, Picoseconds planned, Picoseconds ready);
  // Processes steps.oldest(); steps.pop() follows.
  void process_output(Picoseconds at);
  // A copy of a request, or a numbered write to the store, has ended.
  void end_copy(const Event& event);

  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<Device> device;
  ReplicaState state;
  StepRing steps;

 private:
  Picoseconds start_copies(Picoseconds at) {
    return state.swap_copies().empty() && state.memory().taken().empty() ? Picoseconds{} : begin_copies(at);
  }
  // Returns the end of the copies that the step waits for: copies out, of blocks that it writes, or of requests that come back into it.
  Picoseconds begin_copies(Picoseconds at);
  Picoseconds start_import(const SwapCopy& copy, Picoseconds at);
  Picoseconds start_prefix(const SwapCopy& copy, const KvOffer& offer, Picoseconds at);
  void start_writes(Picoseconds at);
  void queue_end(Picoseconds at, Phase phase, EventKind kind, RequestId subject);
  void tell_scheduler();
  void forward_events() {
    if (!events_.empty()) send_events();
  }
  void send_events();

  EventQueue& queue_;
  RunSink& sink_;
  LogHistogram& itl_;
  Transfers& transfers_;
  std::int64_t block_bytes_;
  std::vector<EventRecord> events_;  // since the latest plan or output, if delivered
};

}  // namespace kvlab
