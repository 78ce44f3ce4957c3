#include "bindings/policies/replicas.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

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

}  // namespace

nb::list lend_replicas(const FleetView& fleet, std::span<const ReplicaId> among, const LeasePtr& lease) {
  nb::list all;
  for (const ReplicaId id : among) all.append(nb::cast(LentReplica(fleet, id, lease)));
  return all;
}

bool is_replica(nb::handle object) { return nb::isinstance<LentReplica>(object); }

ReplicaId replica_of(nb::handle replica) { return nb::cast<LentReplica&>(replica).id(); }

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

}  // namespace kvlab
