#pragma once

#include <cstdint>

#include "base/time.h"
#include "serving/swap_setup.h"

namespace kvlab {

struct ExpectedText;
struct Slo;

struct ReplicaLimits {
  std::int32_t block_tokens = 16;
  std::int32_t max_model_len = 1 << 20;
  std::int64_t host_blocks = 0;
  std::int32_t swap_group_blocks = 1;  // maximum of adjacent blocks per copy call
  bool keeps_host_copies = false;      // of requests that came back, while CPU memory suffices
  SwapSetup swap;
  bool prefix_caching = true;
  bool plans_over_unknown = false;  // pipeline depth >= 2: in-flight tokens count as known
  bool is_contiguous = false;
  bool unnamed_rest = false;                    // Footprint::unnamed_rest, if known to the host
  Time count_from{};                            // earlier arrivals are not counted (Request::is_counted)
  bool scheduler_predicts = false;              // Scheduler::uses_predictor()
  std::uint32_t replica = 0;                    // for records
  std::int32_t image_tokens = 0;                // per image encoded here; 0: none
  const Slo* slo = nullptr;                     // TBT targets to watch; null: none
  const ExpectedText* expected_text = nullptr;  // null: QoE is not followed
};

}  // namespace kvlab
