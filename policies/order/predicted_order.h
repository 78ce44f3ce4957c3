#pragma once

#include <vector>

#include "policies/order/keyed_order.h"

namespace kvlab {

// Lengths are predicted once, at arrival.
class PredictedOrder : public KeyedOrder {
 public:
  [[nodiscard]] bool uses_predictor() const final { return true; }
  void insert(RequestId r, Entry entry) final {
    if (entry == Entry::kArrival) slot(predicted_, r) = predictor().output_tokens(info(r));
    KeyedOrder::insert(r, entry);
  }

 protected:
  [[nodiscard]] std::int64_t predicted(RequestId r) const { return predicted_[index(r)]; }
  // A reached estimate is doubled (ALISE, 2024, arXiv:2410.23537).
  [[nodiscard]] std::int64_t remaining(RequestId r) const {
    std::int64_t total = predicted(r);
    while (total <= info(r).output_tokens) total *= 2;
    return total - info(r).output_tokens;
  }

 private:
  std::vector<std::int32_t> predicted_;  // by slot
};

}  // namespace kvlab
