#include "bindings/bindings.h"

namespace kvlab {

void bind_policies(nanobind::module_& /*m*/) {}

}  // namespace kvlab
