#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/ceil_div.h"
#include "base/time.h"
#include "policies/kv/footprint.h"
#include "serving/block_pool.h"
#include "serving/contiguous.h"
#include "serving/decode_run.h"
#include "serving/host_copies.h"
#include "serving/node_store.h"
#include "serving/request.h"
#include "serving/step.h"
#include "serving/swap_setup.h"
#include "traces/block_hashes.h"
#include "traces/trace.h"

namespace kvlab {

struct ExpectedText;
struct Slo;

struct ReplicaLimits : RankMemory {
  std::int32_t max_model_len = 1 << 20;
  bool plans_over_unknown = false;  // pipeline depth >= 2: in-flight tokens count as known
  bool is_contiguous = false;
  bool groups_decodes = false, lists_rows = false;  // of DecodeGroup
  bool unnamed_rest = false;                        // Footprint::unnamed_rest, if known to the host
  Time count_from{};                                // earlier arrivals are not counted (Request::is_counted)
  bool scheduler_predicts = false;                  // Scheduler::uses_predictor()
  std::uint32_t replica = 0;                        // for records
  std::int32_t image_tokens = 0;                    // per image encoded here; 0: none
  const Slo* slo = nullptr;                         // TBT targets to watch; null: none
  const ExpectedText* expected_text = nullptr;      // null: QoE is not followed
};

// Blocks and pages of a replica's requests, sized by the KV policy.
class KvMemory {
 public:
  KvMemory(const ReplicaLimits& limits, std::unique_ptr<BlockPool> pool, std::unique_ptr<Footprint> footprint, SlotTable& table);

  // ---- sizes, in blocks unless named otherwise ----
  [[nodiscard]] std::int64_t num_blocks() const;
  [[nodiscard]] std::int64_t free_blocks() const;
  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const { return ceil_div(tokens, limits_.block_tokens); }
  // Peak of a prompt step over all known tokens.
  [[nodiscard]] std::int64_t peak_blocks(const Request& r) const;
  // Maximum; the last emitted token is never computed.
  [[nodiscard]] std::int64_t most_blocks(const Request& r) const;
  // Internal fragmentation: allocated, unfilled tokens.
  [[nodiscard]] std::int64_t wasted_tokens() const { return allocated_tokens_ - live_tokens_; }
  // Free memory outside the largest hole, in ppm; 0 if paged.
  [[nodiscard]] std::int64_t external_fragmentation_ppm() const;
  // CPU memory without swapped requests; HostCopies count as free.
  [[nodiscard]] std::int64_t free_host_blocks() const { return limits_.host_blocks - host_used_ + copies_.blocks(); }
  [[nodiscard]] std::int64_t num_swapped() const { return num_swapped_; }
  [[nodiscard]] bool keeps_everything() const { return keeps_everything_; }
  [[nodiscard]] bool is_steady_in_decode() const { return footprint_->is_steady_in_decode(); }
  // Decode steps are predictable.
  [[nodiscard]] bool looks_ahead() const { return looks_ahead_; }
  [[nodiscard]] bool exceeds_budget(std::int32_t prompt_tokens) const {
    return !keeps_everything_ && footprint_->exceeds_budget(prompt_tokens);
  }
  [[nodiscard]] bool is_contiguous() const { return contiguous_.has_value(); }
  // Whole KV in paged memory.
  [[nodiscard]] bool needs_only_blocks() const { return needs_only_blocks_; }
  [[nodiscard]] const ReplicaLimits& limits() const { return limits_; }
  [[nodiscard]] BlockPool& pool() { return *pool_; }
  [[nodiscard]] const BlockPool& pool() const { return *pool_; }

  // ---- prefix cache ----
  // Cached prompt tokens in whole blocks; 0 unless it starts fresh.
  std::int32_t lookup(RequestId r);
  [[nodiscard]] std::int32_t cached_tokens(const TraceRequest& request) const;
  // Upper bound of cached_tokens().
  [[nodiscard]] std::int32_t most_cached_tokens(const TraceRequest& request) const;
  void forget_hits() { hits_valid_ = false; }
  // Hashes the full blocks of the first `tokens` tokens.
  void publish_up_to(Request& r, std::int32_t tokens) {
    if (!limits_.prefix_caching) return;
    r.publishable_tokens = std::max(r.publishable_tokens, tokens);
    if (r.published < r.num_hashes && tokens >= (r.published + 1) * limits_.block_tokens) publish_blocks(r, tokens);
  }
  std::vector<std::uint64_t>* lookup_log = nullptr;  // null: not recorded
  // Seconds to compute `tokens` after `kv_before`, for block caches that weigh the cost of a miss.
  std::function<double(std::int32_t tokens, std::int32_t kv_before)> recompute_seconds;

