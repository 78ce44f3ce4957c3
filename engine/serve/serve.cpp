#include "engine/serve/serve.h"

#include <algorithm>

#include "base/error.h"
#include "engine/serve/content.h"
#include "engine/serve/engine_replica.h"

namespace kvlab {

namespace {

constexpr Picoseconds kNeverPs = INT64_MAX;

ReplicaLimits serve_limits(const ServeSetup& setup, const Scheduler& scheduler, const StepExecutor& executor) {
  ReplicaLimits limits;
  limits.block_tokens = setup.memory.block_tokens;
  limits.max_model_len = setup.max_model_len;
  limits.host_blocks = setup.memory.host_blocks;
  limits.is_contiguous = scheduler.wants_contiguous_memory();
  limits.prefix_caching = setup.memory.prefix_caching && !limits.is_contiguous;
  limits.unnamed_rest = executor.may_rest();
  limits.plans_over_unknown = scheduler.pipeline_depth() > 1;
  limits.count_from = kStart + setup.warmup;
  return limits;
}

std::unique_ptr<BlockPool> serve_pool(const ServeSetup& setup, std::vector<BlockId>& split) {
  std::unique_ptr<BlockCache> cache = setup.make_block_cache();
  if (cache->needs_future()) throw InputError("the engine cannot run a block cache that knows the future");
  auto pool =
      std::make_unique<BlockPool>(static_cast<std::uint32_t>(setup.memory.num_blocks), setup.memory.pages_per_block, std::move(cache));
  pool->split_log = &split;
  return pool;
}

StepExecutor::Options executor_options(const ServeSetup& setup) {
  StepExecutor::Options options;
  options.num_blocks = setup.memory.num_blocks, options.host_blocks = setup.memory.host_blocks;
  options.block_tokens = setup.memory.block_tokens;
  options.seed = setup.seed, options.temperature = setup.temperature;
  options.keeps_tokens = setup.emitted != nullptr;
  options.shares_blocks = setup.memory.prefix_caching;
  options.longest_tokens = std::min(setup.max_model_len, setup.longest_tokens > 0 ? setup.longest_tokens : setup.max_model_len);
  return options;
}

// What the scheduler's steps come to at most, as far as the blocks hold it. Where it does not say: the longest request, and a guess.
EngineModel::Load largest_load(const ServeSetup& setup, const Scheduler& scheduler) {
  constexpr std::int32_t kRequests = 256;
  const MemorySetup& memory = setup.memory;
  const std::int64_t cached = memory.num_blocks * memory.block_tokens;
  std::int64_t longest = std::min<std::int64_t>({setup.max_model_len, setup.model->config().max_tokens, cached});
  if (setup.longest_tokens > 0) longest = std::min<std::int64_t>(longest, setup.longest_tokens);
  const StepBounds bounds = scheduler.step_bounds(setup.max_model_len);
  EngineModel::Load load;
  load.sequences = static_cast<std::int32_t>(std::min<std::int64_t>(bounds.requests > 0 ? bounds.requests : kRequests, memory.num_blocks));
  load.tokens = static_cast<std::int32_t>(longest);
  load.step_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(bounds.tokens > 0 ? bounds.tokens : longest, cached));
  load.cached_tokens = cached;
  return load;
}

Time to_time(Picoseconds at) { return Time(Span(at / kPsPerNs)); }

}  // namespace

EngineReplica::EngineReplica(const ServeSetup& setup, TraceSource& trace, RunSink& sink)
    : setup_(setup),
      trace_(trace),
      sink_(sink),
      scheduler_(setup.make_scheduler()),
      executor_(*setup.model, *setup.recipe, executor_options(setup)),
      state_(serve_limits(setup, *scheduler_, executor_), serve_pool(setup, split_), setup.make_footprint()),
      arrivals_(trace, setup.stop),
      metrics_(setup.slo, kStart + setup.warmup),
      lane_(setup.nominal_time ? make_nominal_lane(executor_) : make_thread_lane(executor_, setup.stays_awake)),
      stop_(setup.stop.after_time.count() > 0 ? ns(setup.stop.after_time) * kPsPerNs : kNeverPs - 1) {
  state_.events = &events_;
}

