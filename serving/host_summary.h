#pragma once

#include <vector>

#include "base/picoseconds.h"
#include "serving/host_setup.h"
#include "serving/replica_state.h"

namespace kvlab {

// At a run's end: hands over, in the order of the trace, the requests that are still there, and takes the latencies. InputError if
// requests are left and no stop rule ended the run.
void finish_requests(std::vector<RequestRecord>& unfinished, const StopRule& stop, MetricsCollector& metrics, RunSink& sink,
                     ServingSummary& summary);

// Instants in picoseconds from the run's start, at which the warm-up begins.
void set_duration(Picoseconds first_arrival, Picoseconds last, Span warmup, ServingSummary& summary);

// The state of a replica now, for timeline.csv; `counted`: its counters at the sample before, which become those of now.
TimelineSample sample_of(const ReplicaState& state, std::uint32_t replica, Picoseconds at, ReplicaState::Counters& counted);

// Adds the counts of one replica.
void add_counters(const ReplicaState& state, ServingSummary& summary);

}  // namespace kvlab
