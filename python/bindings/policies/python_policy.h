#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/params.h"
#include "base/registry.h"

// Policies written in Python. kvlab/policies.py inspects the function or class and hands over a declaration; here it becomes an entry of
// the registry that YAML names it in. Simulations run without the GIL, in several threads: every call of Python takes it.
namespace kvlab {

namespace nb = nanobind;

using PythonValue = std::variant<std::int64_t, double, bool, std::string>;
using PythonValues = std::vector<std::pair<std::string, PythonValue>>;

// A keyword-only parameter of the policy, which YAML sets.
struct PythonParam {
  std::string key, meaning;
  PythonValue value;  // the default; of the parameter's type where it is required
  bool is_required = false;
  double min = 0, max = 0;  // of numbers
};

// A method, or the function itself. A caller gives all arguments that methods of this name may take; it passes those that this one
// declares.
class PythonMethod {
 public:
  static constexpr std::size_t kMostArguments = 8;
  PythonMethod(nb::object function, std::vector<std::uint8_t> places) : function_(std::move(function)), places_(std::move(places)) {}
  [[nodiscard]] bool takes(std::uint8_t place) const;
  // `arguments` by place; those that takes() denies may be null. Holding the GIL.
  template <class... Handles>
  nb::object operator()(const Handles&... arguments) const {
    static_assert(sizeof...(arguments) <= kMostArguments);
    return call({arguments.ptr()...});
  }
  nb::object call(const std::array<PyObject*, kMostArguments>& arguments) const;

 private:
  nb::object function_;
  std::vector<std::uint8_t> places_;
};

// The interpreter keeps its state of a thread that has called this once, and need not make one for each call of Python on it.
void keep_thread_state();

// A policy as it was declared, shared by the runs that make it.
class PythonPolicy {
 public:
  // From a declaration by kvlab/policies.py. Holding the GIL.
  explicit PythonPolicy(const nb::dict& declaration);
  ~PythonPolicy();
  PythonPolicy(const PythonPolicy&) = delete;
  PythonPolicy& operator=(const PythonPolicy&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Card card() const { return {name_, summary_, source_}; }
  // The name that code_version() knows the policy by.
  [[nodiscard]] std::string code_name() const { return "python:" + name_; }
  // Reads the parameters from YAML, or describes them.
  [[nodiscard]] PythonValues read(Params& p) const;
  // An option of the decorator. Holding the GIL.
  template <class T>
  [[nodiscard]] T option(const char* key) const {
    return nb::cast<T>(options_[key]);
  }

  // Calls f() with the GIL. An exception of Python becomes an InputError with file:line of the policy and the traceback's last line; the
  // whole traceback goes to every TracebackListener.
  template <class F>
  auto call(F&& f) const {
    keep_thread_state();
    const nb::gil_scoped_acquire gil;
    try {
      return f();
    } catch (const nb::python_error& e) {
      fail(e);
    }
  }
  // Stops with file:line of the policy.
  [[noreturn]] void fail(const std::string& what) const;
  // The number that a method returned. Holding the GIL.
  [[nodiscard]] double number(const char* method, nb::handle returned) const;
  [[nodiscard]] std::int64_t integer(const char* method, nb::handle returned) const;

 private:
  friend class PythonInstance;
  friend void forget_policies();
  [[noreturn]] void fail(const nb::python_error& error) const;
  [[nodiscard]] std::string message(const std::string& place, const std::string& what) const;

  std::string kind_, name_, summary_, source_, file_;
  std::int64_t line_ = 0;
  std::vector<PythonParam> params_;
  std::map<std::string, std::vector<std::uint8_t>> methods_;  // name -> places of its arguments
  nb::dict options_;
  nb::object make_;  // called with the parameters' values
};
using PolicyPtr = std::shared_ptr<const PythonPolicy>;

// The object of one run. Any thread may end it.
class PythonInstance {
 public:
  PythonInstance(PolicyPtr policy, const PythonValues& values);
  ~PythonInstance();
  PythonInstance(const PythonInstance&) = delete;
  PythonInstance& operator=(const PythonInstance&) = delete;
  // null: the class does not have it
  [[nodiscard]] const PythonMethod* method(const std::string& name) const;
  [[nodiscard]] const PythonPolicy& policy() const { return *policy_; }

 private:
  PolicyPtr policy_;
  std::map<std::string, PythonMethod> methods_;
};

// Adds the policy to the registry of its interface, in place of a Python policy of the same name.
template <class Interface, class Wrapper>
void add_to_registry(const PolicyPtr& policy) {
  const auto make = [policy](Params& p) -> std::unique_ptr<Interface> {
    const PythonValues values = policy->read(p);
    return p.is_describing() ? nullptr : std::make_unique<Wrapper>(policy, values);
  };
  Registry<Interface>::add_running(policy->card(), make, policy->code_name());
}

// One function per kind (order.cpp, ...).
void add_order(const PolicyPtr& policy);
void add_scorer(const PolicyPtr& policy);
void add_scheduler(const PolicyPtr& policy);
void add_block_cache(const PolicyPtr& policy);
void add_dispatcher(const PolicyPtr& policy);

// While one exists, `found` gets the tracebacks of exceptions in policies, by the first line of their messages (PythonPolicy::call). Runs
// of other threads add theirs too. Begins and ends with the GIL.
class TracebackListener {
 public:
  explicit TracebackListener(nb::dict found);
  ~TracebackListener();
  TracebackListener(const TracebackListener&) = delete;
  TracebackListener& operator=(const TracebackListener&) = delete;
  // Keeps the first one of a line. Holding the GIL.
  void add(const std::string& line, const std::string& traceback);

 private:
  nb::dict found_;
};

// The interpreter ends: policies let go of their Python objects.
void forget_policies();

}  // namespace kvlab
