#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/ceil_div.h"
#include "base/ids.h"
#include "base/int128.h"
#include "base/picoseconds.h"
#include "policies/order/order.h"
#include "policies/predictor/predictor.h"
#include "policies/request.h"
#include "policies/scheduler/scheduler.h"
#include "serving/copies_out.h"
#include "serving/decode_group.h"
#include "serving/gap_watch.h"
#include "serving/kv_memory.h"
#include "serving/metrics.h"
#include "serving/needed_facts.h"
#include "serving/qoe.h"
#include "serving/rank_queues.h"
#include "serving/request.h"
#include "serving/step.h"
#include "serving/transit.h"
#include "serving/uniform_decode.h"
#include "traces/trace.h"

namespace kvlab {

// The KV policy's time that a request waits for. Steps of one request overlap only as prompt chunks in a pipeline; shared time counts for
// the earlier step.
class PolicyShares {
 public:
  // The part of step.policy_time after the request's step before. Call in order of outputs.
  Picoseconds take(RequestId id, const InFlightStep& step) {
    if (index(id) >= ends_.size()) ends_.resize(std::size_t{index(id)} + 1);
    const Picoseconds before = std::exchange(ends_[index(id)], step.end);
    if (before <= step.start) return step.policy_time;
    const Int128 own = (step.end - before).count(), whole = (step.end - step.start).count();
    return Picoseconds(static_cast<std::int64_t>(Int128{step.policy_time.count()} * own / whole));
  }

 private:
  std::vector<Picoseconds> ends_;  // by slot; a slot's next request starts later
};

// Images that a replica encodes itself. Their tokens are the last of a prompt.
class EncodedImages {
 public:
  // image_tokens: per image; 0: none is encoded here.
  explicit EncodedImages(std::int32_t image_tokens) : image_tokens_(image_tokens) {}
  [[nodiscard]] bool is_on() const { return image_tokens_ > 0; }

  // Marks as encoded, and counts, the images to encode before `tokens` more of r: those that begin there, and one partly in the prefix
  // cache.
  std::int32_t take(RequestId id, const Request& r, std::int32_t tokens) {
    const std::int64_t images = r.facts == nullptr ? 0 : r.facts->images;
    if (images == 0) return 0;
    if (encoded_.size() <= index(id)) encoded_.resize(index(id) + 1);
    std::int32_t& encoded = encoded_[index(id)];
    if (encoded == images) return 0;
    const std::int64_t computed = r.computed_tokens - (r.prompt_tokens - images * image_tokens_);  // of the images
    const auto within = [&](std::int64_t n) { return static_cast<std::int32_t>(std::clamp<std::int64_t>(n, 0, images)); };
    const std::int32_t before = std::max(encoded, within(computed / image_tokens_));
    encoded = std::max(before, within(ceil_div(std::max<std::int64_t>(0, computed + tokens), image_tokens_)));
    return encoded - before;
  }
  // The request is computed again, or has left its slot.
  void forget(RequestId id) {
    if (index(id) < encoded_.size()) encoded_[index(id)] = 0;
  }

 private:
  std::int64_t image_tokens_;
  std::vector<std::int32_t> encoded_;  // by slot
};

struct Departure : RequestRecord {
  double qoe = -1;  // of a completed request; below 0: not followed
};

RequestRecord arrival_record(const TraceRequest& request, Time arrival);

// Requests, queues and memory of one rank. It has no clock: hosts pass the time.
class ReplicaState final : public ReplicaView {
 public:
  // Default order: first come, first served. Default predictor: true lengths.
  ReplicaState(const ReplicaLimits& limits, std::unique_ptr<BlockPool> pool, std::unique_ptr<Footprint> footprint,
               std::unique_ptr<Order> order = nullptr, std::unique_ptr<Predictor> predictor = nullptr);

