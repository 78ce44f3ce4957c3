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
  std::int32_t swap_group_blocks = 1;  // most neighbouring blocks that one copy call moves
  bool keeps_host_copies = false;      // of requests that came back, while no other needs their CPU memory
  SwapSetup swap;
  bool prefix_caching = true;
  bool plans_over_unknown = false;  // pipeline depth >= 2: in-flight tokens count as known
  bool is_contiguous = false;
  bool unnamed_rest = false;                    // as Footprint::unnamed_rest, if the host knows it from elsewhere
  Time count_from{};                            // requests that arrived before are not counted (Request::is_counted)
  bool scheduler_predicts = false;              // Scheduler::uses_predictor()
  std::uint32_t replica = 0;                    // its number, for records
  std::int32_t image_tokens = 0;                // of an image that is encoded here; 0: none is
  const Slo* slo = nullptr;                     // targets whose gaps between tokens are watched; null: none
  const ExpectedText* expected_text = nullptr;  // of the quality of experience; null: it is not followed
};

}  // namespace kvlab
