#pragma once

#include <vector>

#include "base/picoseconds.h"
#include "serving/host_setup.h"
#include "serving/replica_state.h"

namespace kvlab {

// Delivers the remaining requests in trace order, and takes the latencies. Throws InputError if requests are left without a stop rule.
void finish_requests(std::vector<RequestRecord>& unfinished, const StopRule& stop, MetricsCollector& metrics, RunSink& sink,
                     ServingSummary& summary);

// Picoseconds from the run's start, when the warm-up begins.
void set_duration(Picoseconds first_arrival, Picoseconds last, Span warmup, ServingSummary& summary);

// For timeline.csv. `counted`: the last sample's counters, which are updated.
TimelineSample sample_of(const ReplicaState& state, std::uint32_t replica, Picoseconds at, ReplicaState::Counters& counted);

void add_counters(const ReplicaState& state, ServingSummary& summary);

}  // namespace kvlab
