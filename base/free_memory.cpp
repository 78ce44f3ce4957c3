#include "base/free_memory.h"

#include <algorithm>
#include <sstream>

#include "base/read_file.h"

namespace kvlab {

namespace {

// A line "KEY:   123 kB".
std::optional<std::uint64_t> bytes_of_line(const std::string& meminfo, const std::string& key) {
  std::istringstream lines(meminfo);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    std::uint64_t kib = 0;
    if (words >> name && name == key + ":" && words >> kib) return kib * 1024;
  }
  return std::nullopt;
}

// min(bytes, limit); "max" and "" mean no limit.
std::uint64_t within(std::uint64_t bytes, const std::string& limit) {
  std::istringstream text(limit);
  std::uint64_t most = 0;
  return text >> most ? std::min(bytes, most) : bytes;
}

}  // namespace

std::optional<std::uint64_t> free_memory(const std::string& meminfo, const std::string& memory_max, const std::string& swap_max) {
  const std::optional<std::uint64_t> memory = bytes_of_line(meminfo, "MemAvailable");
  if (!memory) return std::nullopt;
  return within(*memory, memory_max) + within(bytes_of_line(meminfo, "SwapFree").value_or(0), swap_max);
}

std::optional<std::uint64_t> free_memory() {
  return free_memory(read_if_there("/proc/meminfo"), read_if_there("/sys/fs/cgroup/memory.max"),
                     read_if_there("/sys/fs/cgroup/memory.swap.max"));
}

}  // namespace kvlab
