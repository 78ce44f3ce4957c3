#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_set>

#include "base/hash.h"

namespace kvlab {

// Row ids as 63-bit numbers.
class SeenIds {
 public:
  // True for a new id.
  bool is_first(std::int64_t id) { return ids_.insert(id).second; }
  bool is_first(std::string_view id) { return is_first(number_of_name(id)); }

 private:
  std::unordered_set<std::int64_t> ids_;
};

}  // namespace kvlab
