#include "serving/fast_forward.h"

namespace kvlab {

bool FastForward::all_uniform() {
  for (int i = 0; i < depth(); ++i) {
    if (!steps_[i].is_uniform || steps_[i].running_version != state_.queues().running_version()) return false;
    if (state_.decodes().is_empty() && steps_[i].decodes.count > 0) return false;
  }
  return state_.decodes().is_empty() || state_.decodes().is_whole();
}

// Pipelined steps are exact only while they wait for the device, not for the host.
bool FastForward::waits_for_device(const DecodeTimes& times, std::int64_t iterations) {
  if (depth() == 1 || times.host == Picoseconds{}) return true;
  for (int i = 0; i < depth(); ++i) {
    if (steps_[i].end - steps_[i].start < times.host) return false;
  }
  const auto waits = [&](const StepTime& step) { return step.total >= times.host; };
  if (!times.each.empty()) return std::all_of(times.each.begin(), times.each.begin() + iterations, waits);
  return std::min(times.base, times.base + times.slope * (iterations - 1)) >= times.host;
}

// An estimate, if a look ahead costs more with each step.
std::int64_t FastForward::iterations_before(Picoseconds until) {
  const InFlightStep& last = steps_.latest();
  if (!state_.memory().looks_ahead() || until == Picoseconds::max() || last.end <= last.start) return INT64_MAX;
  return depth() + std::max<std::int64_t>(0, (until - last.end).count() / (last.end - last.start).count());
}

void FastForward::look_ahead(Picoseconds until) {
  stretch_.iterations = 0;
  if (state_.copies_out().last() > steps_.oldest().end) return;  // an earlier plan may take a block that is still copied
  if (!state_.queues().input().empty() || !state_.plan_was_quiet() || !all_uniform()) return;
  Horizon horizon = scheduler_.stable_for(state_);
  if (horizon.plans <= 0) return;
  horizon = horizon.within(state_.order_is_stable_for());
  horizon.plans = std::min(horizon.plans, iterations_before(until));
  if (horizon.plans <= 0) return;
  const std::int64_t uniform = state_.uniform().iterations(horizon, depth());
  if (uniform < 2) return;
  DecodeTimes times = device_.look_ahead();
  const std::int64_t iterations = std::min(uniform, times.steps);
  if (iterations < 2 || !waits_for_device(times, iterations)) return;
  // Near the clock's end, single steps are simulated until one is refused.
  const Picoseconds gap = depth() == 1 ? times.host : Picoseconds{};
  DecodeStretch ahead{std::move(times), iterations, gap, state_.num_waiting() > 0};
  const Int128 longest = ahead.device_time(iterations) + Int128{ahead.host.count()} * iterations;
  if (steps_.latest().end.count() + longest > Picoseconds::max().count()) return;
  stretch_ = std::move(ahead);
}

// Time of iteration i, when the oldest output in flight comes out.
Picoseconds FastForward::iteration_time(std::int64_t i) {
  if (i <= depth()) return steps_[static_cast<int>(i - 1)].end;
  return steps_.latest().end + stretch_.steps_time(i - depth());
}

void FastForward::carry_out_before(Picoseconds at, bool inclusive) {
  if (!is_on()) return;
  std::int64_t n = 0;
  while (n < std::min<std::int64_t>(depth(), stretch_.iterations)) {
    const Picoseconds when = steps_[static_cast<int>(n)].end;
    if (inclusive ? when > at : when >= at) break;
    ++n;
  }
  if (n == std::min<std::int64_t>(depth(), stretch_.iterations))
    n += stretch_.steps_within(at - steps_.latest().end, stretch_.iterations - n, inclusive);
  if (n > 0) carry_out(n);
}

void FastForward::carry_out(std::int64_t n) {
  const Picoseconds first_at = iteration_time(1), last_at = iteration_time(n);
  const std::int64_t rows = static_cast<std::int64_t>(state_.running().size());
  const Int128 whole = stretch_.device_time(n);
  done_.totals.steps += static_cast<std::uint64_t>(n);
  done_.totals.busy += whole;
  done_.totals.rows += static_cast<Int128>(rows) * n;
  done_.totals.tokens += static_cast<Int128>(rows) * n;
  if (stretch_.waits) done_.totals.overload += whole;
  done_.totals.external_fragmentation += state_.memory().external_fragmentation_ppm() * whole;
  if (state_.memory().looks_ahead())
    repeat_memory(n);
  else
    advance_memory(n, whole);
  done_.totals.peak_used_blocks = std::max(done_.totals.peak_used_blocks, state_.used_blocks());

  const auto counted = static_cast<std::uint64_t>(state_.uniform().counted_rows());
  if (counted > 0) add_gaps(n, counted);
  if (state_.watches_tokens()) state_.note_uniform_tokens(first_at, stretch_gaps(n));
  state_.emit_uniform(n, first_at, last_at, steps_, itl_);
  if (const Picoseconds policy = policy_time(n); policy > Picoseconds{}) state_.add_policy_time(policy);
  done_.last_output = last_at;
  done_.outputs += static_cast<std::uint64_t>(n);
  scheduler_.on_repeat(n);
  move_steps(n);
}

// Each block counts from its step on.
void FastForward::advance_memory(std::int64_t n, Int128 whole) {
  done_.totals.used_blocks += static_cast<Int128>(state_.used_blocks()) * whole;
  done_.totals.wasted_tokens += static_cast<Int128>(state_.memory().wasted_tokens()) * whole;
  Int128 blocks = 0, steps = 0, rises = 0;  // of all blocks: the steps before
  state_.uniform().advance(n, [&](std::int64_t iteration) {
    ++blocks;
    steps += iteration - 1;
    rises += triangle(iteration - 1);
  });
  const Int128 held = blocks * whole - steps * stretch_.base.count() - rises * stretch_.slope.count();
  done_.totals.used_blocks += held;
  done_.totals.wasted_tokens += state_.block_tokens() * held;
  done_.totals.wasted_tokens -= static_cast<std::int64_t>(state_.running().size()) * progression_moment(stretch_.base, stretch_.slope, n);
}

void FastForward::repeat_memory(std::int64_t n) {
  state_.uniform().repeat(n, depth(), [&](std::int64_t i) {
    const Int128 time = stretch_.step(i).total.count();
    const std::int64_t used = state_.used_blocks();
    done_.totals.used_blocks += used * time;
    done_.totals.wasted_tokens += state_.memory().wasted_tokens() * time;
    done_.totals.peak_used_blocks = std::max(done_.totals.peak_used_blocks, used);
  });
}

// Gaps of the first n iterations, for `counted` requests.
void FastForward::add_gaps(std::int64_t n, std::uint64_t counted) {
  for (std::int64_t i = 2; i <= std::min<std::int64_t>(n, depth()); ++i)
    itl_.add((iteration_time(i) - iteration_time(i - 1)).count(), counted);
  const std::int64_t others = std::max<std::int64_t>(0, n - depth());
  for (std::int64_t i = 0; i < others && !stretch_.each.empty(); ++i) itl_.add((stretch_.step(i).total + stretch_.gap).count(), counted);
  if (stretch_.each.empty()) itl_.add_progression((stretch_.base + stretch_.gap).count(), stretch_.slope.count(), others, counted);
}

// Between the outputs of the first n iterations.
StretchGaps FastForward::stretch_gaps(std::int64_t n) {
  StretchGaps gaps;
  for (std::int64_t i = 2; i <= std::min<std::int64_t>(n, depth()); ++i) gaps.single.push_back(iteration_time(i) - iteration_time(i - 1));
  const std::int64_t others = std::max<std::int64_t>(0, n - depth());
  for (std::int64_t i = 0; i < others && !stretch_.each.empty(); ++i) gaps.single.push_back(stretch_.step(i).total + stretch_.gap);
  if (!stretch_.each.empty()) return gaps;
  gaps.first = stretch_.base + stretch_.gap;
  gaps.step = stretch_.slope;
  gaps.terms = others;
  return gaps;
}

// For the steps with outputs in the first n iterations.
Picoseconds FastForward::policy_time(std::int64_t n) {
  Picoseconds sum = stretch_.policy_times(std::max<std::int64_t>(0, n - depth()));
  for (int i = 0; i < std::min<std::int64_t>(n, depth()); ++i) sum += steps_[i].policy_time;
  return sum;
}

namespace {

void move_rows(StepPlan& from, StepPlan& to) {
  std::swap(from.entries, to.entries);
  std::swap(from.decodes, to.decodes);
}

}  // namespace

// After n iterations, the last depth() steps are in flight, with the entries of the steps before or rows of the group.
void FastForward::move_steps(std::int64_t n) {
  const Picoseconds tail = steps_.latest().end;
  const bool is_grouped = !state_.decodes().is_empty();
  for (int slot = 0; slot < depth(); ++slot) {
    InFlightStep& mine = steps_[slot];
    const std::int64_t step = n - depth() + slot + 1;  // of the stretch; <= 0: already in flight
    if (step <= 0) {
      InFlightStep& before = steps_[static_cast<int>(slot + n)];
      mine.start = before.start;
      mine.end = before.end;
      mine.policy_time = before.policy_time;
      if (is_grouped) move_rows(before, mine);
    } else {
      if (is_grouped) state_.decodes().fill(mine);
      mine.end = tail + stretch_.steps_time(step);
      const StepTime time = stretch_.step(step - 1);
      mine.start = mine.end - time.total;
      mine.policy_time = time.policy;
    }
  }
  done_.planned += static_cast<std::uint64_t>(n);
  stretch_.drop(n);
  device_.advance(n, steps_.latest().end);
}

}  // namespace kvlab
