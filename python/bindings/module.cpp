#include "bindings/bindings.h"

NB_MODULE(_kvlab, m) {
  m.doc() = "The KVLab program as a module; use the package kvlab.";
  kvlab::bind_program(m);
  kvlab::bind_policies(m);
}
