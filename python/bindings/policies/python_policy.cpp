#include "bindings/policies/python_policy.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "app/runs/kinds/run_kind.h"
#include "app/runs/sweep/progress.h"
#include "base/error.h"

namespace kvlab {

namespace {

// Never destroyed: registries end in unknown order.
std::set<PythonPolicy*>& all_policies() {
  static auto* const all = new std::set<PythonPolicy*>();
  return *all;
}

constexpr std::size_t kMostTracebacks = 100;  // a sweep may fail in every run

// Guarded by the GIL.
std::set<TracebackListener*>& traceback_listeners() {
  static auto* const all = new std::set<TracebackListener*>();
  return *all;
}

// At most kMost characters.
std::string shown(nb::handle value) {
  constexpr std::size_t kMost = 100;
  const std::string text = nb::repr(value).c_str();
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

// With source lines.
std::string traceback_text(const nb::python_error& error) {
  const nb::object traceback = nb::borrow(error.traceback());
  const nb::object lines = nb::module_::import_("traceback")
                               .attr("format_exception")(error.type(), error.value(), traceback.is_valid() ? traceback : nb::none());
  return nb::cast<std::string>(nb::str("").attr("join")(lines));
}

PythonValue value_of(nb::handle object) {
  if (PyBool_Check(object.ptr())) return nb::cast<bool>(object);
  if (PyLong_Check(object.ptr())) return nb::cast<std::int64_t>(object);
  if (PyFloat_Check(object.ptr())) return nb::cast<double>(object);
  return nb::cast<std::string>(object);
}

PythonParam param_of(const nb::dict& d) {
  PythonParam param{nb::cast<std::string>(d["key"]), nb::cast<std::string>(d["meaning"]), value_of(d["value"]),
                    nb::cast<bool>(d["required"]),   nb::cast<double>(d["min"]),          nb::cast<double>(d["max"])};
  return param;
}

nb::object python_of(const PythonValue& value) {
  return std::visit([](const auto& v) { return nb::cast(v); }, value);
}

// As its default's type.
struct Reader {
  Params& p;
  const PythonParam& param;

  PythonValue operator()(std::int64_t fallback) const { return number(fallback); }
  PythonValue operator()(double fallback) const { return number(fallback); }
  PythonValue operator()(bool fallback) const { return p.flag(param.key, fallback, param.meaning); }
  PythonValue operator()(const std::string& fallback) const {
    return param.is_required ? p.text(param.key, param.meaning) : p.text(param.key, fallback, param.meaning);
  }

 private:
  template <class T>
  PythonValue number(T fallback) const {
    constexpr auto kMost = static_cast<double>(std::numeric_limits<T>::max());
    const T min = param.min <= -kMost ? std::numeric_limits<T>::lowest() : static_cast<T>(param.min);
    const T max = param.max >= kMost ? std::numeric_limits<T>::max() : static_cast<T>(param.max);
    if (param.is_required) return p.required<T>(param.key, min, max, param.meaning);
    return p.optional<T>(param.key, fallback, min, max, param.meaning);
  }
};

}  // namespace

bool PythonMethod::takes(std::uint8_t place) const { return std::find(places_.begin(), places_.end(), place) != places_.end(); }

nb::object PythonMethod::call(const std::array<PyObject*, kMostArguments>& arguments) const {
  std::array<PyObject*, kMostArguments> passed{};
  for (std::size_t i = 0; i < places_.size(); ++i) passed[i] = arguments[places_[i]];
  PyObject* const returned = PyObject_Vectorcall(function_.ptr(), passed.data(), places_.size(), nullptr);
  if (returned == nullptr) throw nb::python_error();
  return nb::steal(returned);
}

void keep_thread_state() {
  thread_local bool is_kept = false;
  if (is_kept) return;
  is_kept = true;
  const bool had_gil = PyGILState_Ensure() == PyGILState_LOCKED;  // never released
  if (!had_gil) PyEval_SaveThread();
}

PythonPolicy::PythonPolicy(const nb::dict& d)
    : kind_(nb::cast<std::string>(d["kind"])),
      name_(nb::cast<std::string>(d["name"])),
      summary_(nb::cast<std::string>(d["summary"])),
      source_(nb::cast<std::string>(d["source"])),
      file_(nb::cast<std::string>(d["file"])),
      line_(nb::cast<std::int64_t>(d["line"])),
      options_(nb::cast<nb::dict>(d["options"])),
      make_(d["make"]) {
  for (const nb::handle param : nb::cast<nb::list>(d["parameters"])) params_.push_back(param_of(nb::cast<nb::dict>(param)));
  for (const auto& [name, places] : nb::cast<nb::dict>(d["methods"]))
    methods_.emplace(nb::cast<std::string>(name), nb::cast<std::vector<std::uint8_t>>(places));
  all_policies().insert(this);
}

// With the GIL, or at exit after forget_policies().
PythonPolicy::~PythonPolicy() { all_policies().erase(this); }

PythonValues PythonPolicy::read(Params& p) const {
  PythonValues values;
  for (const PythonParam& param : params_) values.emplace_back(param.key, std::visit(Reader{p, param}, param.value));
  return values;
}

std::string PythonPolicy::message(const std::string& place, const std::string& what) const {
  return fmt::format("{}: {} '{}': {}", place, kind_, name_, what);
}

void PythonPolicy::fail(const std::string& what) const { throw InputError(message(fmt::format("{}:{}", file_, line_), what)); }

// The place is the innermost in the policy's file.
void PythonPolicy::fail(const nb::python_error& error) const {
  if (error.matches(PyExc_KeyboardInterrupt)) {
    stop_requested() = true;
    throw Interrupted{};
  }
  std::string place = fmt::format("{}:{}", file_, line_);
  for (nb::object at = nb::borrow(error.traceback()); at.is_valid() && !at.is_none(); at = at.attr("tb_next")) {
    const auto file = nb::cast<std::string>(at.attr("tb_frame").attr("f_code").attr("co_filename"));
    if (file == file_) place = fmt::format("{}:{}", file, nb::cast<std::int64_t>(at.attr("tb_lineno")));
  }
  const auto type = nb::cast<std::string>(nb::handle(error.type()).attr("__name__"));
  const std::string text = nb::str(error.value()).c_str();
  const std::string failed = message(place, text.empty() ? type : type + ": " + text);
  const std::string traceback = traceback_text(error);  // may run other Python threads
  for (TracebackListener* const listener : traceback_listeners()) listener->add(failed.substr(0, failed.find('\n')), traceback);
  throw InputError(failed);
}

TracebackListener::TracebackListener(nb::dict found) : found_(std::move(found)) { traceback_listeners().insert(this); }

TracebackListener::~TracebackListener() { traceback_listeners().erase(this); }

void TracebackListener::add(const std::string& line, const std::string& traceback) {
  if (found_.size() < kMostTracebacks && !found_.contains(line.c_str())) found_[line.c_str()] = traceback.c_str();
}

double PythonPolicy::number(const char* method, nb::handle returned) const {
  const double number = PyFloat_AsDouble(returned.ptr());
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    fail(fmt::format("{} must return a number, and returned {}", method, shown(returned)));
  }
  if (std::isnan(number)) fail(fmt::format("{} returned NaN", method));
  if (PyLong_Check(returned.ptr()) != 0 && !nb::float_(number).equal(returned))
    fail(
        fmt::format("{} returned {}, which no float holds: whole numbers beyond 2^53 would tie; return one modulo 2**53, or the rank of it",
                    method, nb::repr(returned).c_str()));
  return number;
}

std::int64_t PythonPolicy::integer(const char* method, nb::handle returned) const {
  const nb::object index = nb::steal(PyNumber_Index(returned.ptr()));
  if (!index.is_valid()) {
    PyErr_Clear();
    fail(fmt::format("{} must return a whole number, and returned {}", method, shown(returned)));
  }
  const std::int64_t number = PyLong_AsLongLong(index.ptr());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return number;
}

PythonInstance::PythonInstance(PolicyPtr policy, const PythonValues& values) : policy_(std::move(policy)) {
  policy_->call([&] {
    if (!policy_->make_.is_valid()) policy_->fail("the Python interpreter has ended");
    nb::dict parameters;
    for (const auto& [key, value] : values) parameters[key.c_str()] = python_of(value);
    const nb::object made = policy_->make_(**parameters);
    for (const auto& [name, places] : policy_->methods_) methods_.emplace(name, PythonMethod(made.attr(name.c_str()), places));
  });
}

PythonInstance::~PythonInstance() {
  const nb::gil_scoped_acquire gil;
  methods_.clear();
}

const PythonMethod* PythonInstance::method(const std::string& name) const {
  const auto found = methods_.find(name);
  return found == methods_.end() ? nullptr : &found->second;
}

void forget_policies() {
  for (PythonPolicy* policy : all_policies()) {
    policy->make_.reset();
    policy->options_.reset();
  }
}

}  // namespace kvlab
