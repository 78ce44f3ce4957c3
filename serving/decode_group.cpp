#include "serving/decode_group.h"

#include "base/error.h"

namespace kvlab {

// Adds or removes a row of the coming plans.
void DecodeGroup::count(const Member& m, int sign) {
  const auto base = static_cast<std::uint64_t>(m.base), times = static_cast<std::uint64_t>(sign);
  rows_ += sign;
  counted_ += m.is_counted ? sign : 0;
  base_sum_ += times * base;
  base_squares_ += times * base * base;
  if (sign > 0) {
    base_min_ = rows_ == 1 ? m.base : std::min(base_min_, m.base);
    base_max_ = rows_ == 1 ? m.base : std::max(base_max_, m.base);
  } else if (m.base == base_min_ || m.base == base_max_) {
    find_extremes();
  }
}

void DecodeGroup::find_extremes() {
  base_min_ = std::numeric_limits<std::int64_t>::max();
  base_max_ = std::numeric_limits<std::int64_t>::min();
  for (const Member& m : members_) {
    if (m.last <= table_.clock().planned) continue;
    base_min_ = std::min(base_min_, m.base);
    base_max_ = std::max(base_max_, m.base);
  }
}

DecodeRows DecodeGroup::next_rows() const {
  DecodeRows rows;
  if (rows_ == 0) return rows;
  const std::int64_t latest = table_.clock().planned;
  const auto steps = static_cast<std::uint64_t>(latest), n = static_cast<std::uint64_t>(rows_);
  rows.count = rows_;
  rows.counted = counted_;
  rows.kv_tokens = static_cast<std::int64_t>(base_sum_ + n * steps);
  rows.kv_squares = static_cast<std::int64_t>(base_squares_ + 2 * steps * base_sum_ + n * steps * steps);
  rows.kv_min = static_cast<std::int32_t>(base_min_ + latest);
  rows.kv_max = static_cast<std::int32_t>(base_max_ + latest);
  if (!lists_rows_) return rows;
  for (const Member& m : members_)
    if (m.last > latest) rows.kv.push_back(static_cast<std::int32_t>(m.base + latest));
  return rows;
}

// Members that end leave the rows. False: too many rows, or too few blocks.
bool DecodeGroup::find_due(std::int32_t most) {
  const std::int64_t latest = table_.clock().planned, next = latest + 1;
  std::int64_t blocks = 0;
  due_.clear();
  for (std::size_t i = 0; i < events_.size(); ++i) {
    if (events_[i] > next) continue;
    const Member& m = members_[i];
    if (m.last <= latest) {
      if (!m.has_ended) end(i);
      continue;
    }
    blocks += m.next_block == next ? 1 : 0;
    due_.push_back(i);
  }
  return rows_ <= most && blocks <= memory_.free_blocks();
}

void DecodeGroup::end(std::size_t place) {
  Member& m = members_[place];
  m.has_ended = true;
  table_[m.id];  // its counts are written while the clock shows its last step
  count(m, -1);
  events_[place] = kNoStep;
}

void DecodeGroup::allocate_due() {
  const std::int64_t next = table_.clock().planned + 1;
  for (const std::size_t place : due_) {
    const Member& m = members_[place];
    const bool needs_block = m.next_block == next;
    if (m.next_publication > next) {
      memory_.take_planned_block(table_.without_counts(m.id));
      note_block(place);
      continue;
    }
    if (!memory_.try_allocate(m.id, 1, 0)) throw InternalError("a planned row has no block");
    if (needs_block) note_block(place);
    note_publication(place);
  }
}

std::size_t DecodeGroup::plan(StepPlan& plan, std::int32_t most) {
  asked_ = &plan;
  if (members_.empty()) return 0;
  if (!find_due(most)) {
    separate();
    return 0;
  }
  allocate_due();
  memory_.forget_hits();
  plan.decodes = next_rows();
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
  if (memory_.free_blocks() * block_tokens() < std::ssize(running)) return separate();  // the next steps lack blocks
  const std::int64_t latest = table_.clock().planned;
  for (const StepEntry& entry : step.entries) {
    if (members_.size() == running.size() || entry.request != running[members_.size()]) return;
    const Request& r = table_[entry.request];
    const std::int64_t left = r.output_limit - r.output_tokens - r.in_flight_tokens;
    const bool decodes = entry.emits && r.known_tokens() == r.computed_tokens + 1 && r.computed_tokens >= r.most_computed;
    if (!decodes || left <= 0) return;
    const std::int64_t base = r.computed_tokens - latest;
    const Member& m = members_.emplace_back(Member{entry.request, r.is_counted, false, base, latest, latest + left,
                                                   std::ssize(r.blocks) * block_tokens() - base + 1, publication_of(r, base)});
    events_.push_back(m.event());
    first_event_ = members_.size() == 1 ? m.output_event() : std::min(first_event_, m.output_event());
    table_.follow(m.id, m.last);
    count(m, 1);
  }
}

void DecodeGroup::note_publication(std::size_t place) {
  Member& m = members_[place];
  m.next_publication = publication_of(table_.without_counts(m.id), m.base);
  if (!m.has_ended) events_[place] = m.event();
}

void DecodeGroup::note_block(std::size_t place) {
  members_[place].next_block += block_tokens();
  events_[place] = members_[place].event();
}

void DecodeGroup::separate() {
  const StepClock& clock = table_.clock();
  std::vector<StepEntry> rows;
  for (Member& m : members_) {
    table_.unfollow(m.id);
    if (asked_ != nullptr && asked_->decodes.count > 0 && m.last > clock.planned) rows.push_back({m.id, 1});
    m.last = std::min(m.last, clock.planned);
    if (m.last > std::max(clock.output, m.joined)) departed_.push_back(m);
  }
  members_.clear();
  events_.clear();
  rows_ = counted_ = 0;
  base_sum_ = base_squares_ = 0;
  if (rows.empty()) return;
  asked_->entries.insert(asked_->entries.begin(), rows.begin(), rows.end());
  asked_->decodes = {};
}

void DecodeGroup::emit(std::int64_t n, Picoseconds first_at, Picoseconds last_at, StepRing& steps, LogHistogram& itl) {
  if (const auto counted = static_cast<std::uint64_t>(steps.oldest().decodes.counted); counted > 0)
    itl.add((first_at - table_.clock().last_output).count(), counted);
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

void DecodeGroup::fill(StepPlan& step) const {
  step.entries.clear();
  step.decodes = {};
  step.decodes.count = rows_;
  step.decodes.counted = counted_;
}

}  // namespace kvlab
