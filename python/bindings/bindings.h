#pragma once

#include <nanobind/nanobind.h>

namespace kvlab {

// Each adds its file's part to the module kvlab._kvlab.
void bind_program(nanobind::module_& m);   // command line, data folder
void bind_sweeps(nanobind::module_& m);    // experiments and comparisons
void bind_policies(nanobind::module_& m);  // policies written in Python

}  // namespace kvlab
