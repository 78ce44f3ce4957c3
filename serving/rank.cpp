#include "serving/rank.h"

#include <utility>

#include "policies/predictor/exact.h"

namespace kvlab {

namespace {

ReplicaLimits limits_of(const HostSetup& setup, const PoolSetup& pool, std::uint32_t number, const Scheduler& scheduler,
                        const Device::Traits& traits, bool wants_steps) {
  ReplicaLimits limits;
  static_cast<RankMemory&>(limits) = static_cast<const RankMemory&>(pool.memory);
  limits.max_model_len = pool.max_model_len;
  limits.is_contiguous = scheduler.wants_contiguous_memory();
  limits.prefix_caching = limits.prefix_caching && !limits.is_contiguous;
  limits.unnamed_rest = traits.unnamed_rest;
  limits.groups_decodes =
      setup.fast_forward && traits.takes_decode_rows && traits.num_stages == 1 && !wants_steps && !scheduler.plans_layers();
  limits.lists_rows = traits.wants_each_row;
  limits.plans_over_unknown = scheduler.pipeline_depth() > 1 && traits.num_stages == 1;
  limits.count_from = kStart + setup.warmup;
  limits.scheduler_predicts = scheduler.uses_predictor();
  limits.replica = number;
  if (setup.images.pools.empty()) limits.image_tokens = setup.images.tokens_each;
  limits.slo = &setup.slo;
  if (setup.expected_text) limits.expected_text = &*setup.expected_text;
  return limits;
}

std::unique_ptr<BlockPool> make_blocks(const HostSetup& setup, const PoolSetup& pool) {
  std::unique_ptr<BlockCache> cache = pool.make_block_cache();
  BlockCache& oracle = *cache;
  auto blocks =
      std::make_unique<BlockPool>(static_cast<std::uint32_t>(pool.memory.num_blocks), pool.memory.pages_per_block, std::move(cache));
  if (oracle.needs_future()) oracle.set_future(setup.future_keys);  // the pool has reset it
  return blocks;
}

// One step per pipeline stage.
int depth_of(const Scheduler& scheduler, const Device& device) {
  const int stages = device.traits().num_stages;
  return stages > 1 ? stages : scheduler.pipeline_depth();
}

}  // namespace

std::unique_ptr<Predictor> make_predictor(const HostSetup& setup, const PoolSetup& pool) {
  std::unique_ptr<Predictor> predictor = pool.make_predictor ? pool.make_predictor() : std::make_unique<ExactPredictor>();
  predictor->set_seed(setup.seed);
  return predictor;
}

Rank::Rank(const FleetContext& fleet, const PoolSetup& pool, std::uint32_t number, std::unique_ptr<Device> its_device)
    : scheduler(pool.make_scheduler()),
      device(std::move(its_device)),
      state(limits_of(fleet.setup, pool, number, *scheduler, device->traits(), fleet.sink.wants_steps()), make_blocks(fleet.setup, pool),
            pool.make_footprint(), pool.make_order ? pool.make_order() : nullptr, make_predictor(fleet.setup, pool)),
      steps(depth_of(*scheduler, *device)),
      queue_(fleet.queue),
      sink_(fleet.sink),
      itl_(fleet.itl),
      transfers_(fleet.transfers),
      block_bytes_(pool.memory.block_bytes) {
  state.memory().lookup_log = fleet.setup.record_lookups;
  if (sink_.wants_steps() || device->traits().wants_events) state.events = &events_;
  device->attach(state, *scheduler);
}

void Rank::receive(const TraceRequest& request, Time arrival, bool prefill_only, const std::optional<PromptStores>& stores) {
  const std::size_t before = state.outbox().size();
  state.receive(request, arrival, prefill_only, stores);
  if (state.outbox().size() == before) device->on_receive(request, state.queues().input().back());
}

Picoseconds Rank::plan(Picoseconds at) {
  state.begin_plan(to_time(at));
  InFlightStep& step = steps.next();
  step.clear();
  scheduler->plan(state, step);
  tell_scheduler();
  forward_events();
  return start_copies(at);
}

void Rank::begin(std::uint64_t number, Picoseconds planned, Picoseconds ready) {
  InFlightStep& step = steps.next();
  state.commit(step);
  step.number = number;
  step.planned = planned;
  step.usage = {state.num_waiting(), state.used_blocks(), state.memory().wasted_tokens(), state.memory().external_fragmentation_ppm()};
  step.is_timed = device->begin(step, ready);
  step.is_counted = false;
}

void Rank::process_output(Picoseconds at) {
  state.process_output(steps.oldest(), at, itl_);
  if (!state.store_copies().empty()) start_writes(at);
  tell_scheduler();
  forward_events();
}

void Rank::end_copy(const Event& event) {
  if (event.kind == EventKind::kStoreEnd)
    state.memory().end_write(RequestId{event.subject});
  else
    state.finish_swap_in(RequestId{event.subject}, to_time(event.at));
}

void Rank::tell_scheduler() {
  for (const RequestId id : state.left()) scheduler->on_finish(id);
  state.left().clear();
}

void Rank::send_events() {
  const bool has_sink = sink_.wants_steps();
  for (const EventRecord& event : events_) {
    if (has_sink) sink_.event(event);
    device->on_event(event);
  }
  events_.clear();
}

}  // namespace kvlab
