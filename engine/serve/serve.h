#pragma once

#include <cstdint>
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

// Prompt and generated tokens: a function of (seed, hashes), or without hashes of (seed, request number).
std::vector<std::int32_t> request_content(const TraceRequest& request, std::uint64_t seed, std::int32_t vocabulary);

struct ServeSetup : HostSetup {
  const EngineModel* model = nullptr;
  const Recipe* recipe = nullptr;
  float temperature = 0;                                                  // 0: greedy
  std::int32_t longest_tokens = 0;                                        // 0: unknown
  bool stays_awake = false;                                               // as in StepLane
  std::function<void(const InFlightStep&)> step_done;                     // may be empty
  std::function<void()> each_turn;                                        // called often; an exception ends the run; may be empty
  std::function<Picoseconds(const InFlightStep&)> nominal_time;           // tests: replaces the real clock
  std::function<void(const ReplicaState&, const StepExecutor&)> inspect;  // tests, with nominal_time
  std::map<std::uint64_t, std::vector<std::int32_t>>* emitted = nullptr;  // tests: by request number
};

// In real time, with the simulator's scheduler, block cache and ReplicaState over pages of real K and V; a second thread runs steps. Token
// ids follow from hashes. Throws InputError for unsupported setups and for requests that wait forever.
ServingSummary serve(const ServeSetup& setup, TraceSource& trace, RunSink& sink);

}  // namespace kvlab
