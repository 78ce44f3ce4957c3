// Fast-forward of a replica: stretches of uniform decode steps are priced once and carried out in one go, with the same
// result to the last digit as step by step. A stretch is cut short by any event that reads or changes the replica.
#include <algorithm>

#include "serving/replica.h"

namespace kvlab {

bool Replica::all_uniform() {
  for (int i = 0; i < depth_; ++i) {
    if (!in_flight(i).is_uniform || in_flight(i).running_version != first_.state.queues().running_version()) return false;
  }
  return true;
}

// Steps in a pipeline are exact only while they wait for the device, not for the host.
bool Replica::waits_for_device(const DecodeTimes& times, std::int64_t iterations) {
  if (depth_ == 1 || times.host == Picoseconds{}) return true;
  for (int i = 0; i < depth_; ++i) {
    if (in_flight(i).end - in_flight(i).start < times.host) return false;
  }
  if (!times.each.empty()) return *std::min_element(times.each.begin(), times.each.begin() + iterations) >= times.host;
  return std::min(times.base, times.base + times.slope * (iterations - 1)) >= times.host;
}

// Called with the pipeline full: sets the stretch in which plans only repeat themselves.
void Replica::look_ahead() {
  stretch_.iterations = 0;
  if (first_.state.copies_out().last() > in_flight(0).end) return;  // a plan before that may take a block that is still copied
  if (!first_.state.queues().input().empty() || !first_.state.plan_was_quiet() || !all_uniform()) return;
  Horizon horizon = first_.scheduler->stable_for(first_.state);
  if (horizon.plans <= 0) return;
  horizon = horizon.within(first_.state.order_is_stable_for());
  if (horizon.plans <= 0) return;
  const std::int64_t uniform = first_.state.uniform().iterations(horizon, depth_);
  if (uniform < 2) return;
  DecodeTimes times = first_.device->look_ahead();
  const std::int64_t iterations = std::min(uniform, times.steps);
  if (iterations < 2 || !waits_for_device(times, iterations)) return;
  // Near the end of the clock every step is simulated, and the one that passes it is refused.
  DecodeStretch ahead{iterations,
                      times.base,
                      times.slope,
                      depth_ == 1 ? times.host : Picoseconds{},
                      first_.state.num_waiting() > 0,
                      times.policy,
                      std::move(times.each),
                      std::move(times.each_policy)};
  const Int128 longest = ahead.device_time(iterations) + Int128{times.host.count()} * iterations;
  if (in_flight(depth_ - 1).end.count() + longest > Picoseconds::max().count()) return;
  stretch_ = std::move(ahead);
}

// Time of iteration i, at which the oldest output then in flight comes out.
Picoseconds Replica::iteration_time(std::int64_t i) {
  if (i <= depth_) return in_flight(static_cast<int>(i - 1)).end;
  return in_flight(depth_ - 1).end + stretch_.steps_time(i - depth_);
}

std::int64_t Replica::iterations_before(Picoseconds at, bool inclusive) {
  std::int64_t n = 0;
  while (n < std::min<std::int64_t>(depth_, stretch_.iterations)) {
    const Picoseconds when = in_flight(static_cast<int>(n)).end;
    if (inclusive ? when > at : when >= at) return n;
    ++n;
  }
  return n + stretch_.steps_within(at - in_flight(depth_ - 1).end, stretch_.iterations - n, inclusive);
}

void Replica::carry_out(std::int64_t n) {
  const Picoseconds first_at = iteration_time(1), last_at = iteration_time(n);
  const std::int64_t rows = static_cast<std::int64_t>(first_.state.running().size());
  const Int128 whole = stretch_.device_time(n);
  totals_.steps += static_cast<std::uint64_t>(n);
  totals_.busy += whole;
  totals_.rows += static_cast<Int128>(rows) * n;
  totals_.tokens += static_cast<Int128>(rows) * n;
  if (stretch_.waits) totals_.overload += whole;
  totals_.external_fragmentation += first_.state.memory().external_fragmentation_ppm() * whole;
  if (first_.state.memory().looks_ahead())
    repeat_memory(n);
  else
    advance_memory(n, whole);
  totals_.peak_used_blocks = std::max(totals_.peak_used_blocks, first_.state.used_blocks());

  const auto counted = static_cast<std::uint64_t>(first_.state.uniform().counted_rows());
  if (counted > 0) add_gaps(n, counted);
  if (first_.state.watches_tokens()) first_.state.note_uniform_tokens(first_at, stretch_gaps(n));
  first_.state.emit_uniform(n, first_at, last_at, itl_);
  if (const Picoseconds policy = policy_time(n); policy > Picoseconds{}) first_.state.add_policy_time(policy);
  last_output_ = last_at;
  num_outputs_ += static_cast<std::uint64_t>(n);
  first_.scheduler->on_repeat(n);
  move_steps(n);
}

// Blocks that are taken one at a time; each counts from its step on.
void Replica::advance_memory(std::int64_t n, Int128 whole) {
  totals_.used_blocks += static_cast<Int128>(first_.state.used_blocks()) * whole;
  totals_.wasted_tokens += static_cast<Int128>(first_.state.memory().wasted_tokens()) * whole;
  const std::int64_t block_tokens = pool_.memory.block_tokens;
  first_.state.uniform().advance(n, [&](std::int64_t iteration) {
    const Int128 rest = whole - stretch_.device_time(iteration - 1);
    totals_.used_blocks += rest;
    totals_.wasted_tokens += block_tokens * rest;
  });
  totals_.wasted_tokens -= static_cast<std::int64_t>(first_.state.running().size()) * progression_moment(stretch_.base, stretch_.slope, n);
}

// Memory of a policy that looks ahead, step by step.
void Replica::repeat_memory(std::int64_t n) {
  first_.state.uniform().repeat(n, depth_, [&](std::int64_t i) {
    const Int128 time = stretch_.step_time(i).count();
    const std::int64_t used = first_.state.used_blocks();
    totals_.used_blocks += used * time;
    totals_.wasted_tokens += first_.state.memory().wasted_tokens() * time;
    totals_.peak_used_blocks = std::max(totals_.peak_used_blocks, used);
  });
}

// Adds the gaps of the first n iterations, for `counted` requests.
void Replica::add_gaps(std::int64_t n, std::uint64_t counted) {
  for (std::int64_t i = 2; i <= std::min<std::int64_t>(n, depth_); ++i)
    itl_.add((iteration_time(i) - iteration_time(i - 1)).count(), counted);
  const std::int64_t others = std::max<std::int64_t>(0, n - depth_);
  for (std::int64_t i = 0; i < others && !stretch_.each.empty(); ++i) itl_.add((stretch_.step_time(i) + stretch_.gap).count(), counted);
  if (stretch_.each.empty()) itl_.add_progression((stretch_.base + stretch_.gap).count(), stretch_.slope.count(), others, counted);
}

// The gaps between the outputs of its first n iterations.
StretchGaps Replica::stretch_gaps(std::int64_t n) {
  StretchGaps gaps;
  for (std::int64_t i = 2; i <= std::min<std::int64_t>(n, depth_); ++i) gaps.single.push_back(iteration_time(i) - iteration_time(i - 1));
  const std::int64_t others = std::max<std::int64_t>(0, n - depth_);
  for (std::int64_t i = 0; i < others && !stretch_.each.empty(); ++i) gaps.single.push_back(stretch_.step_time(i) + stretch_.gap);
  if (!stretch_.each.empty()) return gaps;
  gaps.first = stretch_.base + stretch_.gap;
  gaps.step = stretch_.slope;
  gaps.terms = others;
  return gaps;
}

// The KV policy's part of the steps whose outputs come out in its first n iterations.
Picoseconds Replica::policy_time(std::int64_t n) {
  Picoseconds sum = stretch_.policy_times(std::max<std::int64_t>(0, n - depth_));
  for (int i = 0; i < std::min<std::int64_t>(n, depth_); ++i) sum += in_flight(i).policy_time;
  return sum;
}

// The last depth_ steps planned are in flight after n iterations; they have the entries of the steps before them.
void Replica::move_steps(std::int64_t n) {
  const Picoseconds tail = in_flight(depth_ - 1).end;
  for (int slot = 0; slot < depth_; ++slot) {
    InFlightStep& mine = in_flight(slot);
    const std::int64_t step = n - depth_ + slot + 1;  // of the stretch; <= 0: it was in flight already
    if (step <= 0) {
      const InFlightStep& before = in_flight(static_cast<int>(slot + n));
      mine.start = before.start;
      mine.end = before.end;
      mine.policy_time = before.policy_time;
    } else {
      mine.end = tail + stretch_.steps_time(step);
      mine.start = mine.end - stretch_.step_time(step - 1);
      mine.policy_time = stretch_.policy_time(step - 1);
    }
  }
  next_step_ += static_cast<std::uint64_t>(n);
  stretch_.drop(n);
  first_.device->advance(n, in_flight(depth_ - 1).end);
}

}  // namespace kvlab
