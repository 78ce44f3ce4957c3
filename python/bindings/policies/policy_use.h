#pragma once

namespace kvlab {

// While one exists, the program runs and may use policies in Python: none can be added. The first one brings the texts of the policies up
// to date, on which the identity of runs depends. Begins and ends with the GIL.
class PolicyUse {
 public:
  PolicyUse();
  ~PolicyUse();
  PolicyUse(const PolicyUse&) = delete;
  PolicyUse& operator=(const PolicyUse&) = delete;
};

}  // namespace kvlab
