#pragma once

namespace kvlab {

// Plans depend on the run's seed.
class DrawsBySeed {
 public:
  virtual ~DrawsBySeed() = default;
};

}  // namespace kvlab
