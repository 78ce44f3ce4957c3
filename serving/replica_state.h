#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "policies/kv/footprint.h"
#include "policies/scheduler/scheduler.h"
#include "serving/block_pool.h"
#include "serving/contiguous.h"
#include "serving/metrics.h"
#include "serving/request.h"
#include "serving/step.h"
#include "traces/trace.h"

namespace kvlab {

struct ReplicaLimits {
  std::int32_t block_tokens = 16;
  std::int32_t max_model_len = 1 << 20;
  std::int64_t host_blocks = 0;
  bool prefix_caching = true;
  bool plans_over_unknown = false;  // pipeline depth >= 2: in-flight tokens count as known
  bool is_contiguous = false;
  bool unnamed_rest = false;  // as Footprint::unnamed_rest, if the host knows it from elsewhere
  Time count_from{};          // gaps between tokens of requests that arrived before are not recorded
  std::uint32_t replica = 0;  // its number, for records
};

// Requests, queues and memory of one replica: the scheduler's view of it, and what a host does to it around each step.
// Knows no clock: hosts say what time it is.
class ReplicaState final : public ReplicaView {
 public:
  ReplicaState(const ReplicaLimits& limits, std::unique_ptr<BlockPool> pool, std::unique_ptr<Footprint> footprint);

  // ---- what schedulers see ----
  [[nodiscard]] Time now() const override { return now_; }
  [[nodiscard]] std::uint32_t num_waiting() const override { return static_cast<std::uint32_t>(waiting_.size()); }
  [[nodiscard]] RequestId waiting(std::uint32_t position) const override { return waiting_[position]; }
  [[nodiscard]] std::span<const RequestId> running() const override { return running_; }
  [[nodiscard]] const RequestInfo& info(RequestId r) const override { return table_[r]; }
  [[nodiscard]] std::int32_t needed_tokens(RequestId r) const override;
  [[nodiscard]] std::int32_t max_model_len() const override { return limits_.max_model_len; }
  [[nodiscard]] std::int32_t block_tokens() const override { return limits_.block_tokens; }
  [[nodiscard]] std::int64_t num_blocks() const override;
  [[nodiscard]] std::int64_t free_blocks() const override;
  [[nodiscard]] std::int64_t blocks_for(RequestId r, std::int32_t n) const override;
  [[nodiscard]] std::int64_t blocks_needed(RequestId r, std::int32_t m) override;
  [[nodiscard]] std::int64_t peak_blocks(RequestId r) const override;
  std::int32_t lookup(RequestId r) override;
  bool try_allocate(RequestId r, std::int32_t m, std::int32_t ahead = 0) override;
  bool try_reserve(RequestId r, std::int32_t tokens) override;
  void admit(RequestId r) override;
  void preempt(RequestId r, Preemption mode, QueueEnd end) override;
  bool try_swap_in(RequestId r, std::int32_t m) override;
  void reject(RequestId r, const char* reason) override;

  // ---- what hosts do ----
  // A request reaches the replica; it waits in the input queue until the next plan. Refused (a record goes to the outbox)
  // when it could never run: longer than max_model_len or than the whole memory.
  void receive(const TraceRequest& request, std::uint64_t number, Time arrival, bool keeps_hashes);
  // Before plan(): sets the clock and moves the input queue into the waiting queue.
  void begin_plan(Time now);
  // After plan(): advances computed tokens by the plan and records the step.
  void commit(const StepPlan& plan, InFlightStep& step);
  // Delivers a step's tokens: emissions, finishes (to the outbox), publications, blocks returned.
  void process_output(const InFlightStep& step, Picoseconds at, LogHistogram& itl);
  void finish_swap_in(RequestId r, Time at);
  struct Finished {
    RequestRecord record;
    const char* reason = nullptr;  // of a rejection
    RequestId id{};                // its slot, free again
  };
  std::vector<Finished>& outbox() { return outbox_; }
  std::vector<SwapCopy>& swap_copies() { return swap_copies_; }
  std::vector<RequestEventRecord>* events = nullptr;  // filled where a sink wants them
  std::vector<std::uint64_t>* lookup_log = nullptr;   // filled for oracle passes
  // The pool notes there which blocks it splits, whose content is lost.
  void log_splits(std::vector<BlockId>* log) { pool_->split_log = log; }
  // Seconds to compute `tokens` on top of `kv_before`, where the block cache weighs what a miss costs.
  std::function<double(std::int32_t tokens, std::int32_t kv_before)> recompute_seconds;

