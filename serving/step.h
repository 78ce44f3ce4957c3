#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/picoseconds.h"
#include "policies/kv/footprint.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

// Queue and memory of a replica just after the plan of a step.
struct PlanUsage {
  std::int64_t waiting = 0;  // requests
  std::int64_t used_blocks = 0, wasted_tokens = 0, external_fragmentation_ppm = 0;
};

// A step that was planned and whose output is not processed yet.
struct InFlightStep : StepPlan {
  PolicyWork policy;
  PlanUsage usage;
  std::int64_t ended_tokens = 0;  // of entries that end in it
  std::int32_t images = 0;        // that are encoded before its prompts are computed
  std::uint64_t number = 0;
  bool is_timed = false;              // start and end are known
  bool is_counted = false;            // it is part of the replica's totals
  bool is_uniform = false;            // every running request decodes one token, no policy event
  std::uint64_t running_version = 0;  // of the running list it was planned over
  Picoseconds planned{}, start{}, end{};
  Picoseconds policy_time{};  // of the KV policy's work between start and end; 0 where the device does not know it

  void clear() {
    StepPlan::clear();
    policy.clear();
    ended_tokens = 0;
    images = 0;
    is_uniform = false;
    policy_time = {};
  }
};

// Copies of KV that a plan asked for, in its order: between GPU and CPU memory, or from another replica.
struct SwapCopy {
  RequestId request{};
  std::int64_t blocks = 0;
  bool to_host = false;
  std::int64_t calls = 0;  // copies of one range each
  bool is_import = false;
  bool is_stored = false;         // to or from the store of prompts, whose blocks are as on the GPU, also with a SwapCodec
  bool is_ahead = false;          // Preemption::kSwapAhead
  bool joins = false;             // a copy in that the step being planned waits for, since its request takes part in it
  std::vector<BlockId> beside{};  // a copy out of these blocks that no step waits for, though they are free; empty: as usual
};

}  // namespace kvlab
