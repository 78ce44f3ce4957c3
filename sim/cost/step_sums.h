#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/checked_time.h"
#include "base/int128.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/step_work.h"

namespace kvlab {

inline constexpr const char* kLongStep = "one step takes longer than that";

// Only checks the total, the largest sum.
inline void charge(StepCost& cost, CostPart part, Picoseconds ps, Footing footing) {
  add_time(cost.total, ps, kLongStep);
  cost.add(part, footing, ps);
}

// The times of a StepCost that are not 0.
class PartSums {
 public:
  PartSums() = default;
  explicit PartSums(const StepCost& cost) : total_(cost.total) {
    cost.times.each([&](std::size_t cell, Picoseconds ps) { parts_.push_back({cell, ps}); });
  }
  void charge_to(StepCost& cost) const {
    cost.total = add_time(cost.total, total_, kLongStep);
    for (const auto& [cell, ps] : parts_) cost.times.add(cell, ps);
  }

 private:
  Picoseconds total_;
  std::vector<std::pair<std::size_t, Picoseconds>> parts_;
};

inline void charge(StepCost& cost, CostPart part, const ByFooting& price, std::int64_t times = 1) {
  for (std::size_t f = 0; f < kFootings; ++f)
    if (price[f] != Picoseconds{}) charge(cost, part, multiply_time(price[f], times, kLongStep), static_cast<Footing>(f));
}

inline void add(StepCost& cost, const Work& work, std::int64_t times = 1) {
  cost.flops += work.flops * times;
  cost.bytes += work.bytes * times;
}

inline Work sum(const std::vector<OpWork>& ops) {
  Work all;
  for (const OpWork& op : ops) all.flops += op.times * op.flops, all.bytes += op.times * op.bytes;
  return all;
}

// Rounded down.
inline std::int64_t share_of(std::int64_t all, std::int64_t layers, std::int64_t of) {
  return layers == of ? all : static_cast<std::int64_t>(Int128{all} * layers / of);
}
inline Picoseconds share_of(Picoseconds all, std::int64_t layers, std::int64_t of) {
  return Picoseconds(share_of(all.count(), layers, of));
}

// Measured, interpolated and other times are rounded as three sums, so the split into parts and bases changes no step's time.
inline void charge_share(StepCost& cost, std::initializer_list<std::pair<CostPart, const ByFooting*>> prices, std::int64_t layers,
                         std::int64_t of) {
  if (layers == of) {
    for (const auto& [part, price] : prices) charge(cost, part, *price);
    return;
  }
  Picoseconds sum, charged;
  for (std::size_t f = 0; f < kFootings; ++f) {
    if (static_cast<Footing>(f) <= Footing::kExtrapolated) sum = charged = {};
    for (const auto& [part, price] : prices) {
      sum = add_time(sum, (*price)[f], kLongStep);
      const Picoseconds due = share_of(sum, layers, of);
      charge(cost, part, due - charged, static_cast<Footing>(f));
      charged = due;
    }
  }
}

inline void add_share(StepCost& cost, const Work& work, std::int64_t layers, std::int64_t of) {
  cost.flops += share_of(work.flops, layers, of);
  cost.bytes += share_of(work.bytes, layers, of);
}

}  // namespace kvlab
