#include "serving/contiguous.h"

#include <algorithm>
#include <iterator>

namespace kvlab {

ContiguousAllocator::ContiguousAllocator(std::int64_t capacity_tokens, Fit fit)
    : holes_{{0, capacity_tokens}}, capacity_(capacity_tokens), free_(capacity_tokens), fit_(fit) {
  if (capacity_tokens == 0) holes_.clear();
}

std::int64_t ContiguousAllocator::reserve(std::int64_t length) {
  auto best = holes_.end();
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    if (hole->second < length) continue;
    if (best == holes_.end() || hole->second < best->second) best = hole;
    if (fit_ == Fit::kFirst || best->second == length) break;
  }
  if (best == holes_.end()) return -1;
  const std::int64_t start = best->first;
  const std::int64_t rest = best->second - length;
  holes_.erase(best);
  if (rest > 0) holes_.emplace(start + length, rest);
  free_ -= length;
  return start;
}

void ContiguousAllocator::release(std::int64_t start, std::int64_t length) {
  free_ += length;
  auto next = holes_.lower_bound(start);
  if (next != holes_.end() && next->first == start + length) {
    length += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == start) {
      before->second += length;
      return;
    }
  }
  holes_.emplace(start, length);
}

std::int64_t ContiguousAllocator::largest_hole() const {
  std::int64_t largest = 0;
  for (const auto& [start, length] : holes_) largest = std::max(largest, length);
  return largest;
}

}  // namespace kvlab
