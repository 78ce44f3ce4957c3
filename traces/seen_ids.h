#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/name_number.h"

namespace kvlab {

// Row ids as 63-bit numbers, to detect repeats.
class SeenIds {
 public:
  // Notes an id; true if it is new.
  bool is_first(std::int64_t id) { return ids_.insert(id).second; }
  bool is_first(std::string_view id) { return is_first(number_of_name(id)); }

 private:
  std::unordered_set<std::int64_t> ids_;
};

// rows: plural; column: the id's.
inline std::string repeated_rows(std::string_view rows, std::string_view column) {
  return fmt::format("{} with the {} of an earlier one dropped", rows, column);
}

}  // namespace kvlab
