#pragma once

#include <cstddef>
#include <vector>

#include "serving/step.h"

namespace kvlab {

// Steps of a rank in flight, oldest first, with room for the next.
class StepRing {
 public:
  explicit StepRing(int depth) : steps_(static_cast<std::size_t>(depth)) {}
  [[nodiscard]] int depth() const { return static_cast<int>(steps_.size()); }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] bool is_empty() const { return size_ == 0; }
  [[nodiscard]] bool is_full() const { return size_ == depth(); }
  InFlightStep& operator[](int i) { return steps_[static_cast<std::size_t>((first_ + i) % depth())]; }
  InFlightStep& oldest() { return (*this)[0]; }
  InFlightStep& latest() { return (*this)[size_ - 1]; }
  // The step to plan, then push(); the ring must not be full.
  InFlightStep& next() { return (*this)[size_]; }
  void push() { ++size_; }
  void pop() {
    first_ = (first_ + 1) % depth();
    --size_;
  }

 private:
  std::vector<InFlightStep> steps_;
  int first_ = 0, size_ = 0;
};

}  // namespace kvlab