  // ---- allocation ----
  [[nodiscard]] std::int64_t blocks_needed(RequestId r, std::int32_t m);
  // publishes: hashes the full blocks of the m tokens.
  bool try_allocate(RequestId id, std::int32_t m, std::int32_t ahead, bool publishes = true) {
    Request& r = table_[id];
    if (!has_room(r, r.computed_tokens + m + ahead) && !has_pages(id, r, m, ahead)) return allocate_more(id, m, ahead, publishes);
    hits_valid_ = false;
    if (publishes && !r.left_hashed) publish_up_to(r, std::min(r.computed_tokens + m, r.known_values()));
    return true;
  }
  bool try_reserve(Request& r, std::int32_t tokens);
  void take_block(Request& r);
  // As try_allocate() for a token that needs a block, without publications.
  void take_planned_block(Request& r) {
    take_block(r);
    if (copies_beside_steps_) taken_.push_back(r.blocks.back());
  }
  void release(Request& r);
  // Recomputation may find blocks without hashes again. Call before release().
  void remember_blocks(Request& r);

  // ---- swap: a copy in flight holds both places ----
  bool try_swap_out(RequestId id, SwapCopy& copy);
  bool try_swap_in(Request& r, std::int32_t m);
  [[nodiscard]] SwapCopy copy_in(RequestId id) const;
  // After the copy: frees CPU memory, or keeps full blocks (whole KV with keeps_host_copies).
  void finish_swap_in(RequestId id);
  void end_swap(Request& r);
  void drop_host_copy(RequestId id) {
    if (copies_.all().empty()) return;
    if (const auto copy = copies_.take(id)) host_used_ -= copy->blocks;
  }
  // With SwapSetup::keeps_turns, after the end of r: keeps the copy for the session's next turn, as far as hashes exist.
  void keep_turn_copy(RequestId id);
  [[nodiscard]] bool copies_beside_steps() const { return copies_beside_steps_; }
  // Blocks that the plan took for new tokens, if copies_beside_steps(). The caller clears it.
  [[nodiscard]] std::vector<BlockId>& taken() { return taken_; }
  // In blocks, with copies of running requests.
  [[nodiscard]] std::int64_t host_used() const { return host_used_; }

  // ---- the store of prompts in CPU memory ----
  NodeStore* store = nullptr;  // null: none
  // Begins to write full prompt blocks of r that the store lacks; holds them until end_write(). False: none is missing, or no room.
  // copy.request numbers the write.
  bool begin_write(const Request& r, SwapCopy& copy);
  void end_write(RequestId write);
  // Store blocks of current writes.
  [[nodiscard]] std::int64_t pinned_by_writes() const;
  // Invalidates lookups.
  std::int32_t find_cached_tokens(const Request& r);

  // Rows of r's pattern, for another rank; pattern_of() is the inverse.
  [[nodiscard]] std::vector<std::int32_t> rows_of(const Request& r) const { return footprint_->rows_of(r.pattern); }
  std::int32_t pattern_of(const std::vector<std::int32_t>& rows) { return footprint_->pattern_of(rows); }

  // ---- KV from another rank, in a copy between try_import() and end_swap() ----
  // Until its copy comes, r counts as swapped out.
  void await_import(Request& r);
  // Room for the computed tokens and m more. Returns the leading blocks that the cache has, which need no copy; -1: no room.
  std::int64_t try_import(Request& r, std::int32_t m);
  [[nodiscard]] static bool holds(const Request& r) { return !r.blocks.empty() || r.pages > 0 || r.reserved_start >= 0; }
  [[nodiscard]] std::int64_t blocks_held(const Request& r) const {
    return contiguous_ ? blocks_for(r.held_tokens()) : static_cast<std::int64_t>(r.blocks.size()) + blocks_of_pages(r.pages);
  }

  // ---- KV policy, in the order of a step ----
  // Sizes after the committed step, for later plans. `place`: of the entry in the step.
  void apply_policy(Request& r, StepEntry& entry, std::size_t place);
  void charge_policy(InFlightStep& step);
  // After the output.
  void end_policy_step(Request& r, const StepEntry& entry);
  [[nodiscard]] Preemption preemption_of(const Request& r, Preemption wanted) const;

  // ---- decode steps in advance, for policies that look ahead (kv_memory_ahead.cpp) ----
  // Predictable next steps of the running requests `of`, at most `most`.
  std::int64_t look_ahead(std::span<const RequestId> of, std::int64_t most);
  void charge_ahead(std::int64_t steps);
  [[nodiscard]] const DecodeAhead& ahead() const { return ahead_; }
  // Private pages that these requests still need for `steps` steps.
  [[nodiscard]] std::int64_t pages_ahead(std::span<const RequestId> of, std::int64_t steps) const;
  // After an output, with no other step in flight.
  void return_surplus(Request& r);
  // Step i (from 0) after the computed tokens.
  void repeat_pages(RequestId r, std::int64_t i);
  void repeat_sizes(RequestId r, std::int64_t i);

  void add_live(std::int64_t tokens) { live_tokens_ += tokens; }

  // Conservation laws. Throws InternalError. O(requests + blocks).
  void check() const;

