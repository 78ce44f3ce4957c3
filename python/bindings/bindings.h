#pragma once

#include <nanobind/nanobind.h>

namespace kvlab {

// One function per file of bindings. Each adds its part to the module kvlab._kvlab.
void bind_program(nanobind::module_& m);   // the command line, and where the program's data is
void bind_sweeps(nanobind::module_& m);    // experiments and comparisons
void bind_policies(nanobind::module_& m);  // policies written in Python

}  // namespace kvlab
