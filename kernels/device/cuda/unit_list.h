#pragma once

#include <vector>

#include "kernels/select/unit_lists.h"

namespace kvlab {

// A row of UnitLists in device memory.
struct UnitList {
  const std::int32_t* unit = nullptr;
  std::int64_t n = 0;
};

inline std::vector<UnitList> unit_list_of(const UnitLists& lists, std::int32_t rows) {
  std::vector<UnitList> all;
  for (std::int32_t r = 0; r < rows; ++r) all.push_back({lists.row(r), lists.size(r)});
  return all;
}

}  // namespace kvlab