 private:
  struct Need {
    std::int64_t blocks = 0;
    std::int64_t pages = 0;      // private pages
    std::int64_t surplus = 0;    // private pages to return
    std::int64_t free_hits = 0;  // without references
  };
  // The blocks of r suffice, and pages are not needed.
  [[nodiscard]] bool has_room(const Request& r, std::int32_t tokens) const {
    return needs_only_blocks_ && std::ssize(r.blocks) * limits_.block_tokens >= tokens;
  }
  // The next step's pages and blocks suffice.
  [[nodiscard]] bool has_pages(RequestId id, const Request& r, std::int32_t m, std::int32_t ahead) {
    const FootprintStep* const step = contiguous_ ? nullptr : known_step(id, r, m);
    if (step == nullptr || step->peak_pages > r.pages) return false;
    return r.left_hashed || std::ssize(r.blocks) * limits_.block_tokens >= r.computed_tokens + m + ahead;
  }
  [[nodiscard]] const FootprintStep* known_step(RequestId id, const Request& r, std::int32_t m) {
    if (m != 1 || !looks_ahead_) return nullptr;
    const FootprintStep* const step = run_of(id).find(r);
    return step != nullptr ? step : first_of_run(run_of(id), r);
  }
  const FootprintStep* first_of_run(DecodeRun& run, const Request& r);
  DecodeRun& run_of(RequestId id) {
    if (runs_.size() <= index(id)) runs_.resize(index(id) + std::size_t{1});
    return runs_[index(id)];
  }
  static void take_sizes(Request& r, const FootprintStep& done) {
    r.kept_pages = done.kept_pages;
    if (!r.left_hashed) return;
    r.kept_tokens = done.kept_tokens;
    r.row_tokens = done.held_tokens;
    r.pattern = done.pattern;
  }
  bool allocate_more(RequestId id, std::int32_t m, std::int32_t ahead, bool publishes);
  void publish_blocks(Request& r, std::int32_t tokens);
  [[nodiscard]] Need need(RequestId r, std::int32_t m, std::int32_t ahead);
  void take_hits(RequestId id, Request& r);
  void find_hits(const Request& r);
  [[nodiscard]] std::int32_t most_hits(std::int32_t known_tokens, std::int32_t prompt_tokens) const;
  void log_uses(const Request& r);
  void release_blocks(Request& r);
  struct StoreWrite {
    NodeStore::Write write;
    std::vector<BlockId> from;  // in GPU memory, with a reference each
  };
  bool make_host_room(std::int64_t blocks);
  [[nodiscard]] std::int64_t valid_copy(RequestId id);
  [[nodiscard]] std::vector<std::uint64_t> content_of(const Request& r) const;
  [[nodiscard]] std::int64_t calls_of(const Request& r, std::int64_t first, std::int64_t blocks) const;
  [[nodiscard]] SeqState seq_of(const Request& r, std::int32_t computed, std::int32_t new_tokens) const;
  [[nodiscard]] BlockHashes keys_from(const Request& r, std::int32_t first) const;
  [[nodiscard]] std::int64_t blocks_of_pages(std::int64_t pages) const { return ceil_div(pages, pool_->pages_per_block()); }
  [[nodiscard]] std::int64_t free_after_pages(std::int64_t pages) const {
    return pages > 0 ? pool_->free_after_pages(pages) : pool_->free_blocks();
  }
  [[nodiscard]] std::int64_t allocated(const Request& r) const {
    const std::int64_t in_pages = returns_pages_ ? 0 : r.pages * limits_.block_tokens / pool_->pages_per_block();
    return static_cast<std::int64_t>(r.blocks.size()) * limits_.block_tokens + in_pages + r.reserved_tokens;
  }

  ReplicaLimits limits_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<Footprint> footprint_;
  SlotTable& table_;
  bool keeps_everything_, returns_pages_;
  const bool copies_beside_steps_;
  const bool looks_ahead_;
  std::int32_t fresh_tokens_;
  std::optional<ContiguousAllocator> contiguous_;
  bool needs_only_blocks_;     // whole KV in paged memory
  std::vector<BlockId> hits_;  // of hits_for_, if hits_valid_
  RequestId hits_for_ = kNoRequest;
  bool hits_valid_ = false;
  DecodeAhead ahead_;
  std::vector<SeqState> ahead_of_;                          // before the steps
  std::vector<std::span<const FootprintStep>> runs_ahead_;  // parts of runs_
  std::vector<DecodeRun> runs_;                             // by slot
  std::vector<SeqState> charged_;                           // in commit: sequences,
  std::vector<std::size_t> charged_places_;                 // and entries
  std::int64_t host_used_ = 0, num_swapped_ = 0;
  HostCopies copies_;  // part of host_used_; dropped when room is needed
  std::vector<BlockId> taken_;
  std::vector<StoreWrite> writes_;  // by number; others are empty
  std::int64_t live_tokens_ = 0, allocated_tokens_ = 0;
};

}  // namespace kvlab
