#pragma once

#include <cstdint>

namespace kvlab::emulated {

// Device memory that there is, and that is allocated.
void limit_memory(std::int64_t bytes);
std::int64_t used_memory();
std::int64_t allocations();      // made so far
std::int64_t recorded_graphs();  // so far

}  // namespace kvlab::emulated
