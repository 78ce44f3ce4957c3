#pragma once

#include <nanobind/nanobind.h>

namespace kvlab {

// One function per file of bindings; each adds its part to the module kvlab._kvlab.
void bind_program(nanobind::module_& m);   // the command line, experiments, lists
void bind_policies(nanobind::module_& m);  // policies written in Python

}  // namespace kvlab