  // Lists every request still here as unfinished.
  void drain(std::vector<RequestRecord>& unfinished) const;

  // The latest plan left every request in its queue and began no copy, so that the next one may repeat it.
  [[nodiscard]] bool plan_was_quiet() const { return plan_was_quiet_; }
  [[nodiscard]] bool has_input() const { return !input_.empty(); }
  [[nodiscard]] bool has_requests() const { return !running_.empty() || !waiting_.empty() || !input_.empty(); }
  [[nodiscard]] std::uint64_t running_version() const { return running_version_; }
  [[nodiscard]] const RequestTable& table() const { return table_; }
  [[nodiscard]] const BlockPool& pool() const { return *pool_; }
  [[nodiscard]] RequestId newest_input() const { return input_.back(); }  // has_input()
  [[nodiscard]] std::size_t num_input() const { return input_.size(); }
  [[nodiscard]] std::int64_t num_swapped() const { return num_swapped_; }
  [[nodiscard]] std::int64_t outstanding_prompt_tokens() const { return outstanding_prompt_tokens_; }
  [[nodiscard]] std::int64_t used_blocks() const { return num_blocks() - free_blocks(); }
  // Room for tokens that requests hold and have not filled (card 6.4: internal; full shared blocks waste nothing).
  [[nodiscard]] std::int64_t wasted_tokens() const { return allocated_tokens_ - live_tokens_; }
  // Share of the free memory outside the largest hole, in parts per million; paged memory has none.
  [[nodiscard]] std::int64_t external_fragmentation_ppm() const;
  [[nodiscard]] std::int32_t cached_tokens(const TraceRequest& request) const;

  struct Counters {
    std::uint64_t preemptions = 0, swaps = 0, recompute_fallbacks = 0;
    std::uint64_t over_budget = 0;  // received prompts of which the KV policy always keeps more than its budget
    std::int64_t recomputed_tokens = 0, lookup_tokens = 0, hit_tokens = 0, prompt_tokens = 0, output_tokens = 0;
  };
  // Tokens of all requests; hits, preemptions and what follows from these only of requests that are counted.
  [[nodiscard]] const Counters& counters() const { return counters_; }

  // ---- fast-forward: `iterations` times (process the oldest output, plan one token for every running request) ----
  // How many of them no finish or failing allocation interrupts within the horizon, for the running requests as they are now.
  [[nodiscard]] std::int64_t uniform_iterations(const Horizon& horizon);
  // Replays allocations and publications of that many iterations in order; taken(i, blocks) hears that iteration i (from 1)
  // left so many more blocks in use.
  template <class Taken>
  void advance_uniform(std::int64_t iterations, Taken taken);
  // The tokens of those iterations: `first_at` when the first comes out, `last_at` the last.
  void emit_uniform(std::int64_t iterations, Picoseconds first_at, Picoseconds last_at, LogHistogram& itl);

  // Running requests whose gaps between tokens are recorded.
  [[nodiscard]] std::int64_t counted_rows() const;

  // Conservation laws; throws InternalError. O(requests + blocks).
  void check() const;

