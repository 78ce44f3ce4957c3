#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvlab {

// Free memory and swap by /proc/meminfo and cgroup v2's memory.max and memory.swap.max ("" if missing); none if meminfo lacks them.
std::optional<std::uint64_t> free_memory(const std::string& meminfo, const std::string& memory_max, const std::string& swap_max);

// For this machine.
std::optional<std::uint64_t> free_memory();

}  // namespace kvlab
