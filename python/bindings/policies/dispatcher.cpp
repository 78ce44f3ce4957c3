#include "policies/dispatcher/dispatcher.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "bindings/policies/requests.h"

namespace kvlab {

namespace {

class LentReplica {
 public:
  LentReplica(const FleetView& fleet, ReplicaId id, LeasePtr lease)
      : fleet_(&fleet), id_(id), lease_(std::move(lease)), call_(lease_->call) {}
  [[nodiscard]] const FleetView& fleet() const {
    require_lent(lease_, call_, "a replica");
    return *fleet_;
  }
  [[nodiscard]] ReplicaId id() const { return id_; }
  [[nodiscard]] ReplicaLoad load() const { return fleet().load(id_); }

 private:
  const FleetView* fleet_;
  ReplicaId id_;
  LeasePtr lease_;
  std::uint64_t call_;
};

class PythonDispatcher final : public Dispatcher {
 public:
  PythonDispatcher(const PolicyPtr& policy, const PythonValues& values)
      : python_(policy, values), route_(*python_.method("route")), on_leave_(python_.method("on_leave")) {}

  Placement place(const Ask& ask, const FleetView& fleet) override {
    return python_.policy().call([&] {
      const Lending lending(*lender_.lease());
      nb::list replicas;
      for (const ReplicaId id : ask.among) replicas.append(nb::cast(LentReplica(fleet, id, lender_.lease())));
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
    const bool is_replica = nb::isinstance<LentReplica>(returned);
    const auto number = static_cast<std::int64_t>(is_replica ? index(nb::cast<LentReplica&>(returned).id())
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

void bind_replicas(nb::module_& m) {
  using V = LentReplica;
  nb::class_<V> c(m, "Replica", "A replica during one call of a dispatcher.");
  c.def_prop_ro("number", [](const V& v) { return index(v.id()); });
  c.def_prop_ro("waiting", [](const V& v) { return v.load().waiting; });
  c.def_prop_ro("running", [](const V& v) { return v.load().running; });
  c.def_prop_ro("outstanding_tokens", [](const V& v) { return v.load().outstanding_tokens; });
  c.def_prop_ro("used_blocks", [](const V& v) { return v.load().used_blocks; });
  c.def_prop_ro("num_blocks", [](const V& v) { return v.load().num_blocks; });
  c.def_prop_ro("cached_tokens", [](const V& v) { return v.fleet().cached_tokens(v.id()); });
  c.def_prop_ro("stored_tokens", [](const V& v) { return v.fleet().stored_tokens(v.id()); });
  c.def_prop_ro("predicted_tokens", [](const V& v) { return v.fleet().predicted_tokens(); });
  c.def("blocks_for", [](const V& v, std::int32_t tokens) { return v.fleet().blocks_for(v.id(), tokens); });
  c.def("queued_blocks", [](const V& v) { return v.fleet().queued_blocks(v.id()); });
  c.def("prefill_seconds",
        [](const V& v, std::int64_t tokens, std::int64_t kv_before) { return v.fleet().prefill_seconds(v.id(), tokens, kv_before); });
  c.def("decode_seconds",
        [](const V& v, std::int64_t rows, std::int64_t kv_tokens) { return v.fleet().decode_seconds(v.id(), rows, kv_tokens); });
  c.def("__repr__", [](const V& v) { return fmt::format("<replica {}>", index(v.id())); });
}

void add_dispatcher(const PolicyPtr& policy) { add_to_registry<Dispatcher, PythonDispatcher>(policy); }

}  // namespace kvlab
