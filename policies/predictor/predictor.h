#pragma once

#include <cstdint>
#include <vector>

#include "base/registry.h"
#include "base/request_facts.h"
#include "policies/request.h"

namespace kvlab {

// Estimates the output length of a request when it enters the queue, for orders that sort by it. Draws are counter-based, keyed by the
// request's number: an estimate does not depend on the order in which requests are asked for.
class Predictor {
 public:
  virtual ~Predictor() = default;
  // Called before the first estimate.
  virtual void set_seed(std::uint64_t seed) { seed_ = seed; }
  // Facts that every request must have.
  [[nodiscard]] virtual std::vector<Fact> needs() const { return {}; }
  // Its estimates depend on the seed.
  [[nodiscard]] virtual bool is_random() const { return false; }
  // Output tokens that r will emit in all, at least 1. InputError: it has no estimate of this request.
  virtual std::int32_t output_tokens(const Request& r) = 0;
  // r has emitted its last token; for estimates from experience.
  virtual void on_finish(const Request& /*r*/) {}

 protected:
  [[nodiscard]] std::uint64_t seed() const { return seed_; }

 private:
  std::uint64_t seed_ = 1;
};

using PredictorRegistry = Registry<Predictor>;

}  // namespace kvlab
