#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "policies/scheduler/scheduler.h"
#include "serving/histogram.h"
#include "serving/kv_memory.h"
#include "serving/rank_queues.h"
#include "serving/request.h"
#include "serving/step.h"

namespace kvlab {

inline constexpr std::int64_t kNoStep = std::numeric_limits<std::int64_t>::max();

// A running request in coming steps of one token each.
struct DecodeOutlook {
  RequestId id{};
  std::int64_t left = 0;                    // tokens to plan
  std::int64_t next_block = 0;              // plans until one needs another block, that one included
  std::int64_t next_publication = kNoStep;  // plans until one publishes a block
  bool has_emitted = true;
};

// The first running requests that decode in each step. They follow the step clock of the SlotTable, so a step touches only those that need
// or publish a block, or end. Whole KV in paged memory.
class DecodeGroup {
 public:
  // lists_rows: fills DecodeRows::kv.
  DecodeGroup(SlotTable& table, const RankQueues& queues, KvMemory& memory, bool lists_rows)
      : table_(table), queues_(queues), memory_(memory), lists_rows_(lists_rows) {}

  [[nodiscard]] bool is_empty() const { return members_.empty(); }
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
  void each(Visit&& visit) const;
  // The member at `place` has published or taken a block.
  void note_publication(std::size_t place);
  void note_block(std::size_t place);
  // Delivers the tokens of iterations; `steps` are those in flight before. The caller moves the clock.
  void emit(std::int64_t iterations, Picoseconds first_at, Picoseconds last_at, StepRing& steps, LogHistogram& itl);
  // Rows in place of entries, for a step in flight.
  void fill(StepPlan& step) const;
  // The rows that the next plan has, with all in `kv` if lists_rows.
  [[nodiscard]] DecodeRows next_rows() const;

 private:
  struct Member {
    RequestId id{};
    bool is_counted = true;
    bool has_ended = false;             // a plan was after its last step
    std::int64_t base = 0;              // computed tokens after step s: base + s
    std::int64_t joined = 0;            // its latest step with an entry
    std::int64_t last = 0;              // its last step
    std::int64_t next_block = 0;        // the first step that needs another block
    std::int64_t next_publication = 0;  // the first with a plan or an output that can publish one
    [[nodiscard]] bool is_in(std::int64_t step) const { return joined < step && step <= last; }
    // The next plan that looks at it; also that after its last step.
    [[nodiscard]] std::int64_t event() const { return std::min({next_block, next_publication, last + 1}); }
    // The next output that looks at it.
    [[nodiscard]] std::int64_t output_event() const { return std::min(next_publication, last); }
  };
  [[nodiscard]] std::int32_t block_tokens() const { return memory_.limits().block_tokens; }
  [[nodiscard]] bool find_due(std::int32_t most);
  void allocate_due();
  void count(const Member& m, int sign);
  void end(std::size_t place);
  void find_extremes();
  [[nodiscard]] std::int64_t publication_of(const Request& r, std::int64_t base) const {
    return r.published < r.num_hashes ? (std::int64_t{r.published} + 1) * block_tokens() - base : kNoStep;
  }

  SlotTable& table_;
  const RankQueues& queues_;
  KvMemory& memory_;
  bool lists_rows_;
  std::vector<Member> members_;                    // in running order
  std::vector<std::int64_t> events_;               // Member::event(), by place
  std::vector<Member> departed_;                   // separated, with outputs to come
  std::vector<std::size_t> due_;                   // need or publish a block in the planned step
  std::int32_t rows_ = 0, counted_ = 0;            // members with steps to plan; of them counted
  std::uint64_t base_sum_ = 0, base_squares_ = 0;  // of these, modulo 2^64
  std::int64_t base_min_ = 0, base_max_ = 0;
  std::int64_t first_event_ = 0;  // no output looks at a member before
  StepPlan* asked_ = nullptr;     // the plan, until its commit
};

template <class Finish>
void DecodeGroup::process_output(Finish&& finish) {
  const std::int64_t step = table_.clock().output;
  if (step < first_event_) return;
  first_event_ = kNoStep;
  for (std::size_t i = 0; i < members_.size();) {
    const Member m = members_[i];
    if (m.last == step) {
      if (!m.has_ended) end(i);
      members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(i));
      events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(i));
      table_.unfollow(m.id);
      finish(m.id);
      continue;
    }
    if (m.next_publication <= step && m.is_in(step)) {
      Request& r = table_[m.id];
      memory_.publish_up_to(r, r.computed_tokens - r.in_flight_tokens);
      note_publication(i);
    }
    first_event_ = std::min(first_event_, members_[i].output_event());
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
void DecodeGroup::each(Visit&& visit) const {
  const StepClock& clock = table_.clock();
  for (const Member& m : members_) {
    const bool has_emitted = m.joined < clock.output || table_[m.id].has_emitted();
    const std::int64_t publication =
        m.next_publication == kNoStep ? kNoStep : m.next_publication - std::min(clock.planned, clock.output + 1);
    visit(DecodeOutlook{m.id, m.last - clock.planned, m.next_block - clock.planned, publication, has_emitted});
  }
}

}  // namespace kvlab
