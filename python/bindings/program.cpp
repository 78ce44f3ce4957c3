#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <iostream>
#include <sstream>
#include <tuple>

#include "app/cli.h"
#include "app/results/results.h"
#include "app/runs/sweep/progress.h"
#include "base/data_root.h"
#include "base/error.h"
#include "bindings/bindings.h"

namespace kvlab {

namespace nb = nanobind;

namespace {

std::tuple<int, std::string, std::string> call_program(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  const PolicyUse use;
  const nb::gil_scoped_release released;
  stop_requested() = false;  // from an interrupted call
  const int status = run_cli(arguments, out, err);
  return {status, out.str(), err.str()};
}

int run_program(const std::vector<std::string>& arguments) {
  const PolicyUse use;
  const nb::gil_scoped_release released;
  stop_requested() = false;
  return run_cli(arguments, std::cout, std::cerr);
}

}  // namespace

NB_MODULE(_kvlab, m) {
  m.doc() = "The KVLab program as a module; use the package kvlab.";
  nb::exception<InputError>(m, "InputError", PyExc_ValueError);
  m.def("call", &call_program, nb::arg("arguments"), "Runs the command line. Returns (exit status, stdout, stderr).");
  m.def("main", &run_program, nb::arg("arguments"),
        "Runs the command line with the process's own stdout and stderr. Returns the exit status.");
  m.def("version", &program_version, "The version, with the commit where it is known.");
  m.def(
      "data_root", [] { return data_root().string(); }, "The folder with profiles/, experiments/ and the other data.");
  m.def(
      "set_data_root", [](const std::string& folder) { set_data_root(folder); }, nb::arg("folder"),
      "Sets the folder that is taken where the environment has no KVLAB_HOME.");
  bind_sweeps(m);
  bind_policies(m);
}

}  // namespace kvlab