  // ---- for schedulers ----
  [[nodiscard]] Time now() const override { return now_; }
  [[nodiscard]] std::uint32_t num_waiting() const override { return queues_.num_waiting(); }
  [[nodiscard]] RequestId waiting(std::uint32_t position) const override { return queues_.waiting(position); }
  [[nodiscard]] std::span<const RequestId> running() const override { return queues_.running(); }
  [[nodiscard]] const Request& info(RequestId r) const override { return table_[r]; }
  [[nodiscard]] RequestId victim(RequestId usual) const override { return order_->victim(usual); }
  [[nodiscard]] bool precedes(RequestId a, RequestId b) const override { return order_->precedes(a, b); }
  [[nodiscard]] std::optional<Preemption> overtaking() const override { return order_->overtaking(); }
  [[nodiscard]] bool overtakes(RequestId waiting, RequestId running) const override { return order_->overtakes(waiting, running); }
  Preemption take_off(std::vector<RequestId>& off) override { return order_->take_off(off); }
  bool holds(RequestId r) override { return order_->holds(r); }
  std::int32_t predicted_output(RequestId r) override { return predictor_->output_tokens(table_[r]); }
  std::optional<Span> step_time(const StepOutline& outline) override {
    return estimate_step ? std::optional(estimate_step(outline)) : std::nullopt;
  }
  [[nodiscard]] std::int32_t needed_tokens(RequestId r) const override;
  [[nodiscard]] std::int32_t max_model_len() const override { return memory_.limits().max_model_len; }
  [[nodiscard]] std::int32_t block_tokens() const override { return memory_.limits().block_tokens; }
  [[nodiscard]] std::int64_t num_blocks() const override { return memory_.num_blocks(); }
  [[nodiscard]] std::int64_t free_blocks() const override { return memory_.free_blocks(); }
  [[nodiscard]] std::int64_t leaving_blocks() const override { return leaving_blocks_; }
  [[nodiscard]] std::int64_t num_cpu_blocks() const override { return memory_.limits().host_blocks; }
  [[nodiscard]] std::int64_t free_cpu_blocks() const override { return memory_.free_host_blocks(); }
  [[nodiscard]] std::int64_t blocks_for(RequestId /*r*/, std::int32_t n) const override { return memory_.blocks_for(n); }
  [[nodiscard]] std::int64_t blocks_needed(RequestId r, std::int32_t m) override { return memory_.blocks_needed(r, m); }
  [[nodiscard]] std::int64_t peak_blocks(RequestId r) const override { return memory_.peak_blocks(table_[r]); }
  std::int32_t lookup(RequestId r) override { return memory_.lookup(r); }
  bool try_allocate(RequestId r, std::int32_t m, std::int32_t ahead = 0) override { return memory_.try_allocate(r, m, ahead); }
  bool try_hold(RequestId r, std::int32_t m, std::int32_t ahead = 0) override { return memory_.try_allocate(r, m, ahead, false); }
  std::size_t plan_decodes(StepPlan& plan, std::int32_t most) override { return decodes_.plan(plan, most); }
  bool try_reserve(RequestId r, std::int32_t tokens) override { return memory_.try_reserve(table_[r], tokens); }
  void admit(RequestId r) override;
  void preempt(RequestId r, Preemption mode, QueueEnd end) override;
  void put_away(RequestId r, Preemption mode) override;
  bool try_swap_in(RequestId r, std::int32_t m, bool joins = false) override;
  void reject(RequestId r, const char* reason) override;

  // ---- for hosts ----
  // A request enters the input queue; if it exceeds max_model_len or the memory, it goes to the outbox as rejected. Its hashes and facts
  // stay valid until it leaves. Throws InputError if a fact is missing that the order or the predictor needs.
  // prefill_only: with more than one token to emit, it becomes an export after the first.
  // stores: asked for its first tokens whenever a scheduler takes it with nothing computed.
  void receive(const TraceRequest& request, Time arrival, bool prefill_only = false, const std::optional<PromptStores>& stores = {});
  // Before plan(): moves the input queue into the waiting queue.
  void begin_plan(Time now);
  // After plan(): advances computed tokens and completes the step's entries.
  void commit(InFlightStep& step);
  // Emissions, finishes (to the outbox), publications, returned blocks.
  void process_output(const InFlightStep& step, Picoseconds at, LogHistogram& itl);
  // The copy of a parked r has ended: it is back, or (Preemption::kSwapAhead) gone.
  void finish_swap_in(RequestId r, Time at);
  std::function<Span(const StepOutline&)> estimate_step;  // empty: no estimate
  // Time until all of these copies to the GPU, started at `now`, end; empty: no estimate.
  std::function<Span(std::span<const SwapCopy> copies, Time now)> estimate_copies_in;
  // ---- between replicas (replica_state_transit.cpp) ----
  // KV is on another rank: the request waits as if swapped out. False: it could never run here and goes to the outbox.
  bool receive_import(const Request& from, KvOffer offer, Time at);
  // An export continues here; rejected if its output does not fit.
  void rejoin(RequestId r, Time at);
  void release_export(RequestId r);
  // To the outbox.
  void refuse_export(RequestId r, Time at, const char* reason);
  [[nodiscard]] Transits& transits() { return transits_; }
  [[nodiscard]] const Transits& transits() const { return transits_; }
  std::vector<Departure>& outbox() { return outbox_; }
  // Free slots, of requests that finished or that a plan rejected.
  std::vector<RequestId>& left() { return left_; }
  std::vector<SwapCopy>& swap_copies() { return swap_copies_; }
  // Prompt copies to the store; each needs KvMemory::end_write().
  std::vector<SwapCopy>& store_copies() { return store_copies_; }
  // Copies that run during steps; the host begins them.
  CopiesOut& copies_out() { return copies_out_; }
  [[nodiscard]] const CopiesOut& copies_out() const { return copies_out_; }
  std::vector<EventRecord>* events = nullptr;  // null: not recorded

