#include "sim/device.h"

#include <algorithm>
#include <utility>

#include "base/checked_time.h"
#include "base/error.h"
#include "serving/totals.h"

namespace kvlab {

namespace {

bool same_work(const PolicyOp& a, const PolicyOp& b) {
  return a.name == b.name && a.launches == b.launches && a.bytes == b.bytes && a.flops == b.flops;
}

bool runs_along_line(const DecodeAhead& ahead) {
  const std::vector<std::vector<std::int32_t>>& rows = ahead.attended;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    if (!std::equal(ahead.ops[0].begin(), ahead.ops[0].end(), ahead.ops[i].begin(), ahead.ops[i].end(), same_work)) return false;
    for (std::size_t s = 0; s < rows[i].size(); ++s) {
      const std::int32_t more = rows[1][s] - rows[0][s];
      if ((more != 0 && more != 1) || rows[i][s] - rows[i - 1][s] != more) return false;
    }
  }
  return true;
}

}  // namespace

void LockStep::begin(StepPricer& pricer, CostModel& cost, InFlightStep& step, CostTotals& totals, Picoseconds ready) {
  if (parts_.size() == ranks_) parts_.clear();
  if (parts_.empty()) ready_ = planned_ = {};
  pricer.collect_rank(step);
  planned_ = std::max(planned_, ready);
  ready_ = std::max(ready_, add_time(ready, cost.host_time(pricer.shape()), kLateStep));
  parts_.push_back({&pricer, &step, &totals});
  if (parts_.size() == ranks_) time_step();
}

void LockStep::finish(InFlightStep& step) const {
  if (parts_.size() != ranks_) throw InternalError("a step ends before all ranks have begun it");
  step.start = start_;
  step.end = end_;
}

// The rows of each rank where all run graphs; 0: each has its own.
std::int32_t LockStep::common_rows() const {
  std::int32_t most = 0;
  for (const Part& part : parts_) most = std::max(most, part.pricer->computed_rows());
  const bool all_graphs =
      std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) { return most <= part.pricer->largest_graph_rows(); });
  return all_graphs ? most : 0;
}

void LockStep::time_step() {
  GroupTokens group;
  const std::int32_t rows = common_rows();
  for (const Part& part : parts_) {
    if (rows > 0) part.pricer->pad_to(rows);
    group.add(part.pricer->useful_rows(), part.pricer->computed_rows());
  }
  longest_.assign(stage_free_.size(), {});
  for (const Part& part : parts_) {
    const StepCost cost = part.pricer->price_rank(*part.step, group);
    part.totals->add(cost);
    part.step->policy_time = cost.of(CostPart::kPolicy);
    if (longest_.size() > 1)
      part.pricer->stage_times(stage_times_);
    else
      stage_times_ = {cost.total};
    for (std::size_t s = 0; s < longest_.size(); ++s) longest_[s] = std::max(longest_[s], stage_times_[s]);
  }
  start_ = std::max(stage_free_[0], ready_);
  const Picoseconds for_host = start_ - std::max(stage_free_[0], planned_);
  for (const Part& part : parts_) part.totals->host += for_host.count();
  end_ = pass_stages(ready_, longest_, stage_free_);
}

SimDevice::SimDevice(std::shared_ptr<CostModel> cost, const LinkSetup& swap_link, const MemorySetup& memory,
                     std::shared_ptr<LockStep> group, EncodeCost encode)
    : cost_(std::move(cost)),
      block_bytes_(memory.block_bytes),
      swapped_bytes_(memory.copy_bytes()),
      group_(std::move(group)),
      encode_(std::move(encode)),
      to_host_(swap_link),
      from_host_(swap_link),
      stage_free_(static_cast<std::size_t>(cost_->num_stages())),
      totals_(*cost_) {}

Device::Traits SimDevice::traits() const {
  Traits traits;
  traits.num_stages = cost_->num_stages();
  traits.takes_decode_rows = true;
  const AttentionWindows windows = cost_->windows();
  traits.wants_each_row = windows.every_layer > 0 || windows.some_layers > 0;
  return traits;
}

void SimDevice::attach(ReplicaState& state, const Scheduler& scheduler) {
  state_ = &state;
  scheduler_ = &scheduler;
  pricer_.emplace(*cost_, scheduler, encode_);
  state.estimate_step = [this](const StepOutline& outline) { return estimate(outline); };
  state.estimate_copies_in = [this](std::span<const SwapCopy> copies, Time now) { return time_in(copies, now); };
  if (!state.pool().cache().weighs_cost()) return;
  state.memory().recompute_seconds = [cost = cost_.get()](std::int32_t tokens, std::int32_t kv_before) {
    return cost->prefill_seconds(tokens, kv_before);
  };
}

// Rows count as alike.
Span SimDevice::estimate(const StepOutline& outline) {
  const auto kv = static_cast<std::int32_t>(outline.decode_kv_tokens / std::max(1, outline.decodes));
  StepShape shape = equal_decode_rows(outline.decodes, kv, cost_->windows());
  const PrefillPiece piece{outline.prompt_tokens, outline.prompt_kv_before};
  if (outline.prompt_tokens > 0) shape.prefills = {&piece, 1};
  const auto rows = static_cast<std::int32_t>(shape.tokens());
  if (rows == 0) return Span{0};
  shape.head_rows = shape.decodes + (outline.prompt_tokens > 0 ? 1 : 0);
  shape.padding_rows = scheduler_->padded_tokens(rows) - rows;
  return to_span(cost_->step(shape).total + cost_->host_time(shape));
}

