#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/serve/executor.h"
#include "policies/block_cache/block_cache.h"
#include "policies/kv/footprint.h"
#include "policies/scheduler/scheduler.h"
#include "serving/host_setup.h"
#include "serving/replica_state.h"
#include "serving/step.h"
#include "traces/trace.h"

namespace kvlab {

// A run of the engine: as a simulation of one replica, with a model in place of a cost model.
struct ServeSetup : HostSetup {
  const EngineModel* model = nullptr;
  const Recipe* recipe = nullptr;
  float temperature = 0;                                                  // of sampling; 0: greedy
  std::int32_t longest_tokens = 0;                                        // of a request of the trace, as far as is known; 0: unknown
  bool stays_awake = false;                                               // between steps, StepLane
  std::function<void(const InFlightStep&)> step_done;                     // called for every step with its measured times; may be empty
  std::function<void()> each_turn;                                        // called often; an exception ends the run; may be empty
  std::function<Picoseconds(const InFlightStep&)> nominal_time;           // tests: a made-up clock in place of the real one
  std::function<void(const ReplicaState&, const StepExecutor&)> inspect;  // tests, with nominal_time: after every plan and its step
  std::map<std::uint64_t, std::vector<std::int32_t>>* emitted = nullptr;  // tests: tokens by request number
};

// Serves a trace's requests in real time, as they arrive by the trace's clock, on the model: the scheduler, block cache and ReplicaState
// are those of the simulator, the memory is pages of real K and V, and one thread runs the steps while this one plans. Token ids follow
// from the trace's hashes (content.h), output lengths are the trace's. Errors (InputError): what the engine does not run: padded batches,
// plans of a part of the layers, block caches that know the future, recipes that need more of shared prefixes than K and V; and requests
// that wait forever.
ServingSummary serve(const ServeSetup& setup, TraceSource& trace, RunSink& sink);

}  // namespace kvlab