 private:
  struct Need {
    std::int64_t blocks = 0;     // to take
    std::int64_t pages = 0;      // private pages to take
    std::int64_t free_hits = 0;  // hits nobody references
  };
  struct Replay {             // an allocation or publication inside a fast-forwarded span
    std::int64_t first = 0;   // iteration of the first one, from 1; they repeat every block_tokens
    std::int64_t phase = 0;   // (first - 1) % block_tokens
    std::uint32_t order = 0;  // position in running
    bool publishes = false;
  };
  void collect_replays(std::int64_t iterations);
  [[nodiscard]] std::int64_t first_allocation(const Request& r) const;
  [[nodiscard]] std::int64_t first_publication(const Request& r) const;
  [[nodiscard]] std::int64_t allocations_in(std::int64_t iterations) const;
  [[nodiscard]] Need need(RequestId r, std::int32_t m, std::int32_t ahead = 0);
  void log_uses(const Request& r);
  [[nodiscard]] std::int32_t most_hits(std::int32_t known_tokens, std::int32_t prompt_tokens) const;
  void find_hits(const Request& r);
  void remember_blocks(Request& r);
  [[nodiscard]] bool is_counted(const Request& r) const { return r.arrival >= limits_.count_from; }
  [[nodiscard]] std::int64_t allocated(const Request& r) const {
    return static_cast<std::int64_t>(r.blocks.size()) * limits_.block_tokens + r.pages * limits_.block_tokens / pool_->pages_per_block() +
           r.reserved_tokens;
  }
  void set_computed(Request& r, std::int32_t tokens) {
    outstanding_prompt_tokens_ += std::max(0, r.prompt_tokens - tokens) - std::max(0, r.prompt_tokens - r.computed_tokens);
    r.computed_tokens = tokens;
  }
  [[nodiscard]] std::int64_t ceil_blocks(std::int64_t tokens) const { return (tokens + limits_.block_tokens - 1) / limits_.block_tokens; }
  [[nodiscard]] std::int64_t blocks_of(std::int64_t pages) const {
    return (pages + pool_->pages_per_block() - 1) / pool_->pages_per_block();
  }
  [[nodiscard]] bool starts_fresh(const Request& r) const {
    return !r.is_running && r.computed_tokens == 0 && r.blocks.empty() && !r.left_hashed;
  }
  [[nodiscard]] SeqState seq_of(const Request& r, std::int32_t computed) const;
  [[nodiscard]] std::uint64_t key_of(const Request& r, std::int32_t block) const;
  void publish_up_to(Request& r, std::int32_t tokens);
  void release_memory(Request& r);
  void release_blocks(Request& r);
  bool swap_out(RequestId id, Request& r);
  void leave(RequestId id, Outcome outcome, const char* reason, Time at);
  void remove_from_waiting(RequestId r);
  void remove_from_running(RequestId r);
  void note(RequestEvent event, const Request& r, Time at);
  void deliver(Request& r, Picoseconds at, LogHistogram& itl);
  void apply_policy(Request& r, StepEntry& entry, std::size_t place);
  void charge_policy(InFlightStep& step);
  [[nodiscard]] std::int64_t needs_at_most(const Request& r) const;
  void end_policy_step(Request& r, const StepEntry& entry);

  ReplicaLimits limits_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Footprint> footprint_;
  bool keeps_everything_;
  std::int32_t fresh_tokens_;  // Footprint::fresh_tokens
  std::optional<ContiguousAllocator> contiguous_;
  RequestTable table_;
  std::deque<RequestId> waiting_;
  std::vector<RequestId> running_, input_;
  std::vector<Finished> outbox_;
  std::vector<SwapCopy> swap_copies_;
  std::vector<BlockId> hits_;  // of hits_for_, while hits_valid_
  RequestId hits_for_ = kNoRequest;
  bool hits_valid_ = false;
  std::vector<Replay> replays_;
  std::vector<SeqInStep> charged_;           // while a step is committed: the policy's sequences,
  std::vector<std::size_t> charged_places_;  // and their entries
  Time now_{};
  std::uint64_t running_version_ = 0;
  bool plan_was_quiet_ = true;
  std::int64_t host_used_ = 0, num_swapped_ = 0, outstanding_prompt_tokens_ = 0;
  std::int64_t live_tokens_ = 0, allocated_tokens_ = 0;
  Counters counters_;
};

template <class Taken>
void ReplicaState::advance_uniform(std::int64_t iterations, Taken taken) {
  collect_replays(iterations);
  for (std::int64_t base = 0; base < iterations && !replays_.empty(); base += limits_.block_tokens) {
    for (const Replay& replay : replays_) {
      const std::int64_t at = base + replay.phase + 1;
      if (at < replay.first || at > iterations) continue;
      Request& r = table_[running_[replay.order]];
      if (replay.publishes) {
        publish_up_to(r, (r.published + 1) * limits_.block_tokens);
      } else {
        r.blocks.push_back(pool_->take());
        allocated_tokens_ += limits_.block_tokens;
        taken(at);
      }
    }
  }
  hits_valid_ = false;
}

}  // namespace kvlab