// Until the last copy to the GPU ends, if all are asked for now.
Span SimDevice::time_in(std::span<const SwapCopy> copies, Time now) const {
  const Picoseconds at = to_ps(now - kStart);
  Picoseconds end = at;
  for (const SwapCopy& copy : copies)
    if (!copy.to_host && !copy.is_import) end = from_host_.end_of(end, copy.blocks * swapped_bytes_, copy.calls);
  return to_span(end - at);
}

Picoseconds SimDevice::copy(const SwapCopy& copy, Picoseconds at) {
  const std::int64_t bytes = copy.blocks * (copy.is_stored ? block_bytes_ : swapped_bytes_);
  return (copy.to_host ? to_host_ : from_host_).transfer(at, bytes, copy.calls);
}

bool SimDevice::begin(InFlightStep& step, Picoseconds at) {
  if (group_ != nullptr) {
    group_->begin(*pricer_, *cost_, step, totals_, at);
    return false;
  }
  const StepCost cost = pricer_->price(step);
  totals_.add(cost);
  if (!step.policy.empty()) step.policy_time = cost.of(CostPart::kPolicy);
  const Picoseconds without_host = std::max(stage_free_[0], at);
  const Picoseconds ready = add_time(at, cost_->host_time(pricer_->shape()), kLateStep);
  if (stage_free_.size() > 1) {
    time_stages(step, ready);
  } else {
    step.start = std::max(stage_free_[0], ready);
    step.end = stage_free_[0] = add_time(step.start, cost.total, kLateStep);
  }
  totals_.host += (step.start - without_host).count();
  return true;
}

void SimDevice::finish(InFlightStep& step) {
  if (group_ == nullptr) return Device::finish(step);
  group_->finish(step);
}

void SimDevice::time_stages(InFlightStep& step, Picoseconds ready) {
  pricer_->stage_times(stage_times_);
  step.start = std::max(stage_free_[0], ready);
  step.end = pass_stages(ready, stage_times_, stage_free_);
}

double SimDevice::prefill_seconds(std::int64_t tokens, std::int64_t kv_before) {
  return cost_->prefill_seconds(static_cast<std::int32_t>(tokens), static_cast<std::int32_t>(kv_before));
}

// Equal rows.
double SimDevice::decode_seconds(std::int64_t rows, std::int64_t kv_tokens) {
  if (rows <= 0) return 0;
  StepShape shape = equal_decode_rows(static_cast<std::int32_t>(rows), static_cast<std::int32_t>(kv_tokens / rows), cost_->windows());
  shape.head_rows = shape.decodes;
  return to_s(cost_->step(shape).total);
}

DecodeTimes SimDevice::look_ahead() {
  costs_.clear();
  if (state_->memory().looks_ahead()) return look_ahead_of(state_->memory().ahead());
  StepShape shape;
  const AttentionWindows windows = cost_->windows();
  if (!state_->decodes().is_empty())
    add_decode_rows(shape, state_->decodes().next_rows(), windows);
  else
    for (const RequestId id : state_->running()) add_decode_row(shape, state_->table()[id].held_tokens(), windows);
  return times_of(shape);
}

// All rows gain a token, or none. Only attention grows, so the policy's part is constant.
DecodeTimes SimDevice::times_of(StepShape& shape) {
  shape.head_rows = shape.decodes;
  shape.padding_rows = scheduler_->padded_tokens(shape.decodes) - shape.decodes;
  const DecodeSpan priced = cost_->decode_span(shape);
  base_ = priced.base;
  slope_ = priced.slope;
  return {base_.total, slope_.total, cost_->host_time(shape), priced.valid_steps, base_.of(CostPart::kPolicy)};
}

// Linear if the policy's operations stay the same and each row gains one token per step or none.
DecodeTimes SimDevice::look_ahead_of(const DecodeAhead& ahead) {
  DecodeTimes times;
  if (ahead.steps() == 0) return times;
  const AttentionWindows windows = cost_->windows();
  const bool is_line = windows.every_layer == 0 && windows.some_layers == 0 && runs_along_line(ahead);
  for (std::size_t i = 0; i < (is_line ? 1 : ahead.ops.size()); ++i) {
    StepShape shape;
    for (std::size_t s = 0; s < ahead.attended[i].size(); ++s) {
      add_decode_row(shape, ahead.attended[i][s], windows);
      if (is_line && ahead.attended[1][s] == ahead.attended[0][s]) ++shape.decode_full;
    }
    shape.ops = ahead.ops[i];
    if (is_line) {
      times = times_of(shape);
      times.steps = std::min(times.steps, ahead.steps());
      return times;
    }
    shape.head_rows = shape.decodes;
    shape.padding_rows = scheduler_->padded_tokens(shape.decodes) - shape.decodes;
    costs_.push_back(cost_->step(shape));
    times.each.push_back({costs_.back().total, costs_.back().of(CostPart::kPolicy)});
    times.host = cost_->host_time(shape);
  }
  times.base = times.each.front().total;
  times.steps = ahead.steps();
  return times;
}

void SimDevice::advance(std::int64_t n, Picoseconds end) {
  Int128 device = 0;
  if (costs_.empty()) {
    totals_.add(base_, slope_, n);
    device = progression_sum(base_.total, slope_.total, n);
    base_.add(slope_, n);
  } else {
    for (std::int64_t i = 0; i < n; ++i) {
      totals_.add(costs_[static_cast<std::size_t>(i)]);
      device += costs_[static_cast<std::size_t>(i)].total.count();
    }
    costs_.erase(costs_.begin(), costs_.begin() + n);
  }
  totals_.host += (end - stage_free_[0]).count() - device;
  stage_free_[0] = end;
}

}  // namespace kvlab
