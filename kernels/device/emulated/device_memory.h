#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab::emulated {

// Sets the size of device memory; sets that of pinned CPU memory; returns the allocated device memory. In bytes.
void limit_memory(std::int64_t bytes);
void limit_pinned_memory(std::int64_t bytes);
std::int64_t used_memory();
inline constexpr std::int64_t kGraphBytes = 64 << 10;  // taken by a recorded graph
std::int64_t allocations();                            // made so far
std::int64_t recorded_graphs();                        // so far
std::int64_t commands();                               // enqueued on a stream so far: launches, copies, fills
void note_command();
// Logs all launches from now on: kernels as "name grid block", matrix products by their sizes. Null: stops.
void log_launches(std::vector<std::string>* log);
void note_launch(const std::string& what);
bool logs_launches();

}  // namespace kvlab::emulated
