#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab::emulated {

// Bytes of allocated device memory.
void limit_memory(std::int64_t bytes);
void limit_pinned_memory(std::int64_t bytes);
std::int64_t used_memory();
inline constexpr std::int64_t kGraphBytes = 64 << 10;  // per recorded graph
std::int64_t allocations();
std::int64_t recorded_graphs();
std::int64_t commands();  // launches, copies and fills
void note_command();
// Logs kernels as "name grid block", matrix products by their sizes. Null: stops.
void log_launches(std::vector<std::string>* log);
void note_launch(const std::string& what);
bool logs_launches();

}  // namespace kvlab::emulated
