#pragma once

#include <nanobind/nanobind.h>

namespace kvlab {

// Parts of the module kvlab._kvlab.
void bind_sweeps(nanobind::module_& m);
void bind_policies(nanobind::module_& m);

// While one exists, policies in Python may run and none can be added. The first updates their texts, on which run identities depend.
// Constructed and destroyed with the GIL.
class PolicyUse {
 public:
  PolicyUse();
  ~PolicyUse();
  PolicyUse(const PolicyUse&) = delete;
  PolicyUse& operator=(const PolicyUse&) = delete;
};

}  // namespace kvlab
