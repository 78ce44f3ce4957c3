#pragma once

#include <cmath>
#include <cstdint>

#include "policies/order/order.h"

namespace kvlab {

// Lengths fall by `rate` tokens per second since arrival; length + rate arrival gives the same order at any time.
class Aging {
 public:
  explicit Aging(Params& p)
      : tokens_per_s_(p.optional<double>("aging_per_s", 0, 0, 1e6,
                                         "tokens by which a request counts as shorter for every second since its arrival, so that none "
                                         "waits forever; 0: it does not")) {}

  [[nodiscard]] bool is_on() const { return tokens_per_s_ > 0; }
  // In thousandths of a token; without aging the length.
  [[nodiscard]] std::int64_t key(std::int64_t length, Time arrival) const {
    if (!is_on()) return length;
    constexpr double kParts = 1000;
    return std::llround((static_cast<double>(length) + tokens_per_s_ * to_s(arrival - kStart)) * kParts);
  }

 private:
  double tokens_per_s_;
};

}  // namespace kvlab
