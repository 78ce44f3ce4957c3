#pragma once

#include <cstdint>

#include "kernels/select/unit_lists/unit_lists.h"

namespace kvlab {

// Counts the units asked for that the last step already read, then stores the units that this step reads (`now`: those asked for and those
// always read) in their place. A diagnostic, not part of any method: it costs nothing.
struct TierReuse {
  std::int32_t num_rows = 0;
  UnitLists asked, now;
  std::int32_t* const* last = nullptr;       // [num_rows] with space for both steps' lists
  const std::int32_t* last_count = nullptr;  // [num_rows]
  const std::int32_t* held_from = nullptr;   // [num_rows] CPU memory: units from here on count as read; null: none
  std::int32_t* hits = nullptr;              // [num_rows] out
};
OpCall call(const TierReuse&);
void run_cpu(const TierReuse&);
void run_cuda(const TierReuse&, CudaContext&);  // `hits` is in CPU memory; waits for the stream.

}  // namespace kvlab
