#include "policies/dispatcher/room.h"

namespace kvlab {

namespace {

// Ties: fewer requests, then the first (python/sglang/srt/managers/data_parallel_controller.py, total_tokens).
class LeastTokens final : public Dispatcher {
 public:
  explicit LeastTokens(Params&) {}
  Placement place(const Ask& ask, const FleetView& fleet) override {
    return Placement::send(least_of(ask.among, [&](ReplicaId replica) {
      return std::pair{fleet.total_tokens(replica), outstanding(fleet, replica)};
    }));
  }
};

KVLAB_REGISTER(Dispatcher, LeastTokens, "least_tokens", "fewest tokens in KV blocks and of queued prompts",
               "SGLang: --load-balance-method total_tokens");

}  // namespace

}  // namespace kvlab
