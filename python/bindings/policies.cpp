#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "app/results/code_version.h"
#include "bindings/bindings.h"
#include "bindings/policies/planning.h"
#include "bindings/policies/python_policy.h"
#include "bindings/policies/replicas.h"
#include "bindings/policies/requests.h"

namespace kvlab {

namespace {

constexpr std::array<std::pair<const char*, void (*)(const PolicyPtr&)>, 5> kKinds = {{{"order", add_order},
                                                                                      {"scorer", add_scorer},
                                                                                      {"scheduler", add_scheduler},
                                                                                      {"block cache", add_block_cache},
                                                                                      {"dispatcher", add_dispatcher}}};

void add_policy(const nb::dict& declaration) {
  const auto kind = nb::cast<std::string>(declaration["kind"]);
  for (const auto& [name, add] : kKinds)
    if (kind == name) return add(std::make_shared<const PythonPolicy>(declaration));
  throw nb::value_error(("unknown kind of policy: " + kind).c_str());
}

}  // namespace

void bind_policies(nb::module_& m) {
  bind_requests(m);
  bind_planning(m);
  bind_replicas(m);
  m.def("add_policy", &add_policy, nb::arg("declaration"), "Of kvlab/policies.py.");
  m.def("set_policy_text", &set_running_source, nb::arg("name"), nb::arg("text"), "The text that a run's identity depends on.");
  m.def("forget_policies", &forget_policies, "The interpreter ends.");
}

}  // namespace kvlab
