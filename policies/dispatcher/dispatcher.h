#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/config/registry.h"
#include "base/ids.h"
#include "base/picoseconds.h"
#include "policies/request.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

// Each stage runs on one replica; kDecode begins after the first token.
enum class Stage : std::uint8_t { kPrefill, kDecode };

struct Roles {
  bool prefill = true, decode = true;
  [[nodiscard]] bool takes(Stage stage) const { return stage == Stage::kPrefill ? prefill : decode; }
  bool operator==(const Roles&) const = default;
};

// All ranks together.
struct ReplicaLoad {
  std::int64_t waiting = 0;  // queued or about to be
  std::int64_t running = 0;
  std::int64_t outstanding_tokens = 0;
  std::int64_t used_blocks = 0;
  std::int64_t num_blocks = 0;
};

// "The request" is the one being placed.
class FleetView {
 public:
  virtual ~FleetView() = default;
  [[nodiscard]] virtual Time now() const = 0;
  // In all pools, numbered pool by pool.
  [[nodiscard]] virtual std::uint32_t num_replicas() const = 0;
  [[nodiscard]] virtual Roles roles(ReplicaId replica) const = 0;
  // Requests placed at this stage before: the key of draws.
  [[nodiscard]] virtual std::uint64_t num_asked() const = 0;
  [[nodiscard]] virtual ReplicaLoad load(ReplicaId replica) const = 0;
  // Tokens in held KV blocks plus uncomputed tokens of queued prompts.
  [[nodiscard]] virtual std::int64_t total_tokens(ReplicaId /*replica*/) const { return 0; }
  [[nodiscard]] virtual std::int64_t cached_tokens(ReplicaId replica) const = 0;
  // Prompts, in CPU memory.
  [[nodiscard]] virtual bool has_store(ReplicaId /*replica*/) const { return false; }
  // Leading tokens of the prompt.
  [[nodiscard]] virtual std::int64_t stored_tokens(ReplicaId /*replica*/) const { return 0; }
  // From the store of `from` to `to`, starting now.
  [[nodiscard]] virtual double fetch_seconds(ReplicaId /*from*/, ReplicaId /*to*/, std::int64_t /*tokens*/) const { return 0; }
  // At least 1.
  [[nodiscard]] virtual std::int32_t predicted_tokens() const = 0;
  [[nodiscard]] virtual std::uint32_t num_ranks(ReplicaId /*replica*/) const { return 1; }
  // Requests since the rank's latest plan are in load() only.
  [[nodiscard]] virtual const ReplicaView& view(ReplicaId replica, std::uint32_t rank) const = 0;
  // Without hits.
  [[nodiscard]] virtual std::int64_t blocks_for(ReplicaId replica, std::int32_t tokens) const = 0;
  // To begin their stage. O(queued requests).
  [[nodiscard]] virtual std::int64_t queued_blocks(ReplicaId replica) const = 0;
  // `tokens` prompt tokens after `kv_before`; 0: unknown.
  [[nodiscard]] virtual double prefill_seconds(ReplicaId replica, std::int64_t tokens, std::int64_t kv_before) const = 0;
  // `rows` requests with `kv_tokens` in total; 0: unknown.
  [[nodiscard]] virtual double decode_seconds(ReplicaId replica, std::int64_t rows, std::int64_t kv_tokens) const = 0;
};

struct Ask {
  Stage stage{};
  const RequestRecord& request;
  std::span<const ReplicaId> among;  // takers of the stage, ascending; not empty
  ReplicaId from = kNoReplica;       // kDecode: holds its KV
};

struct Placement {
  enum class Kind : std::uint8_t { kSend, kHold, kReject };
  Kind kind = Kind::kSend;
  ReplicaId replica = kNoReplica;
  bool is_whole = false;              // kSend at kPrefill: the replica also decodes
  const char* reason = nullptr;       // kReject
  ReplicaId fetch_from = kNoReplica;  // kSend at kPrefill: its store has tokens that `replica` lacks

  // To any replica. kDecode on `from` moves nothing.
  static Placement send(ReplicaId replica) { return {Kind::kSend, replica, false, nullptr, kNoReplica}; }
  static Placement send_whole(ReplicaId replica) { return {Kind::kSend, replica, true, nullptr, kNoReplica}; }
  // At kPrefill; the request waits for the tokens.
  static Placement send_fetching(ReplicaId replica, ReplicaId from) { return {Kind::kSend, replica, false, nullptr, from}; }
  // Asked again, FIFO, after the next step of `replica`; kNoReplica: of any that takes the stage. At kDecode the request keeps its memory.
  static Placement hold(ReplicaId replica = kNoReplica) { return {Kind::kHold, replica, false, nullptr, kNoReplica}; }
  static Placement reject(const char* reason) { return {Kind::kReject, kNoReplica, false, reason, kNoReplica}; }
};

struct ImageAsk {
  const RequestRecord& request;
  std::int32_t images = 1;
  std::span<const std::int64_t> waiting;  // unencoded, per encode replica; not empty
};

class FleetControl {
 public:
  virtual ~FleetControl() = default;
  // Drains the replica, then it takes `roles`. Its scheduler must take both stages.
  virtual void change_roles(ReplicaId replica, Roles roles) = 0;
};

class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  virtual Placement place(const Ask& ask, const FleetView& fleet) = 0;
  // Divides images among encode replicas; `share` is all 0 on entry. Default: all to the first replica with the fewest.
  virtual void place_images(const ImageAsk& ask, std::vector<std::int32_t>& share) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < ask.waiting.size(); ++i)
      if (ask.waiting[i] < ask.waiting[best]) best = i;
    share[best] = ask.images;
  }
  // False: hosts need not bring every replica up to now.
  [[nodiscard]] virtual bool reads_load() const { return true; }
  [[nodiscard]] virtual bool is_random() const { return false; }
  virtual void set_seed(std::uint64_t /*seed*/) {}
  // Replicas may take a stage outside their roles; schedulers must take both.
  [[nodiscard]] virtual bool changes_roles() const { return false; }
  // Time between calls of on_timer(); 0: never.
  [[nodiscard]] virtual Span period() const { return Span{0}; }
  virtual void on_timer(const FleetView& /*fleet*/, FleetControl& /*control*/) {}
  // Completed or rejected.
  virtual void on_leave(const RequestRecord& /*request*/) {}
};

using DispatcherRegistry = Registry<Dispatcher>;

}  // namespace kvlab
