#include "bindings/policies/requests.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>

#include "base/time.h"

namespace kvlab {

void require_lent(const LeasePtr& lease, std::uint64_t call, const char* what) {
  if (lease && lease->call == call) return;
  throw std::runtime_error(fmt::format("{} is valid only during the call that it was passed to: store the values that you need", what));
}

const Request& PythonRequest::request(const char* attribute) const {
  require_lent(lease_, call_, "a request");
  if (request_ == nullptr)
    throw nb::attribute_error(fmt::format("'{}' is not known here: only facts of the arrival are", attribute).c_str());
  if (is_arriving_)
    throw nb::attribute_error(
        fmt::format(
            "'{}' changes while a request is served, and a key without 'now' is asked once, at the arrival: write key(request, now)",
            attribute)
            .c_str());
  return *request_;
}

std::int32_t PythonRequest::predicted_tokens() const {
  require_lent(lease_, call_, "a request");
  if (predicted_tokens_ > 0) return predicted_tokens_;
  throw nb::attribute_error("'predicted_tokens' is known to orders with needs=[\"predicted_tokens\"]");
}

Lender::~Lender() {
  ++lease_->call;
  const nb::gil_scoped_acquire gil;
  object_.reset();
}

nb::handle Lender::lend(const PythonRequest& request) {
  if (object_.is_valid() && Py_REFCNT(object_.ptr()) == 1) {
    *at_ = request;
  } else {
    object_ = nb::cast(request);
    at_ = nb::inst_ptr<PythonRequest>(object_);
  }
  return object_;
}

namespace {

// None if the trace does not give it.
template <Fact fact, class Get>
auto fact_of(Get get) {
  return [get](const PythonRequest& r) {
    const RequestFacts* const facts = r.record().facts;
    using Value = decltype(get(*facts));
    return has_fact(facts, fact) ? std::optional<Value>(get(*facts)) : std::nullopt;
  };
}

void bind_facts(nb::class_<PythonRequest>& c) {
  c.def_prop_ro("client", fact_of<Fact::kClient>([](const RequestFacts& f) { return f.client; }));
  c.def_prop_ro("request_class", fact_of<Fact::kClass>([](const RequestFacts& f) { return std::string(f.request_class.text()); }));
  c.def_prop_ro("priority", fact_of<Fact::kPriority>([](const RequestFacts& f) { return f.priority; }));
  c.def_prop_ro("ttft_slo_ms", fact_of<Fact::kTtftSlo>([](const RequestFacts& f) { return to_ms(f.ttft_slo); }));
  c.def_prop_ro("tpot_slo_ms", fact_of<Fact::kTpotSlo>([](const RequestFacts& f) { return to_ms(f.tpot_slo); }));
  c.def_prop_ro("tbt_slo_ms", fact_of<Fact::kTbtSlo>([](const RequestFacts& f) { return to_ms(f.tbt_slo); }));
  c.def_prop_ro("predicted_output", fact_of<Fact::kPredictedOutput>([](const RequestFacts& f) { return f.predicted_output; }));
  c.def_prop_ro("program", fact_of<Fact::kProgram>([](const RequestFacts& f) { return f.program; }));
  c.def_prop_ro("turn", fact_of<Fact::kTurn>([](const RequestFacts& f) { return f.turn; }));
  c.def_prop_ro("images", fact_of<Fact::kImages>([](const RequestFacts& f) { return f.images; }));
}

template <auto Member>
auto changing(const char* name) {
  return [name](const PythonRequest& r) { return r.request(name).*Member; };
}

void bind_progress(nb::class_<PythonRequest>& c) {
  const auto add = [&](const char* name, auto get) { c.def_prop_ro(name, get); };
  add("output_tokens", changing<&Request::output_tokens>("output_tokens"));
  add("computed_tokens", changing<&Request::computed_tokens>("computed_tokens"));
  add("in_flight_tokens", changing<&Request::in_flight_tokens>("in_flight_tokens"));
  add("in_flight_steps", changing<&Request::in_flight_steps>("in_flight_steps"));
  add("preemptions", changing<&Request::preemptions>("preemptions"));
  add("is_running", changing<&Request::is_running>("is_running"));
  add("is_swapped", changing<&Request::is_swapped>("is_swapped"));
  add("is_parked", changing<&Request::is_parked>("is_parked"));
  add("known_tokens", [](const PythonRequest& r) { return r.request("known_tokens").known_tokens(); });
  add("is_prefilling", [](const PythonRequest& r) { return r.request("is_prefilling").is_prefilling(); });
}

}  // namespace

void bind_requests(nb::module_& m) {
  nb::class_<PythonRequest> c(m, "Request", "A request during one call of a policy.");
  c.def_prop_ro("number", [](const PythonRequest& r) { return r.record().number; });
  c.def_prop_ro("session", [](const PythonRequest& r) { return r.record().session; });
  c.def_prop_ro("arrival", [](const PythonRequest& r) { return to_s(r.record().arrival - kStart); });
  c.def_prop_ro("prompt_tokens", [](const PythonRequest& r) { return r.record().prompt_tokens; });
  c.def_prop_ro("predicted_tokens", &PythonRequest::predicted_tokens);
  c.def("__eq__",
        [](const PythonRequest& a, nb::handle b) { return nb::isinstance<PythonRequest>(b) && a == nb::cast<PythonRequest&>(b); });
  c.def("__hash__", [](const PythonRequest& r) { return r.record().number; });
  c.def("__repr__", [](const PythonRequest& r) { return fmt::format("<request {}>", r.record().number); });
  bind_facts(c);
  bind_progress(c);
}

}  // namespace kvlab
