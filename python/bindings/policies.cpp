#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "app/results/code_version.h"
#include "bindings/bindings.h"
#include "bindings/policies/requests.h"

namespace kvlab {

namespace {

constexpr std::pair<const char*, void (*)(const PolicyPtr&)> kPolicyKinds[] = {{"order", add_order},
                                                                               {"scorer", add_scorer},
                                                                               {"scheduler", add_scheduler},
                                                                               {"block cache", add_block_cache},
                                                                               {"dispatcher", add_dispatcher}};

// Guarded by the GIL.
int num_policy_uses = 0, num_ready_uses = 0;

// Callable: {name: text}. Never destroyed: the interpreter ends first.
nb::object& policy_texts() {
  static auto* const callable = new nb::object();
  return *callable;
}

void add_policy(const nb::dict& declaration) {
  if (num_policy_uses > 0) throw std::runtime_error("a policy cannot be added while a run is in progress");
  const auto kind = nb::cast<std::string>(declaration["kind"]);
  for (const auto& [name, add] : kPolicyKinds)
    if (kind == name) return add(std::make_shared<const PythonPolicy>(declaration));
  throw nb::value_error(("unknown kind of policy: " + kind).c_str());
}

nb::dict texts_of_policies() { return policy_texts().is_valid() ? nb::cast<nb::dict>(policy_texts()()) : nb::dict(); }

void forget_all() {
  forget_policies();
  policy_texts().reset();
}

}  // namespace

PolicyUse::PolicyUse() {
  ++num_policy_uses;  // before texts_of_policies(), which may run other Python threads
  try {
    const nb::dict texts = num_ready_uses == 0 ? texts_of_policies() : nb::dict();
    if (num_ready_uses == 0)  // recheck: no run reads the sources
      for (const auto& [name, text] : texts) set_running_source("python:" + nb::cast<std::string>(name), nb::cast<std::string>(text));
  } catch (...) {
    --num_policy_uses;
    throw;
  }
  ++num_ready_uses;
}

PolicyUse::~PolicyUse() {
  --num_policy_uses;
  --num_ready_uses;
}

void bind_policies(nb::module_& m) {
  bind_requests(m);
  bind_planning(m);
  bind_replicas(m);
  m.def("add_policy", &add_policy, nb::arg("declaration"), "Of kvlab/policies.py.");
  m.def(
      "take_policy_texts_from", [](const nb::object& callable) { policy_texts() = callable; }, nb::arg("callable"),
      "Called before the program runs. Returns {name: text}, on which the identity of runs depends.");
  m.def("forget_policies", &forget_all, "The interpreter ends.");
}

}  // namespace kvlab
