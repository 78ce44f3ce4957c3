#pragma once

#include <cstdint>
#include <vector>

#include "base/config/registry.h"
#include "base/request_facts.h"
#include "policies/request.h"

namespace kvlab {

// When requests enter the queue. Draws are keyed by request number.
class Predictor {
 public:
  virtual ~Predictor() = default;
  // Before the first estimate.
  virtual void set_seed(std::uint64_t seed) { seed_ = seed; }
  // Required of every request.
  [[nodiscard]] virtual std::vector<Fact> needs() const { return {}; }
  [[nodiscard]] virtual bool is_random() const { return false; }
  // In total, at least 1. Throws InputError without an estimate of r.
  virtual std::int32_t output_tokens(const Request& r) = 0;
  virtual void on_finish(const Request& /*r*/) {}

 protected:
  [[nodiscard]] std::uint64_t seed() const { return seed_; }

 private:
  std::uint64_t seed_ = 1;
};

using PredictorRegistry = Registry<Predictor>;

}  // namespace kvlab
