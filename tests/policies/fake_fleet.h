#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ceil_div.h"
#include "base/config/params.h"
#include "base/error.h"
#include "policies/dispatcher/dispatcher.h"

// A fleet that tests of dispatchers make up: every number is a member.
namespace kvlab {

// Queues of a replica that can be read and not changed.
class FakeQueues final : public ReplicaView {
 public:
  static constexpr std::int32_t kBlockTokens = 10;

  // A running request: it has emitted `output_tokens` and holds its prompt and these.
  void run(std::uint64_t number, std::int32_t prompt_tokens, std::int32_t output_tokens, Time first_token = kStart) {
    Request r;
    r.number = number;
    r.prompt_tokens = prompt_tokens;
    r.output_tokens = output_tokens;
    r.computed_tokens = prompt_tokens + output_tokens;
    r.first_token = first_token;
    running_.push_back(RequestId{static_cast<std::uint32_t>(requests_.size())});
    requests_.push_back(std::move(r));
  }

  [[nodiscard]] std::uint32_t num_waiting() const override { return 0; }
  [[nodiscard]] std::span<const RequestId> running() const override { return running_; }
  [[nodiscard]] const Request& info(RequestId r) const override { return requests_[index(r)]; }
  [[nodiscard]] std::int32_t block_tokens() const override { return kBlockTokens; }
  [[nodiscard]] std::int64_t blocks_for(RequestId /*r*/, std::int32_t n) const override { return ceil_div(n, kBlockTokens); }

  [[nodiscard]] Time now() const override { refuse(); }
  [[nodiscard]] RequestId waiting(std::uint32_t /*position*/) const override { refuse(); }
  [[nodiscard]] RequestId victim(RequestId /*usual*/) const override { refuse(); }
  [[nodiscard]] bool precedes(RequestId /*a*/, RequestId /*b*/) const override { refuse(); }
  [[nodiscard]] std::optional<Preemption> overtaking() const override { refuse(); }
  [[nodiscard]] bool overtakes(RequestId /*waiting*/, RequestId /*running*/) const override { refuse(); }
  [[nodiscard]] std::int32_t needed_tokens(RequestId /*r*/) const override { refuse(); }
  [[nodiscard]] std::int32_t max_model_len() const override { refuse(); }
  [[nodiscard]] std::int64_t num_blocks() const override { refuse(); }
  [[nodiscard]] std::int64_t free_blocks() const override { refuse(); }
  [[nodiscard]] std::int64_t blocks_needed(RequestId /*r*/, std::int32_t /*m*/) override { refuse(); }
  [[nodiscard]] std::int64_t peak_blocks(RequestId /*r*/) const override { refuse(); }
  std::int32_t lookup(RequestId /*r*/) override { refuse(); }
  bool try_allocate(RequestId /*r*/, std::int32_t /*m*/, std::int32_t /*ahead*/) override { refuse(); }
  bool try_hold(RequestId /*r*/, std::int32_t /*m*/, std::int32_t /*ahead*/) override { refuse(); }
  bool try_reserve(RequestId /*r*/, std::int32_t /*tokens*/) override { refuse(); }
  void admit(RequestId /*r*/) override { refuse(); }
  void preempt(RequestId /*r*/, Preemption /*mode*/, QueueEnd /*end*/) override { refuse(); }
  bool try_swap_in(RequestId /*r*/, std::int32_t /*m*/, bool /*joins*/) override { refuse(); }
  void reject(RequestId /*r*/, const char* /*reason*/) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { throw InternalError("this fake replica does not know that"); }

  std::vector<Request> requests_;
  std::vector<RequestId> running_;
};

struct FakeFleet final : FleetView {
  std::vector<ReplicaLoad> loads;  // of 100 blocks each
  std::vector<Roles> stages;
  std::vector<std::int64_t> cached, queued;
  std::vector<std::int64_t> tokens;  // empty: 0
  std::vector<std::int64_t> stored;  // empty: there is no store
  std::vector<FakeQueues> queues;
  std::uint64_t asked = 0;
  std::int32_t predicted = 1;
  Time at = kStart;
  double prefill_token_s = 0;                   // per prompt token
  std::vector<double> fetch_token_s;            // per token that comes from the store of a replica
  double decode_row_s = 0, decode_token_s = 0;  // per request and per token held
  mutable int decode_prices = 0;                // times that it was asked for

  // Replicas that take both stages.
  explicit FakeFleet(std::size_t n) : loads(n), stages(n), cached(n, 0), queued(n, 0), queues(n) {
    for (ReplicaLoad& load : loads) load.num_blocks = 100;
  }
  // Prefill replicas, then decode replicas.
  FakeFleet(std::size_t prefill, std::size_t decode) : FakeFleet(prefill + decode) {
    for (std::size_t i = 0; i < prefill + decode; ++i) stages[i] = i < prefill ? Roles{true, false} : Roles{false, true};
  }

