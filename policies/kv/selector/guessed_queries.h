#pragma once

#include <span>
#include <vector>

#include "policies/kv/step.h"

namespace kvlab {

// Decoding sequences' queries, guessed from the layer before's input (Needs::guessed_query).
class GuessedQueries {
 public:
  // Not for layer 0. Valid until the next call or the step's scratch is freed.
  std::span<const Queries> from_layer_before(LayerStep& step);

 private:
  std::vector<Queries> view_;
};

}  // namespace kvlab
