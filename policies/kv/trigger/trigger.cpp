#include "policies/kv/trigger/trigger.h"

#include <algorithm>

namespace kvlab {

Held::Held(const Allocator& allocator, const ModelShape& model, std::int32_t layer, std::span<const std::int32_t> len, std::int32_t n)
    : longest_(*std::max_element(len.begin(), len.end())), layer_(layer), n_(n), len_(len), allocator_(&allocator), model_(&model) {}

bool Held::exceeds(std::int32_t target) const {
  if (allocator_ == nullptr || !allocator_->has_shares()) return longest_ > target;
  return n_ > target && allocator_->over_shares(*model_, layer_, len_, target, n_);
}

}  // namespace kvlab
