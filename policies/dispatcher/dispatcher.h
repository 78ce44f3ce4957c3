#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/picoseconds.h"
#include "base/registry.h"
#include "policies/request.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

// A request passes these stages, each on one replica; the second begins when the first has emitted the first token.
enum class Stage : std::uint8_t { kPrefill, kDecode };

// Stages that a replica takes.
struct Roles {
  bool prefill = true, decode = true;
  [[nodiscard]] bool takes(Stage stage) const { return stage == Stage::kPrefill ? prefill : decode; }
  bool operator==(const Roles&) const = default;
};

// The load of one replica at this instant, all of its ranks together.
struct ReplicaLoad {
  std::int64_t waiting = 0;             // requests queued or about to be
  std::int64_t running = 0;             // requests admitted
  std::int64_t outstanding_tokens = 0;  // prompt tokens still to compute, of all of them
  std::int64_t used_blocks = 0;         // referenced blocks
  std::int64_t num_blocks = 0;
};

// The replicas of a run as a dispatcher sees them.
class FleetView {
 public:
  virtual ~FleetView() = default;
  [[nodiscard]] virtual Time now() const = 0;
  // In all pools. Replicas are numbered consecutively, pool by pool.
  [[nodiscard]] virtual std::uint32_t num_replicas() const = 0;
  [[nodiscard]] virtual Roles roles(ReplicaId replica) const = 0;
  // Requests that were asked for at this stage before: the key of random draws.
  [[nodiscard]] virtual std::uint64_t num_asked() const = 0;
  [[nodiscard]] virtual ReplicaLoad load(ReplicaId replica) const = 0;
  // Tokens of the request asked for that this replica's prefix cache holds now.
  [[nodiscard]] virtual std::int64_t cached_tokens(ReplicaId replica) const = 0;
  // The replica keeps prompts in its CPU memory.
  [[nodiscard]] virtual bool has_store(ReplicaId /*replica*/) const { return false; }
  // Tokens of the prompt asked for, from its start, that the store in this replica's CPU memory holds now.
  [[nodiscard]] virtual std::int64_t stored_tokens(ReplicaId /*replica*/) const { return 0; }
  // Seconds until `tokens` tokens of KV from the store of `from` would be on `to`, if their transfer began now.
  [[nodiscard]] virtual double fetch_seconds(ReplicaId /*from*/, ReplicaId /*to*/, std::int64_t /*tokens*/) const { return 0; }
  // Output tokens that the experiment's predictor expects of the request asked for, at least 1.
  [[nodiscard]] virtual std::int32_t predicted_tokens() const = 0;
  [[nodiscard]] virtual std::uint32_t num_ranks(ReplicaId /*replica*/) const { return 1; }
  // Queues and memory of one rank. Requests that have come since its latest plan are in load() alone.
  [[nodiscard]] virtual const ReplicaView& view(ReplicaId replica, std::uint32_t rank) const = 0;
  // Blocks that a request of this number of tokens holds there, without hits.
  [[nodiscard]] virtual std::int64_t blocks_for(ReplicaId replica, std::int32_t tokens) const = 0;
  // Blocks that the queued requests of a replica will take to begin their stage. O(queued requests).
  [[nodiscard]] virtual std::int64_t queued_blocks(ReplicaId replica) const = 0;
  // Seconds of a step that computes `tokens` prompt tokens on top of `kv_before`, alone; 0: the host does not know.
  [[nodiscard]] virtual double prefill_seconds(ReplicaId replica, std::int64_t tokens, std::int64_t kv_before) const = 0;
  // Seconds of a decode step of `rows` requests that hold `kv_tokens` in all; 0: the host does not know.
  [[nodiscard]] virtual double decode_seconds(ReplicaId replica, std::int64_t rows, std::int64_t kv_tokens) const = 0;
};

// A request needs a replica for its next stage.
struct Ask {
  Stage stage{};
  const RequestRecord& request;
  std::span<const ReplicaId> among;  // replicas that take the stage now, ascending; at least one
  ReplicaId from = kNoReplica;       // kDecode: holds its KV
};

// The answer.
struct Placement {
  enum class Kind : std::uint8_t { kSend, kHold, kReject };
  Kind kind = Kind::kSend;
  ReplicaId replica = kNoReplica;
  bool is_whole = false;              // kSend at kPrefill: the replica decodes the request as well, whatever its roles
  const char* reason = nullptr;       // kReject
  ReplicaId fetch_from = kNoReplica;  // kSend at kPrefill: tokens that the store there has, and `replica` lacks, come from it

  // To any replica, `among` or not. kDecode on `from` itself moves nothing.
  static Placement send(ReplicaId replica) { return {Kind::kSend, replica, false, nullptr, kNoReplica}; }
  static Placement send_whole(ReplicaId replica) { return {Kind::kSend, replica, true, nullptr, kNoReplica}; }
  // At kPrefill; the request waits for the tokens as for memory, while other requests continue.
  static Placement send_fetching(ReplicaId replica, ReplicaId from) { return {Kind::kSend, replica, false, nullptr, from}; }
  // Asked again after the next step of `replica`, first come, first served; kNoReplica: of any replica that takes the stage. A request held
  // at kDecode keeps its memory on `from`.
  static Placement hold(ReplicaId replica = kNoReplica) { return {Kind::kHold, replica, false, nullptr, kNoReplica}; }
  static Placement reject(const char* reason) { return {Kind::kReject, kNoReplica, false, reason, kNoReplica}; }
};

// Images of a request are to be encoded, before its prefill.
struct ImageAsk {
  const RequestRecord& request;
  std::int32_t images = 1;
  std::span<const std::int64_t> waiting;  // of each encode replica: images that it has and has not encoded; at least one replica
};

// Lets a dispatcher change roles.
class FleetControl {
 public:
  virtual ~FleetControl() = default;
  // The replica is drained: it is among no stage's replicas until it has no request left, and then takes these. Schedulers of replicas that
  // change roles must take both stages; the experiment's reader checks this where changes_roles() is true.
  virtual void change_roles(ReplicaId replica, Roles roles) = 0;
};

// Chooses the replica of each stage of a request.
class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  virtual Placement place(const Ask& ask, const FleetView& fleet) = 0;
  // If there are encode replicas: gives each a number of the request's images. `share` has a 0 for each. By default the replica with the
  // fewest images gets all of them, the first of these if there are several.
  virtual void place_images(const ImageAsk& ask, std::vector<std::int32_t>& share) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < ask.waiting.size(); ++i)
      if (ask.waiting[i] < ask.waiting[best]) best = i;
    share[best] = ask.images;
  }
  // False: the choice does not look at the fleet's load, so hosts need not bring every replica up to this instant.
  [[nodiscard]] virtual bool reads_load() const { return true; }
  // Draws by the seed, so that runs with different seeds differ.
  [[nodiscard]] virtual bool is_random() const { return false; }
  virtual void set_seed(std::uint64_t /*seed*/) {}
  // Replicas may come to take a stage that is not theirs: they change their roles, or get requests beyond their roles. Their
  // schedulers must be able to take both stages.
  [[nodiscard]] virtual bool changes_roles() const { return false; }
  // Time between two calls of on_timer(); 0: it is never called.
  [[nodiscard]] virtual Span period() const { return Span{0}; }
  virtual void on_timer(const FleetView& /*fleet*/, FleetControl& /*control*/) {}
  // The request is over: completed, or rejected by a replica or by place().
  virtual void on_leave(const RequestRecord& /*request*/) {}
};

using DispatcherRegistry = Registry<Dispatcher>;

}  // namespace kvlab
