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

#include "base/config/params.h"
#include "base/config/registry.h"

// kvlab/policies.py passes declarations, which become registry entries. Simulations run without the GIL in several threads and take it for
// every Python call.
namespace kvlab {

namespace nb = nanobind;

using PythonValue = std::variant<std::int64_t, double, bool, std::string>;
using PythonValues = std::vector<std::pair<std::string, PythonValue>>;

// Keyword-only, set in YAML.
struct PythonParam {
  std::string key, meaning;
  PythonValue value;  // default; only its type counts if required
  bool is_required = false;
  double min = 0, max = 0;
};

// Receives those of all possible arguments that it declares.
class PythonMethod {
 public:
  static constexpr std::size_t kMostArguments = 8;
  PythonMethod(nb::object function, std::vector<std::uint8_t> places) : function_(std::move(function)), places_(std::move(places)) {}
  [[nodiscard]] bool takes(std::uint8_t place) const;
  // `arguments` by place; null allowed if takes() is false. Requires the GIL.
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

void keep_thread_state();

class PythonPolicy {
 public:
  // From kvlab/policies.py. Requires the GIL.
  explicit PythonPolicy(const nb::dict& declaration);
  ~PythonPolicy();
  PythonPolicy(const PythonPolicy&) = delete;
  PythonPolicy& operator=(const PythonPolicy&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] Card card() const { return {name_, summary_, source_}; }
  // In code_version().
  [[nodiscard]] std::string code_name() const { return "python:" + name_; }
  // Reads or describes the parameters.
  [[nodiscard]] PythonValues read(Params& p) const;
  // Decorator option. Requires the GIL.
  template <class T>
  [[nodiscard]] T option(const char* key) const {
    return nb::cast<T>(options_[key]);
  }

  // Takes the GIL. Python exceptions become InputError with the policy's file:line and the last traceback line; TracebackListeners get the
  // whole.
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
  // Throws InputError with the policy's file:line.
  [[noreturn]] void fail(const std::string& what) const;
  // A method's result. Requires the GIL.
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
  std::map<std::string, std::vector<std::uint8_t>> methods_;  // name -> places of arguments
  nb::dict options_;
  nb::object make_;  // called with parameter values
};
using PolicyPtr = std::shared_ptr<const PythonPolicy>;

// Per run. Any thread may destroy it.
class PythonInstance {
 public:
  PythonInstance(PolicyPtr policy, const PythonValues& values);
  ~PythonInstance();
  PythonInstance(const PythonInstance&) = delete;
  PythonInstance& operator=(const PythonInstance&) = delete;
  // Null: not in the class.
  [[nodiscard]] const PythonMethod* method(const std::string& name) const;
  [[nodiscard]] const PythonPolicy& policy() const { return *policy_; }

 private:
  PolicyPtr policy_;
  std::map<std::string, PythonMethod> methods_;
};

// Replaces a Python policy of that name.
template <class Interface, class Wrapper>
void add_to_registry(const PolicyPtr& policy) {
  const auto make = [policy](Params& p) -> std::unique_ptr<Interface> {
    const PythonValues values = policy->read(p);
    return p.is_describing() ? nullptr : std::make_unique<Wrapper>(policy, values);
  };
  Registry<Interface>::add_running(policy->card(), make, policy->code_name());
}

void add_order(const PolicyPtr& policy);
void add_scorer(const PolicyPtr& policy);
void add_scheduler(const PolicyPtr& policy);
void add_block_cache(const PolicyPtr& policy);
void add_dispatcher(const PolicyPtr& policy);

// While one exists, `found` collects tracebacks of all threads by the first line of their messages. Constructed and destroyed with the GIL.
class TracebackListener {
 public:
  explicit TracebackListener(nb::dict found);
  ~TracebackListener();
  TracebackListener(const TracebackListener&) = delete;
  TracebackListener& operator=(const TracebackListener&) = delete;
  // Keeps the first per line. Requires the GIL.
  void add(const std::string& line, const std::string& traceback);

 private:
  nb::dict found_;
};

// At interpreter exit: policies release their Python objects.
void forget_policies();

}  // namespace kvlab
