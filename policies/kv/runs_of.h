#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvlab {

// Run-length code: (value, count) pairs.
inline std::vector<std::int32_t> runs_of(std::span<const std::int32_t> values) {
  std::vector<std::int32_t> runs;
  for (const std::int32_t value : values) {
    if (runs.empty() || runs[runs.size() - 2] != value) runs.insert(runs.end(), {value, 0});
    ++runs.back();
  }
  runs.shrink_to_fit();
  return runs;
}

inline std::vector<std::int32_t> from_runs(std::span<const std::int32_t> runs) {
  std::vector<std::int32_t> values;
  for (std::size_t i = 0; i + 1 < runs.size(); i += 2) values.insert(values.end(), static_cast<std::size_t>(runs[i + 1]), runs[i]);
  return values;
}

}  // namespace kvlab
