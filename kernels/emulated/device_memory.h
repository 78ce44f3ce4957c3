#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab::emulated {

// Device memory that there is, and that is allocated; pinned host memory that there is.
void limit_memory(std::int64_t bytes);
void limit_pinned_memory(std::int64_t bytes);
std::int64_t used_memory();
inline constexpr std::int64_t kGraphBytes = 64 << 10;  // that a recorded graph takes
std::int64_t allocations();                            // made so far
std::int64_t recorded_graphs();                        // so far
std::int64_t commands();                               // given to a stream so far: launches, copies, fills
void note_command();
// Notes what is launched from now on: kernels as "name grid block", matrix products by their sizes. Null: no longer.
void log_launches(std::vector<std::string>* log);
void note_launch(const std::string& what);
bool logs_launches();

}  // namespace kvlab::emulated
