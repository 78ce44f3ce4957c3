#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "policies/dispatcher/dispatcher.h"
#include "serving/host_setup.h"
#include "serving/replicas.h"
#include "traces/trace.h"

namespace kvlab {

// The dispatcher with its view of the run: roles, loads and the current request.
class Dispatch final : public FleetView, public FleetControl {
 public:
  // All arguments outlive the object.
  Dispatch(const HostSetup& setup, Replicas& replicas, const Transfers& transfers);

  [[nodiscard]] bool reads_load() const { return dispatcher_->reads_load(); }
  [[nodiscard]] Span period() const { return dispatcher_->period(); }

  struct Question {
    Stage stage{};
    RequestRecord record;
    TraceRequest content;  // lengths and hashes
    ReplicaId from = kNoReplica;
    std::uint64_t key = 0;  // num_asked() at its first ask, kept for repeats
  };
  std::uint64_t next_key(Stage stage) { return num_asked_[static_cast<std::size_t>(stage)]++; }
  Placement ask(const Question& question, Time now);
  // A request's images by encode replica; valid until the next call.
  const std::vector<std::int32_t>& share_images(const ImageAsk& ask);
  void on_timer(Time now);
  void on_leave(const RequestRecord& record);
  // Replicas that take the stage now.
  [[nodiscard]] const std::vector<ReplicaId>& among(Stage stage) const { return among_[static_cast<std::size_t>(stage)]; }

  // ---- FleetView ----
  [[nodiscard]] Time now() const override { return now_; }
  [[nodiscard]] std::uint32_t num_replicas() const override { return replicas_.num_replicas(); }
  [[nodiscard]] Roles roles(ReplicaId replica) const override { return roles_[index(replica)]; }
  [[nodiscard]] std::uint64_t num_asked() const override { return question_->key; }
  [[nodiscard]] ReplicaLoad load(ReplicaId replica) const override { return replicas_.load(replica); }
  [[nodiscard]] std::int64_t total_tokens(ReplicaId replica) const override { return replicas_.total_tokens(replica); }
  [[nodiscard]] std::int64_t cached_tokens(ReplicaId replica) const override;
  [[nodiscard]] bool has_store(ReplicaId replica) const override { return replicas_.store(replica) != nullptr; }
  [[nodiscard]] std::int64_t stored_tokens(ReplicaId replica) const override;
  [[nodiscard]] double fetch_seconds(ReplicaId from, ReplicaId to, std::int64_t tokens) const override;
  [[nodiscard]] std::int32_t predicted_tokens() const override;
  [[nodiscard]] std::uint32_t num_ranks(ReplicaId replica) const override { return replicas_.place(replica).ranks; }
  [[nodiscard]] const ReplicaView& view(ReplicaId replica, std::uint32_t rank) const override;
  [[nodiscard]] std::int64_t blocks_for(ReplicaId replica, std::int32_t tokens) const override;
  [[nodiscard]] std::int64_t queued_blocks(ReplicaId replica) const override;
  [[nodiscard]] double prefill_seconds(ReplicaId replica, std::int64_t tokens, std::int64_t kv_before) const override;
  [[nodiscard]] double decode_seconds(ReplicaId replica, std::int64_t rows, std::int64_t kv_tokens) const override;
  // ---- FleetControl ----
  void change_roles(ReplicaId replica, Roles roles) override;

 private:
  void list_replicas();
  void settle_roles();
  [[nodiscard]] Device& first_device(ReplicaId replica) const;

  const HostSetup& setup_;
  Replicas& replicas_;
  const Transfers& transfers_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<Predictor> predictor_;
  std::vector<Fact> needed_facts_;            // by the predictor
  std::vector<Roles> roles_;                  // by replica
  std::vector<std::optional<Roles>> coming_;  // of draining replicas
  std::uint32_t num_coming_ = 0;
  std::array<std::vector<ReplicaId>, 2> among_;
  std::array<std::uint64_t, 2> num_asked_{};
  std::vector<std::int32_t> image_share_;
  const Question* question_ = nullptr;
  Time now_{};
};

}  // namespace kvlab
