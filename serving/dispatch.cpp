#include "serving/dispatch.h"

#include <algorithm>
#include <numeric>

#include "base/ceil_div.h"
#include "base/error.h"
#include "serving/needed_facts.h"

namespace kvlab {

Dispatch::Dispatch(const HostSetup& setup, Replicas& replicas, const Transfers& transfers)
    : setup_(setup),
      replicas_(replicas),
      transfers_(transfers),
      dispatcher_(setup.make_dispatcher()),
      predictor_(make_predictor(setup, setup.pool(0))),
      coming_(replicas.num_replicas()) {
  dispatcher_->set_seed(setup.seed);
  needed_facts_ = predictor_->needs();
  for (std::uint32_t i = 0; i < replicas.num_replicas(); ++i) roles_.push_back(setup.pool(replicas.place(ReplicaId{i}).pool).roles);
  list_replicas();
}

void Dispatch::list_replicas() {
  for (const Stage stage : {Stage::kPrefill, Stage::kDecode}) {
    std::vector<ReplicaId>& among = among_[static_cast<std::size_t>(stage)];
    among.clear();
    for (std::uint32_t i = 0; i < num_replicas(); ++i)
      if (roles_[i].takes(stage) && !coming_[i]) among.push_back(ReplicaId{i});
  }
}

Placement Dispatch::ask(const Question& question, Time now) {
  now_ = now;
  question_ = &question;
  settle_roles();
  const std::vector<ReplicaId>& candidates = among(question.stage);
  if (candidates.empty()) return Placement::hold();  // all change their roles
  const Placement placement = dispatcher_->place({question.stage, question.record, candidates, question.from}, *this);
  const bool needs_replica = placement.kind == Placement::Kind::kSend;
  if (placement.fetch_from != kNoReplica && index(placement.fetch_from) >= num_replicas())
    throw InternalError("the dispatcher fetches from a replica that does not exist");
  if (needs_replica ? index(placement.replica) >= num_replicas()
                    : placement.replica != kNoReplica && index(placement.replica) >= num_replicas())
    throw InternalError("the dispatcher chose a replica that does not exist");
  return placement;
}

const std::vector<std::int32_t>& Dispatch::share_images(const ImageAsk& ask) {
  image_share_.assign(ask.waiting.size(), 0);
  dispatcher_->place_images(ask, image_share_);
  const bool is_below_0 = std::any_of(image_share_.begin(), image_share_.end(), [](std::int32_t images) { return images < 0; });
  if (is_below_0 || std::accumulate(image_share_.begin(), image_share_.end(), std::int64_t{0}) != ask.images)
    throw InternalError("the dispatcher gave the encode replicas other images than the request has");
  return image_share_;
}

void Dispatch::on_timer(Time now) {
  now_ = now;
  dispatcher_->on_timer(*this, *this);
}

void Dispatch::change_roles(ReplicaId replica, Roles roles) {
  if (!dispatcher_->changes_roles()) throw InternalError("this dispatcher said that it changes no roles");
  num_coming_ += coming_[index(replica)] ? 0 : 1;
  coming_[index(replica)] = roles;
  list_replicas();
}

// After draining.
void Dispatch::settle_roles() {
  if (num_coming_ == 0) return;
  for (std::uint32_t i = 0; i < num_replicas(); ++i) {
    if (!coming_[i] || !replicas_.is_empty(ReplicaId{i})) continue;
    roles_[i] = *coming_[i];
    coming_[i].reset();
    --num_coming_;
  }
  list_replicas();
}

std::int64_t Dispatch::cached_tokens(ReplicaId replica) const {
  return replicas_.state(replicas_.choose_rank(replica)).memory().cached_tokens(question_->content);
}

std::int64_t Dispatch::stored_tokens(ReplicaId replica) const {
  const NodeStore* const store = replicas_.store(replica);
  return store == nullptr ? 0 : store->leading_blocks(question_->content) * store->block_tokens();
}

double Dispatch::fetch_seconds(ReplicaId from, ReplicaId to, std::int64_t tokens) const {
  const MemorySetup& memory = setup_.pool(replicas_.place(to).pool).memory;
  const std::int64_t bytes = ceil_div(tokens, memory.block_tokens) * memory.block_bytes;
  const std::int64_t calls = setup_.store.is_on() ? ceil_div(tokens, setup_.store.block_tokens) : 0;
  return transfers_.seconds(index(from), index(to), bytes, calls, to_ps(now_ - kStart));
}

void Dispatch::on_leave(const RequestRecord& record) {
  dispatcher_->on_leave(record);
  if (record.outcome != Outcome::kCompleted) return;
  for (const Fact fact : needed_facts_)
    if (!has_fact(record.facts, fact)) return;
  Request request;
  static_cast<RequestRecord&>(request) = record;
  request.output_limit = record.output_tokens;
  predictor_->on_finish(request);
}

std::int32_t Dispatch::predicted_tokens() const {
  require_facts(question_->record.number, question_->record.facts, needed_facts_, "the dispatcher's predictor");
  Request request;
  static_cast<RequestRecord&>(request) = question_->record;
  request.output_limit = question_->content.output_tokens;
  return predictor_->output_tokens(request);
}

const ReplicaView& Dispatch::view(ReplicaId replica, std::uint32_t rank) const {
  return replicas_.state(replicas_.place(replica).first_rank + rank);
}

std::int64_t Dispatch::blocks_for(ReplicaId replica, std::int32_t tokens) const {
  return replicas_.state(replicas_.place(replica).first_rank).memory().blocks_for(tokens);
}

std::int64_t Dispatch::queued_blocks(ReplicaId replica) const {
  const Replicas::Place& its = replicas_.place(replica);
  std::int64_t blocks = 0;
  for (std::uint32_t rank = its.first_rank; rank < its.first_rank + its.ranks; ++rank) {
    const ReplicaState& state = replicas_.state(rank);
    const auto add = [&](RequestId r) {
      const Request& request = state.table()[r];
      if (!request.is_parked) blocks += state.memory().blocks_for(request.known_tokens());
    };
    for (const RequestId r : state.queues().input()) add(r);
    for (std::uint32_t i = 0; i < state.queues().num_waiting(); ++i) add(state.queues().waiting(i));
  }
  return blocks;
}

Device& Dispatch::first_device(ReplicaId replica) const {
  const std::uint32_t rank = replicas_.place(replica).first_rank;
  return *replicas_.unit(rank).rank(rank).device;
}

double Dispatch::prefill_seconds(ReplicaId replica, std::int64_t tokens, std::int64_t kv_before) const {
  return first_device(replica).prefill_seconds(tokens, kv_before);
}

double Dispatch::decode_seconds(ReplicaId replica, std::int64_t rows, std::int64_t kv_tokens) const {
  return first_device(replica).decode_seconds(rows, kv_tokens);
}

}  // namespace kvlab
