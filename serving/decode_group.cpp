#include "serving/decode_group.h"

#include <limits>

#include "base/error.h"

namespace kvlab {

// False: too many rows, or too few blocks.
bool DecodeGroup::add_rows(StepPlan& plan, std::int32_t most) {
  const std::int64_t latest = table_.clock().planned;
  std::int64_t blocks = 0;
  due_.clear();
  first_end_ = std::numeric_limits<std::int64_t>::max();
  publishes_ = false;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& m = members_[i];
    first_end_ = std::min(first_end_, m.last);
    publishes_ |= m.publishes;
    if (m.last == latest) table_[m.id];  // counts of its last step are written while the clock shows it
    if (m.last <= latest) continue;
    plan.decode_kv.push_back(static_cast<std::int32_t>(m.base + latest));
    plan.decode_counted += m.is_counted ? 1 : 0;
    const bool needs_block = m.next_block == latest + 1;
    blocks += needs_block ? 1 : 0;
    if (needs_block || m.publishes) due_.push_back(i);
  }
  return std::ssize(plan.decode_kv) <= most && blocks <= memory_.free_blocks();
}

std::size_t DecodeGroup::plan(StepPlan& plan, std::int32_t most) {
  asked_ = &plan;
  if (members_.empty()) return 0;
  if (!add_rows(plan, most)) {
    plan.decode_kv.clear();
    plan.decode_counted = 0;
    separate();
    return 0;
  }
  for (const std::size_t place : due_) {
    if (!memory_.try_allocate(members_[place].id, 1, 0)) throw InternalError("a planned row has no block");
    if (members_[place].next_block == table_.clock().planned + 1) note_block(place);
    note_publication(place);
  }
  memory_.forget_hits();
  return members_.size();
}

bool DecodeGroup::begin_commit() {
  const bool was_asked = asked_ != nullptr;
  asked_ = nullptr;
  if (!was_asked) separate();
  return was_asked;
}

void DecodeGroup::take_in(const StepPlan& step) {
  const std::vector<RequestId>& running = queues_.running();
  if (members_.size() == running.size()) return;
  if (memory_.free_blocks() < std::ssize(running)) return separate();  // joining and leaving costs more than a walk
  const std::int64_t latest = table_.clock().planned;
  for (const StepEntry& entry : step.entries) {
    if (members_.size() == running.size() || entry.request != running[members_.size()]) return;
    const Request& r = table_[entry.request];
    const std::int64_t left = r.output_limit - r.output_tokens - r.in_flight_tokens;
    const bool decodes = entry.emits && r.known_tokens() == r.computed_tokens + 1 && r.computed_tokens >= r.most_computed;
    if (!decodes || left <= 0) return;
    const std::int64_t base = r.computed_tokens - latest;
    members_.push_back(
        {entry.request, has_to_publish(r), r.is_counted, base, latest, latest + left, std::ssize(r.blocks) * block_tokens() - base + 1});
    publishes_ |= members_.back().publishes;
    first_end_ = std::min(first_end_, latest + left);
    table_.follow(entry.request, latest + left);
  }
}

void DecodeGroup::separate() {
  const StepClock& clock = table_.clock();
  std::vector<StepEntry> rows;
  for (Member& m : members_) {
    table_.unfollow(m.id);
    if (asked_ != nullptr && !asked_->decode_kv.empty() && m.last > clock.planned) rows.push_back({m.id, 1});
    m.last = std::min(m.last, clock.planned);
    if (m.last > std::max(clock.output, m.joined)) departed_.push_back(m);
  }
  members_.clear();
  if (rows.empty()) return;
  asked_->entries.insert(asked_->entries.begin(), rows.begin(), rows.end());
  asked_->decode_kv.clear();
  asked_->decode_counted = 0;
}

void DecodeGroup::emit(std::int64_t n, Picoseconds first_at, Picoseconds last_at, StepRing& steps, LogHistogram& itl) {
  StepClock& clock = table_.clock();
  if (const auto counted = static_cast<std::uint64_t>(steps.oldest().decode_counted); counted > 0)
    itl.add((first_at - clock.last_output).count(), counted);
  for (int i = 0; i < std::min<std::int64_t>(n, steps.depth()); ++i) {
    for (const StepEntry& entry : steps[i].entries) {
      Request& r = table_[entry.request];
      if (i == 0 && r.is_counted) itl.add((first_at - r.last_emitted).count(), 1);
      --r.in_flight_steps;
      --r.in_flight_tokens;
      ++r.output_tokens;
      r.last_emitted = last_at;
    }
  }
  memory_.add_live(n * std::ssize(members_));
}

}  // namespace kvlab
