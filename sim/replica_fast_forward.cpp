// Fast-forward of a simulated replica: stretches of uniform decode steps are priced once and carried out in one go, with the
// same result to the last digit as step by step. A stretch is cut short by whatever looks at the replica in between.
#include <algorithm>
#include <limits>

#include "sim/replica.h"

namespace kvlab {

bool SimReplica::all_uniform() {
  for (int i = 0; i < depth_; ++i) {
    if (!in_flight(i).is_uniform || in_flight(i).running_version != state_.running_version()) return false;
  }
  return true;
}

// Called with the pipeline full: how far ahead do plans only repeat themselves?
void SimReplica::look_ahead() {
  stretch_.iterations = 0;
  if (state_.has_input() || !state_.plan_was_quiet() || !all_uniform()) return;
  const Horizon horizon = scheduler_->stable_for(state_);
  if (horizon.plans <= 0) return;
  const std::int64_t uniform = state_.uniform_iterations(horizon);
  if (uniform < 2) return;
  StepShape shape;
  const std::int32_t window = cost_->attention_window();
  for (const RequestId id : state_.running()) add_decode_row(shape, state_.table()[id].held_tokens(), window);
  shape.head_rows = shape.decodes;
  shape.padding_rows = scheduler_->padded_tokens(shape.decodes) - shape.decodes;
  const DecodeSpan priced = cost_->decode_span(shape);
  const std::int64_t iterations = std::min(uniform, priced.valid_steps);
  if (iterations < 2) return;
  const Picoseconds host = cost_->host_time(shape);
  if (depth_ > 1 && host > 0) {  // exact only while the device is what steps wait for
    const Picoseconds last = priced.base.total + priced.slope.total * (iterations - 1);
    for (int i = 0; i < depth_; ++i) {
      if (in_flight(i).end - in_flight(i).start < host) return;
    }
    if (std::min(priced.base.total, last) < host) return;
  }
  // Near the end of the clock every step is simulated, and the one that passes it is refused.
  const Int128 longest = progression_sum(priced.base.total, priced.slope.total, iterations) + Int128{host} * iterations;
  if (in_flight(depth_ - 1).end + longest > std::numeric_limits<Picoseconds>::max()) return;
  stretch_.base = priced.base;
  stretch_.slope = priced.slope;
  stretch_.gap = depth_ == 1 ? host : 0;
  stretch_.waits = state_.num_waiting() > 0;
  stretch_.iterations = iterations;
}

// When iteration i takes place: as the oldest output then in flight comes out.
Picoseconds SimReplica::iteration_time(std::int64_t i) {
  if (i <= depth_) return in_flight(static_cast<int>(i - 1)).end;
  return in_flight(depth_ - 1).end + stretch_.steps_time(i - depth_);
}

std::int64_t SimReplica::iterations_before(Picoseconds at, bool inclusive) {
  std::int64_t n = 0;
  while (n < std::min<std::int64_t>(depth_, stretch_.iterations)) {
    const Picoseconds when = in_flight(static_cast<int>(n)).end;
    if (inclusive ? when > at : when >= at) return n;
    ++n;
  }
  return n + stretch_.steps_within(at - in_flight(depth_ - 1).end, stretch_.iterations - n, inclusive);
}

void SimReplica::carry_out(std::int64_t n) {
  const Picoseconds first_at = iteration_time(1), last_at = iteration_time(n);
  const std::int64_t rows = static_cast<std::int64_t>(state_.running().size());
  const auto device = [&](std::int64_t i) { return progression_sum(stretch_.base.total, stretch_.slope.total, i); };
  const Int128 whole = device(n);
  totals_.add_costs(stretch_.base, stretch_.slope, n);
  totals_.rows += static_cast<Int128>(rows) * n;
  totals_.tokens += static_cast<Int128>(rows) * n;
  if (stretch_.waits) totals_.overload += whole;
  totals_.external_fragmentation += state_.external_fragmentation_ppm() * whole;
  totals_.used_blocks += static_cast<Int128>(state_.used_blocks()) * whole;
  totals_.wasted_tokens += static_cast<Int128>(state_.wasted_tokens()) * whole;

  const std::int64_t block_tokens = setup_.memory.block_tokens;
  state_.advance_uniform(n, [&](std::int64_t iteration) {
    const Int128 rest = whole - device(iteration - 1);
    totals_.used_blocks += rest;
    totals_.wasted_tokens += block_tokens * rest;
  });
  totals_.wasted_tokens -= rows * progression_moment(stretch_.base.total, stretch_.slope.total, n);
  totals_.peak_used_blocks = std::max(totals_.peak_used_blocks, state_.used_blocks());

  const std::int64_t counted = state_.counted_rows();
  for (std::int64_t i = 2; counted > 0 && i <= std::min<std::int64_t>(n, depth_); ++i) {
    itl_.add(iteration_time(i) - iteration_time(i - 1), static_cast<std::uint64_t>(counted));
  }
  if (counted > 0 && n > depth_) {
    itl_.add_progression(stretch_.base.total + stretch_.gap, stretch_.slope.total, n - depth_, static_cast<std::uint64_t>(counted));
  }
  state_.emit_uniform(n, first_at, last_at, itl_);
  last_output_ = last_at;

  // The last depth_ steps planned are in flight now; they have the entries of those before them.
  const Picoseconds tail = in_flight(depth_ - 1).end;
  for (int slot = 0; slot < depth_; ++slot) {
    InFlightStep& mine = in_flight(slot);
    const std::int64_t step = n - depth_ + slot + 1;  // of the stretch; <= 0: it was in flight already
    if (step <= 0) {
      const InFlightStep& before = in_flight(static_cast<int>(slot + n));
      mine.start = before.start;
      mine.end = before.end;
    } else {
      mine.end = tail + stretch_.steps_time(step);
      mine.start = mine.end - stretch_.base.total - stretch_.slope.total * (step - 1);
    }
  }
  stage_free_[0] = in_flight(depth_ - 1).end;
  next_step_ += static_cast<std::uint64_t>(n);
  stretch_.drop(n);
}

}  // namespace kvlab
