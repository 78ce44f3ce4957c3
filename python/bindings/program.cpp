#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <sstream>
#include <tuple>

#include "app/cli.h"
#include "bindings/bindings.h"

namespace kvlab {

namespace nb = nanobind;

namespace {

std::tuple<int, std::string, std::string> call_program(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const nb::gil_scoped_release released;
  const int status = run_cli(arguments, out, err);
  return {status, out.str(), err.str()};
}

}  // namespace

void bind_program(nb::module_& m) {
  m.def("call", &call_program, nb::arg("arguments"), "The command line; returns (status, stdout, stderr).");
}

}  // namespace kvlab
