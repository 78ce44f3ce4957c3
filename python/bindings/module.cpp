#include "base/error.h"
#include "bindings/bindings.h"

NB_MODULE(_kvlab, m) {
  m.doc() = "The KVLab program as a module; use the package kvlab.";
  nanobind::exception<kvlab::InputError>(m, "InputError", PyExc_ValueError);
  kvlab::bind_program(m);
  kvlab::bind_sweeps(m);
  kvlab::bind_policies(m);
}
