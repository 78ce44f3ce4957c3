#pragma once

#include "policies/predictor/predictor.h"

namespace kvlab {

// The true length: an oracle.
class ExactPredictor final : public Predictor {
 public:
  ExactPredictor() = default;
  explicit ExactPredictor(Params& /*p*/) {}
  std::int32_t output_tokens(const Request& r) override { return r.output_limit; }
};

}  // namespace kvlab
