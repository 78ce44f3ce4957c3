#include "policies/dispatcher/dispatcher.h"

#include <fmt/format.h>

#include <algorithm>

#include "bindings/policies/replicas.h"
#include "bindings/policies/requests.h"

namespace kvlab {

namespace {

class PythonDispatcher final : public Dispatcher {
 public:
  PythonDispatcher(const PolicyPtr& policy, const PythonValues& values)
      : python_(policy, values), route_(*python_.method("route")), on_leave_(python_.method("on_leave")) {}

  Placement place(const Ask& ask, const FleetView& fleet) override {
    return python_.policy().call([&] {
      const Lending lending(*lender_.lease());
      const nb::list replicas = lend_replicas(fleet, ask.among, lender_.lease());
      const nb::handle request = lender_.lend(PythonRequest(lender_.lease(), ask.request));
      const nb::object stage = nb::cast(ask.stage == Stage::kPrefill ? "prefill" : "decode");
      return Placement::send(chosen(route_(request, replicas, nb::cast(to_s(fleet.now() - kStart)), stage), ask));
    });
  }
  void on_leave(const RequestRecord& request) override {
    if (on_leave_ == nullptr) return;
    python_.policy().call([&] {
      const Lending lending(*lender_.lease());
      (*on_leave_)(lender_.lend(PythonRequest(lender_.lease(), request)));
    });
  }

 private:
  [[nodiscard]] ReplicaId chosen(const nb::object& returned, const Ask& ask) const {
    const auto number = static_cast<std::int64_t>(is_replica(returned) ? index(replica_of(returned))
                                                                       : python_.policy().integer("route(), if no replica,", returned));
    const auto found = std::find_if(ask.among.begin(), ask.among.end(), [&](ReplicaId replica) { return index(replica) == number; });
    if (found == ask.among.end())
      python_.policy().fail(fmt::format("route() returned replica {}, which is none of those that it may choose from", number));
    return *found;
  }

  PythonInstance python_;
  const PythonMethod& route_;
  const PythonMethod* on_leave_;  // null: the class has none
  mutable Lender lender_;
};

}  // namespace

void add_dispatcher(const PolicyPtr& policy) { add_to_registry<Dispatcher, PythonDispatcher>(policy); }

}  // namespace kvlab
