#include "policies/dispatcher/room.h"

namespace kvlab {

namespace {

// Ties: the first.
template <auto kKey>
class Least final : public Dispatcher {
 public:
  explicit Least(Params&) {}
  Placement place(const Ask& ask, const FleetView& fleet) override {
    return Placement::send(least_of(ask.among, [&](ReplicaId replica) { return kKey(fleet, replica); }));
  }
};

struct UsedShare {
  std::int64_t used = 0, all = 0;
  bool operator<(const UsedShare& other) const { return used * other.all < other.used * all; }
};

// Waiting requests hold no memory.
UsedShare used_share(const FleetView& fleet, ReplicaId replica) {
  const ReplicaLoad load = fleet.load(replica);
  return {load.used_blocks, load.num_blocks};
}

// Equal tokens: fewer requests (python/sglang/srt/managers/data_parallel_controller.py, total_tokens).
std::pair<std::int64_t, std::int64_t> tokens_and_requests(const FleetView& fleet, ReplicaId replica) {
  return {fleet.total_tokens(replica), outstanding(fleet, replica)};
}

using LeastKv = Least<used_share>;
using LeastOutstanding = Least<outstanding>;
using LeastTokens = Least<tokens_and_requests>;

KVLAB_REGISTER(Dispatcher, LeastKv, "least_kv", "smallest share of KV blocks in use", "textbook: least loaded, by memory");
KVLAB_REGISTER(Dispatcher, LeastOutstanding, "least_outstanding", "fewest requests waiting or running",
               "textbook: join the shortest queue");
KVLAB_REGISTER(Dispatcher, LeastTokens, "least_tokens", "fewest tokens in KV blocks and of queued prompts",
               "SGLang: --load-balance-method total_tokens");

}  // namespace

}  // namespace kvlab
