#include "policies/order/order.h"

#include <algorithm>

namespace kvlab {

RequestId Order::victim(RequestId /*usual*/) const {
  const std::span<const RequestId> running = view_->running();
  return *std::max_element(running.begin(), running.end(), [&](RequestId a, RequestId b) { return precedes(a, b); });
}

}  // namespace kvlab