  void drain(std::vector<RequestRecord>& unfinished) const;

  // The latest plan moved no request and began no copy: the next plan may repeat it.
  [[nodiscard]] bool plan_was_quiet() const { return plan_was_quiet_; }
  [[nodiscard]] bool plan_preempted() const { return plan_preempted_; }
  // Plans that the order need not see.
  [[nodiscard]] Horizon order_is_stable_for() const;
  [[nodiscard]] const SlotTable& table() const { return table_; }
  [[nodiscard]] const RankQueues& queues() const { return queues_; }
  [[nodiscard]] KvMemory& memory() { return memory_; }
  [[nodiscard]] const KvMemory& memory() const { return memory_; }
  [[nodiscard]] const BlockPool& pool() const { return memory_.pool(); }
  [[nodiscard]] std::int64_t used_blocks() const { return num_blocks() - free_blocks(); }

  struct Counters {
    std::uint64_t preemptions = 0, swaps = 0, recompute_fallbacks = 0;
    std::uint64_t over_budget = 0;  // more always-kept prompt tokens than the KV policy's budget
    std::int64_t recomputed_tokens = 0, lookup_tokens = 0, hit_tokens = 0, prompt_tokens = 0, output_tokens = 0;
  };
  // Hits and preemptions only with Request::is_counted.
  [[nodiscard]] const Counters& counters() const { return counters_; }

  // Fast-forward; emit_uniform() delivers its tokens.
  [[nodiscard]] UniformDecode& uniform() { return uniform_; }
  void emit_uniform(std::int64_t iterations, Picoseconds first_at, Picoseconds last_at, StepRing& steps, LogHistogram& itl);
  [[nodiscard]] const DecodeGroup& decodes() const { return decodes_; }
  void add_policy_time(Picoseconds time);
  [[nodiscard]] bool watches_tokens() const { return watches_tokens_; }
  // Before emit_uniform() if watches_tokens(): the token of `first_at`, and the gaps after it.
  void note_uniform_tokens(Picoseconds first_at, const StretchGaps& gaps);

  // Conservation laws. Throws InternalError. O(requests + blocks).
  void check() const;

 private:
  bool commit_entry(InFlightStep& step, std::size_t place);
  void commit_rows(InFlightStep& step);
  void process_entry(const InFlightStep& step, const StepEntry& entry, Picoseconds at, HistogramRun& gaps);
  void process_rows(const InFlightStep& step, Picoseconds at, Picoseconds gap, HistogramRun& gaps, LogHistogram& itl);
  void leave(RequestId id, Outcome outcome, Time at, const char* reason = nullptr);
  bool try_import(RequestId id, std::int32_t m, KvOffer& offer);
  bool take_stored(RequestId id, std::int32_t m);
  void store_prompt(const Request& r);
  void hand_over(RequestId id);
  void forget_computed(RequestId id);
  void finish(RequestId id);
  void note(RequestEvent event, const Request& r, Time at);
  void deliver(Request& r, Picoseconds at, HistogramRun& gaps);
  // For a received request with its output_limit, and at most one delivered token.
  void watch(RequestId id);
  void note_token(RequestId id, Picoseconds at);

  void vacate(RequestId id, Preemption mode);
  [[nodiscard]] bool waits_for(const SwapCopy& copy);
  void bring_in(RequestId id, Time at);
  bool charge_copies(InFlightStep& step);
  [[nodiscard]] bool can_leave_later(RequestId id) const;
  void check_content(const TraceRequest& request) const;

  SlotTable table_;
  std::unique_ptr<Order> order_;
  std::unique_ptr<Predictor> predictor_;
  std::vector<Fact> needed_facts_;
  bool order_watches_steps_;
  bool uses_predictor_;
  RankQueues queues_;
  KvMemory memory_;
  DecodeGroup decodes_;
  UniformDecode uniform_;
  Transits transits_;
  GapWatch gaps_;
  QoeWatch qoe_;
  EncodedImages images_;
  PolicyShares policy_shares_;
  bool watches_tokens_ = false;  // gaps_ or qoe_ is on
  bool groups_decodes_;
  bool plans_over_unknown_;
  std::vector<Departure> outbox_;
  std::vector<RequestId> left_;
  std::vector<SwapCopy> swap_copies_, store_copies_;
  CopiesOut copies_out_;
  Span waited_{};                                         // for copies in, by the plan's step
  std::int64_t encoded_blocks_ = 0, decoded_blocks_ = 0;  // since the latest step
  Time now_{};
  std::uint64_t num_plans_ = 0;
  std::int64_t leaving_blocks_ = 0;  // of requests with is_leaving
  bool plan_was_quiet_ = true, plan_preempted_ = false;
  Counters counters_;
};

}  // namespace kvlab
