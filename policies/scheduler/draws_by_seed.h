#pragma once

namespace kvlab {

// A scheduler whose plans depend on the seed of the run derives from this too: runs with other seeds differ.
class DrawsBySeed {
 public:
  virtual ~DrawsBySeed() = default;
};

}  // namespace kvlab
