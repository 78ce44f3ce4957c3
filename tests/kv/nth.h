#pragma once

#include <cstddef>
#include <cstdint>

namespace kvlab {

// Element i of a vector or an array, for an index with a sign.
template <class Elements>
decltype(auto) nth(Elements&& all, std::int64_t i) {
  return all[static_cast<std::size_t>(i)];
}

}  // namespace kvlab