  [[nodiscard]] Time now() const override { return at; }
  [[nodiscard]] std::uint32_t num_replicas() const override { return static_cast<std::uint32_t>(loads.size()); }
  [[nodiscard]] Roles roles(ReplicaId replica) const override { return stages[index(replica)]; }
  [[nodiscard]] std::uint64_t num_asked() const override { return asked; }
  [[nodiscard]] ReplicaLoad load(ReplicaId replica) const override { return loads[index(replica)]; }
  [[nodiscard]] std::int64_t total_tokens(ReplicaId replica) const override { return tokens.empty() ? 0 : tokens[index(replica)]; }
  [[nodiscard]] std::int64_t cached_tokens(ReplicaId replica) const override { return cached[index(replica)]; }
  [[nodiscard]] bool has_store(ReplicaId /*replica*/) const override { return !stored.empty(); }
  [[nodiscard]] std::int64_t stored_tokens(ReplicaId replica) const override { return stored.empty() ? 0 : stored[index(replica)]; }
  [[nodiscard]] double fetch_seconds(ReplicaId from, ReplicaId /*to*/, std::int64_t tokens) const override {
    return fetch_token_s.empty() ? 0 : fetch_token_s[index(from)] * static_cast<double>(tokens);
  }
  [[nodiscard]] std::int32_t predicted_tokens() const override { return predicted; }
  [[nodiscard]] const ReplicaView& view(ReplicaId replica, std::uint32_t /*rank*/) const override { return queues[index(replica)]; }
  [[nodiscard]] std::int64_t blocks_for(ReplicaId /*replica*/, std::int32_t tokens) const override {
    return ceil_div(tokens, FakeQueues::kBlockTokens);
  }
  [[nodiscard]] std::int64_t queued_blocks(ReplicaId replica) const override { return queued[index(replica)]; }
  [[nodiscard]] double prefill_seconds(ReplicaId /*replica*/, std::int64_t tokens, std::int64_t /*kv_before*/) const override {
    return prefill_token_s * static_cast<double>(tokens);
  }
  [[nodiscard]] double decode_seconds(ReplicaId /*replica*/, std::int64_t rows, std::int64_t kv_tokens) const override {
    ++decode_prices;
    return decode_row_s * static_cast<double>(rows) + decode_token_s * static_cast<double>(kv_tokens);
  }
};

// Notes the roles that were changed: "1:decode".
struct FakeControl final : FleetControl {
  std::vector<std::string> changes;
  void change_roles(ReplicaId replica, Roles roles) override {
    changes.push_back(std::to_string(index(replica)) + (roles.prefill ? ":prefill" : ":decode"));
  }
};

inline std::unique_ptr<Dispatcher> make_dispatcher(const std::string& name, const std::string& params = "{}") {
  Params p = Params::from_text(params);
  std::unique_ptr<Dispatcher> dispatcher = DispatcherRegistry::make(name, p, "dispatcher");
  dispatcher->set_seed(7);
  return dispatcher;
}

// "1", "1 from 0" (a prefix), "whole 1", "hold 1", "hold" or "reject".
inline std::string text_of(const Placement& placement) {
  const std::string replica = placement.replica == kNoReplica ? "" : std::to_string(index(placement.replica));
  if (placement.kind == Placement::Kind::kReject) return "reject";
  if (placement.kind == Placement::Kind::kHold) return replica.empty() ? "hold" : "hold " + replica;
  if (placement.fetch_from != kNoReplica) return replica + " from " + std::to_string(index(placement.fetch_from));
  return placement.is_whole ? "whole " + replica : replica;
}

// Asks for a stage of a request among the replicas that take it.
inline std::string ask(Dispatcher& dispatcher, const FakeFleet& fleet, Stage stage, std::uint64_t number, std::int32_t prompt_tokens,
                       ReplicaId from = kNoReplica) {
  RequestRecord request;
  request.number = number;
  request.prompt_tokens = prompt_tokens;
  request.output_tokens = stage == Stage::kDecode ? 1 : 0;
  std::vector<ReplicaId> among;
  for (std::uint32_t i = 0; i < fleet.num_replicas(); ++i)
    if (fleet.stages[i].takes(stage)) among.push_back(ReplicaId{i});
  return text_of(dispatcher.place({stage, request, among, from}, fleet));
}
inline std::string ask_prefill(Dispatcher& dispatcher, const FakeFleet& fleet, std::uint64_t number, std::int32_t prompt_tokens = 100) {
  return ask(dispatcher, fleet, Stage::kPrefill, number, prompt_tokens);
}
inline std::string ask_decode(Dispatcher& dispatcher, const FakeFleet& fleet, std::uint64_t number, std::int32_t prompt_tokens = 100,
                              std::uint32_t from = 0) {
  return ask(dispatcher, fleet, Stage::kDecode, number, prompt_tokens, ReplicaId{from});
}

inline void leave(Dispatcher& dispatcher, std::uint64_t number) {
  RequestRecord request;
  request.number = number;
  dispatcher.on_leave(request);
}

// A fleet and the dispatcher that it asks.
struct AskedFleet {
  FakeFleet fleet;
  std::unique_ptr<Dispatcher> dispatcher;
  FakeControl control;

  AskedFleet(FakeFleet asking, const std::string& name, const std::string& params = "{}")
      : fleet(std::move(asking)), dispatcher(make_dispatcher(name, params)) {}
  std::string prefill(std::uint64_t number, std::int32_t prompt_tokens = 100) {
    return ask_prefill(*dispatcher, fleet, number, prompt_tokens);
  }
  std::string decode(std::uint64_t number, std::int32_t prompt_tokens = 100, std::uint32_t from = 0) {
    return ask_decode(*dispatcher, fleet, number, prompt_tokens, from);
  }
  void look(Span at = Span{0}) {
    fleet.at = kStart + at;
    dispatcher->on_timer(fleet, control);
  }
};

}  // namespace kvlab
