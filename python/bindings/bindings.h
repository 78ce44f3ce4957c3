#pragma once

#include <nanobind/nanobind.h>

namespace kvlab {

// Parts of the module kvlab._kvlab.
void bind_program(nanobind::module_& m);  // command line, data folder
void bind_sweeps(nanobind::module_& m);
void bind_policies(nanobind::module_& m);

}  // namespace kvlab
