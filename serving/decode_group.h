#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policies/scheduler/scheduler.h"
#include "serving/histogram.h"
#include "serving/kv_memory.h"
#include "serving/rank_queues.h"
#include "serving/request.h"
#include "serving/step.h"

namespace kvlab {

// A running request in coming steps of one token each.
struct DecodeRow {
  RequestId id{};
  std::int64_t left = 0;        // tokens to plan
  std::int64_t next_block = 0;  // plans until one needs another block, that one included
  bool publishes = false;       // has blocks to publish
  bool has_emitted = true;
};

// The first running requests that decode in each step. They follow the step clock of the SlotTable, so a step touches only those that need
// or publish a block, or end. Whole KV in paged memory.
class DecodeGroup {
 public:
  DecodeGroup(SlotTable& table, const RankQueues& queues, KvMemory& memory) : table_(table), queues_(queues), memory_(memory) {}

  [[nodiscard]] bool is_empty() const { return members_.empty(); }
  [[nodiscard]] std::size_t size() const { return members_.size(); }
  // All running requests; no separated one has an output to come.
  [[nodiscard]] bool is_whole() const { return members_.size() == queues_.running().size() && departed_.empty(); }

  // ---- steps ----
  // As ReplicaView::plan_decodes(). Separates all if the plan stays as it is.
  std::size_t plan(StepPlan& plan, std::int32_t most);
  // Before the step counts as planned. False: its plan did not ask the group, which is empty then.
  bool begin_commit();
  // After it: running requests that decode in the next step join, up to the first that does not.
  void take_in(const StepPlan& step);
  // finish(id): it has all its tokens.
  template <class Finish>
  void process_output(Finish&& finish);
  // visit(id) for separated requests with a row in the output's step.
  template <class Visit>
  void each_departed(Visit&& visit);
  [[nodiscard]] bool has_departed() const { return !departed_.empty(); }
  // Requests are separate again; rows of a plan that is not committed become its entries.
  void separate();

  // ---- stretches of uniform steps, if is_whole() ----
  template <class Visit>
  void each_row(Visit&& visit) const;
  void note_block(std::size_t place) { members_[place].next_block += block_tokens(); }
  void note_publication(std::size_t place) { members_[place].publishes = has_to_publish(table_[members_[place].id]); }
  // Delivers the tokens of iterations; `steps` are those in flight before. The caller moves the clock.
  void emit(std::int64_t iterations, Picoseconds first_at, Picoseconds last_at, StepRing& steps, LogHistogram& itl);
  // A row for each member, in place of entries.
  void fill(StepPlan& step) const {
    step.entries.clear();
    step.decode_kv.assign(members_.size(), 0);
    step.decode_counted = static_cast<std::int32_t>(counted_rows());
  }
  [[nodiscard]] std::int64_t counted_rows() const {
    return std::count_if(members_.begin(), members_.end(), [](const Member& m) { return m.is_counted; });
  }
  // Computed tokens, in order.
  template <class Visit>
  void each_computed(Visit&& visit) const {
    for (const Member& m : members_) visit(static_cast<std::int32_t>(m.base + table_.clock().planned));
  }

 private:
  struct Member {
    RequestId id{};
    bool publishes = false, is_counted = true;
    std::int64_t base = 0;        // computed tokens after step s: base + s
    std::int64_t joined = 0;      // its latest step with an entry
    std::int64_t last = 0;        // its last step
    std::int64_t next_block = 0;  // the first step that needs another block
    [[nodiscard]] bool is_in(std::int64_t step) const { return joined < step && step <= last; }
  };
  [[nodiscard]] std::int32_t block_tokens() const { return memory_.limits().block_tokens; }
  [[nodiscard]] static bool has_to_publish(const Request& r) { return r.published < r.num_hashes; }
  bool add_rows(StepPlan& plan, std::int32_t most);

  SlotTable& table_;
  const RankQueues& queues_;
  KvMemory& memory_;
  std::vector<Member> members_;   // in running order
  std::vector<Member> departed_;  // separated, with outputs to come
  std::vector<std::size_t> due_;  // need or publish a block in the planned step
  std::int64_t first_end_ = 0;    // no member ends before
  bool publishes_ = false;        // some member does
  StepPlan* asked_ = nullptr;     // the plan, until its commit
};

template <class Finish>
void DecodeGroup::process_output(Finish&& finish) {
  const std::int64_t step = table_.clock().output;
  if (step < first_end_ && !publishes_) return;
  for (std::size_t i = 0; i < members_.size();) {
    const Member m = members_[i];
    if (m.last == step) {
      members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(i));
      table_.unfollow(m.id);
      finish(m.id);
      continue;
    }
    if (m.publishes && m.is_in(step)) {
      Request& r = table_[m.id];
      memory_.publish_up_to(r, r.computed_tokens - r.in_flight_tokens);
      note_publication(i);
    }
    ++i;
  }
}

template <class Visit>
void DecodeGroup::each_departed(Visit&& visit) {
  const std::int64_t step = table_.clock().output;
  for (std::size_t i = 0; i < departed_.size(); ++i)
    if (departed_[i].is_in(step)) visit(departed_[i].id);
  std::erase_if(departed_, [&](const Member& m) { return m.last <= step; });
}

template <class Visit>
void DecodeGroup::each_row(Visit&& visit) const {
  const StepClock& clock = table_.clock();
  for (const Member& m : members_) {
    const bool has_emitted = m.joined < clock.output || table_[m.id].has_emitted();
    visit(DecodeRow{m.id, m.last - clock.planned, m.next_block - clock.planned, m.publishes, has_emitted});
  }
}

}  // namespace kvlab
