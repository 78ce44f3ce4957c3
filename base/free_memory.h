#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace kvlab {

// Bytes of memory and swap that a machine can still give, by the texts of /proc/meminfo and of cgroup v2's memory.max and memory.swap.max,
// which bound them where they are numbers ("" where there is no such file). None: the first does not say.
std::optional<std::uint64_t> free_memory(const std::string& meminfo, const std::string& memory_max, const std::string& swap_max);

// The same for this machine.
std::optional<std::uint64_t> free_memory();

}  // namespace kvlab
