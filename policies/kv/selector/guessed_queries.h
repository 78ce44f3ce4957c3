#pragma once

#include <span>
#include <vector>

#include "policies/kv/part.h"

namespace kvlab {

// This step's queries as guessed from the input of the layer before (Needs::guessed_query), of sequences that decode.
class GuessedQueries {
 public:
  // Valid until the step's scratch memory is freed, or the next call. Not for layer 0.
  std::span<const Queries> from_layer_before(LayerStep& step);

 private:
  std::vector<Queries> view_;
};

}  // namespace kvlab