ServingSummary EngineReplica::run() {
  first_arrival_ = arrivals_.next_root() == Arrivals::kNoMore ? 0 : arrivals_.next_root();
  if (!setup_.nominal_time) executor_.warm_up(largest_load(setup_, *scheduler_));
  lane_->start();
  while (true) {
    if (setup_.each_turn) setup_.each_turn();
    const Picoseconds clock = lane_->now(), now = std::min(clock, stop_);
    sample_until(now);
    take_arrivals(now);
    if (clock > stop_) break;
    plan(now);
    if (!handed_.empty()) {
      take_output();
      continue;
    }
    const Time wake = state_.has_requests() ? scheduler_->wants_plan_at() : kNever;
    const Picoseconds next = std::min(next_arrival(), wake == kNever ? kNeverPs : std::max(now + kPsPerNs, ns(wake) * kPsPerNs));
    if (next == kNeverPs) break;
    lane_->wait_until(std::min(next, stop_ + 1));
  }
  while (!handed_.empty()) {  // after a stop rule: what still runs is awaited, and not counted
    static_cast<void>(lane_->wait_output());
    handed_.pop_front();
  }
  return finish();
}

Picoseconds EngineReplica::next_arrival() const {
  return std::min(arrivals_.next_root(), follow_ups_.empty() ? kNeverPs : follow_ups_.top().at);
}

void EngineReplica::take_arrivals(Picoseconds now) {
  for (Picoseconds at = next_arrival(); at <= now; at = next_arrival()) {
    TraceRequest request;
    std::uint64_t number = 0;
    if (arrivals_.next_root() <= at) {
      arrivals_.take_root(request, number);
    } else {
      arrivals_.take_follow_up(follow_ups_.top().turn, request, number);
      follow_ups_.pop();
    }
    arrive(request, number, at);
  }
}

void EngineReplica::arrive(const TraceRequest& request, std::uint64_t number, Picoseconds at) {
  state_.receive(request, number, to_time(at), arrivals_.keeps_hashes());
  const bool is_refused = !state_.outbox().empty();
  if (!is_refused) {
    const RequestId id = state_.newest_input();
    mirrors_[number] = {};
    job_.arrived.push_back({number, static_cast<std::int32_t>(index(id)), request.prompt_tokens,
                            request_content(request, number, setup_.seed, setup_.model->config().vocab_size)});
  }
  collect(at);
}

void EngineReplica::plan(Picoseconds now) {
  const int depth = scheduler_->pipeline_depth();
  while (steps_in_flight_ < depth && plan_one(now)) now = lane_->now();
  if (steps_in_flight_ > 0) end_swaps(now);  // jobs run in their order: a later step finds what they copy
}

bool EngineReplica::plan_one(Picoseconds now) {
  state_.begin_plan(to_time(now));
  plan_.clear();
  scheduler_->plan(state_, plan_);
  note_events();
  for (const ReplicaState::Finished& finished : state_.outbox()) scheduler_->on_finish(finished.id);
  collect(now);
  const bool has_copies = add_swaps();
  if (plan_.is_empty()) {
    if (has_copies) hand_over({});
    return false;
  }
  if (plan_.idle_rows > 0 ||
      std::any_of(plan_.entries.begin(), plan_.entries.end(), [](const PlanEntry& e) { return e.padded_tokens > 0; }))
    throw InputError("the scheduler pads its batches, which the engine does not; choose another scheduler for 'host: engine'");
  if (std::any_of(plan_.entries.begin(), plan_.entries.end(), [](const PlanEntry& e) { return e.layer_begin > 0 || e.layer_end > 0; }))
    throw InputError("the scheduler plans layers apart, which the engine does not run; choose another scheduler for 'host: engine'");
  Handed handed;
  handed.is_step = true;
  state_.commit(plan_, handed.step);
  handed.step.number = next_step_++;
  handed.step.planned = now;
  fill_job(handed);
  hand_over(std::move(handed));
  return true;
}

// What a plan or an output did to sequences' memory, in its order.
void EngineReplica::note_events() {
  using Kind = MemoryAction::Kind;
  for (const RequestEventRecord& event : events_) {
    sink_.event(event);
    const auto found = mirrors_.find(event.request);
    if (found == mirrors_.end()) continue;
    Mirror& mirror = found->second;
    const bool was_computed = !job_.actions.empty() && job_.actions.back().request == event.request;
    if (event.event == RequestEvent::kPreempted && mirror.has_started) {
      job_.actions.push_back({Kind::kForget, event.request});
      mirror = {};
    } else if (event.event == RequestEvent::kSwappedOut && was_computed) {  // comes right behind its kPreempted
      job_.actions.back().kind = Kind::kSwapOut;
      mirror.has_started = true;
    } else if (event.event == RequestEvent::kFinished || event.event == RequestEvent::kRejected) {
      job_.actions.push_back({Kind::kFinish, event.request});
      mirrors_.erase(found);
    }
  }
  events_.clear();
}

