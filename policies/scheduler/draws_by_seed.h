#pragma once

namespace kvlab {

class DrawsBySeed {
 public:
  virtual ~DrawsBySeed() = default;
};

}  // namespace kvlab