// Answers whether anything comes in.
bool EngineReplica::add_swaps() {
  const std::size_t before = coming_in_.size();
  for (const SwapCopy& copy : state_.swap_copies()) {
    if (copy.to_host) continue;
    coming_in_.push_back(copy.request);
    const Request& r = state_.table()[copy.request];
    Mirror& mirror = mirrors_.at(r.number);
    if (!mirror.has_started) continue;  // preempted in the plan that admitted it: nothing was computed
    job_.actions.push_back({MemoryAction::Kind::kSwapIn, r.number, blocks_from(r, 0)});
    mirror.num_blocks = r.blocks.size();
  }
  state_.swap_copies().clear();
  return coming_in_.size() > before;
}

void EngineReplica::end_swaps(Picoseconds at) {
  for (const RequestId r : coming_in_) state_.finish_swap_in(r, to_time(at));
  coming_in_.clear();
  note_events();
}

std::vector<TakenBlock> EngineReplica::blocks_from(const Request& r, std::size_t first) const {
  std::vector<TakenBlock> blocks;
  for (std::size_t i = first; i < r.blocks.size(); ++i) blocks.push_back({r.blocks[i], state_.pool().takes(r.blocks[i])});
  return blocks;
}

void EngineReplica::fill_job(Handed& handed) {
  for (const StepEntry& entry : handed.step.entries) {
    const Request& r = state_.table()[entry.request];
    Mirror& mirror = mirrors_.at(r.number);
    StepRow row;
    row.request = r.number;
    row.end = entry.computed_before + entry.tokens;
    row.emits = entry.emits;
    row.prompt_tokens = entry.ends_prompt ? row.end : r.prompt_tokens;
    row.leaves_blocks = entry.leaves_hashed;
    row.is_published = r.num_hashes > 0;
    if (!mirror.has_started) row.hit_tokens = entry.computed_before;
    if (!r.left_hashed || entry.leaves_hashed) {
      row.new_blocks = blocks_from(r, mirror.num_blocks);
      mirror.num_blocks = r.blocks.size();
    }
    mirror.has_started = true;
    job_.rows.push_back(std::move(row));
  }
}

void EngineReplica::hand_over(Handed handed) {
  job_.split = std::move(split_);
  split_.clear();
  handed.waiting = state_.num_waiting();
  handed.used_blocks = state_.used_blocks();
  handed.wasted_tokens = state_.wasted_tokens();
  handed.external_ppm = state_.external_fragmentation_ppm();
  const Picoseconds nominal = setup_.nominal_time && handed.is_step ? setup_.nominal_time(handed.step) : 0;
  if (handed.is_step) ++steps_in_flight_;
  handed_.push_back(std::move(handed));
  lane_->submit(std::move(job_), nominal);
  job_ = {};
  if (setup_.inspect && setup_.nominal_time) setup_.inspect(state_, executor_);
}

void EngineReplica::take_output() {
  const StepLane::Output output = lane_->wait_output();
  Handed handed = std::move(handed_.front());
  handed_.pop_front();
  if (output.end > stop_) return;  // nor is what ends behind the rule
  last_output_ = output.end;
  if (handed.is_step) {
    handed.step.start = output.start;
    handed.step.end = output.end;
    --steps_in_flight_;
    count(handed);
    if (setup_.step_done) setup_.step_done(handed.step, static_cast<std::size_t>(handed.waiting));
    if (sink_.wants_steps()) tell_sink(handed);
    state_.process_output(handed.step, output.end, metrics_.itl());
    for (const ReplicaState::Finished& finished : state_.outbox()) scheduler_->on_finish(finished.id);
  }
  end_swaps(output.end);  // of copies alone: with a step in flight plan() did it
  collect(output.end);
}

// Takes finished requests out and lets what waits for them follow.
void EngineReplica::collect(Picoseconds at) {
  for (const ReplicaState::Finished& finished : state_.outbox()) {
    metrics_.add(finished.record);
    sink_.request(finished.record);
    if (finished.reason != nullptr && first_rejection_.empty()) first_rejection_ = finished.reason;
    Picoseconds arrives = 0;
    std::uint32_t turn = 0;
    if (arrivals_.follow_up(finished.record.number, at, arrives, turn))
      follow_ups_.push({arrives, follow_up_order_++, turn});
    else
      arrivals_.session_ended(at);
  }
  state_.outbox().clear();
}

ServingSummary serve(const ServeSetup& setup, TraceSource& trace, RunSink& sink) { return EngineReplica(setup, trace, sink).run(); }

}  // namespace kvlab
