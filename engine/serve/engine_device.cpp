#include "engine/serve/engine_device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "base/parallel.h"

namespace kvlab {

namespace {

using RealClock = std::chrono::steady_clock;

// On its thread, in real time. `stays_awake`: all cores spin between jobs, since woken cores are slow.
class ThreadLane final : public StepLane {
 public:
  ThreadLane(StepExecutor& executor, bool stays_awake) : executor_(executor), stays_awake_(stays_awake), thread_([this] { loop(); }) {}
  ~ThreadLane() override {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
      is_called_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void start() override { begin_ = RealClock::now(); }
  [[nodiscard]] Picoseconds now() override { return to_ps(std::chrono::duration_cast<Span>(RealClock::now() - begin_)); }
  void wait_until(Picoseconds at) override {
    constexpr Span kMost = std::chrono::milliseconds(100);
    const Picoseconds left = at - now();
    if (left > Picoseconds{}) std::this_thread::sleep_for(std::min(to_span(left) + Span(1), kMost));  // rounded up
  }
  void submit(StepJob job, Picoseconds /*nominal*/) override {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
      is_called_ = true;
    }
    changed_.notify_all();
  }
  Output wait_output() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !outputs_.empty() || error_ != nullptr; });
    if (outputs_.empty()) std::rethrow_exception(error_);
    const Output output = outputs_.front();
    outputs_.pop_front();
    return output;
  }

 private:
  void loop() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (stays_awake_ && !is_called_) wait_awake(lock);
      changed_.wait(lock, [this] { return !jobs_.empty() || is_over_; });
      if (is_over_) return;
      StepJob job = std::move(jobs_.front());
      jobs_.pop_front();
      is_called_ = !jobs_.empty() || is_over_;
      lock.unlock();
      Output output{now(), {}};
      std::exception_ptr error;
      try {
        executor_.run(std::move(job));
      } catch (...) {
        error = std::current_exception();
      }
      output.end = now();
      lock.lock();
      if (error != nullptr) {
        error_ = error;
        changed_.notify_all();
        return;
      }
      outputs_.push_back(output);
      changed_.notify_all();
    }
  }

  void wait_awake(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    for_each_in_parallel(num_parallel(), [this](std::int64_t) {
      while (!is_called_.load(std::memory_order_relaxed)) {
      }
    });
    lock.lock();
  }

  StepExecutor& executor_;
  const bool stays_awake_;
  std::atomic<bool> is_called_ = false;  // jobs exist, or it is over; written under the mutex
  RealClock::time_point begin_ = RealClock::now();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepJob> jobs_;
  std::deque<Output> outputs_;
  std::exception_ptr error_;
  bool is_over_ = false;
  std::thread thread_;
};

// In the caller's thread, on the nominal clock; for tests.
class NominalLane final : public StepLane {
 public:
  explicit NominalLane(StepExecutor& executor) : executor_(executor) {}
  void start() override { now_ = busy_until_ = {}; }
  [[nodiscard]] Picoseconds now() override { return now_; }
  void wait_until(Picoseconds at) override { now_ = std::max(now_, at); }
  void submit(StepJob job, Picoseconds nominal) override {
    executor_.run(std::move(job));
    const Picoseconds start = std::max(now_, busy_until_);
    busy_until_ = start + nominal;
    outputs_.push_back({start, busy_until_});
  }
  Output wait_output() override {
    const Output output = outputs_.front();
    outputs_.pop_front();
    now_ = std::max(now_, output.end);
    return output;
  }

 private:
  StepExecutor& executor_;
  Picoseconds now_, busy_until_;
  std::deque<Output> outputs_;
};

std::unique_ptr<StepLane> make_lane(const ServeSetup& setup, StepExecutor& executor) {
  if (setup.nominal_time) return std::make_unique<NominalLane>(executor);
  return std::make_unique<ThreadLane>(executor, setup.stays_awake);
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

// Without scheduler bounds, the longest request and a guess.
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

}  // namespace

EngineDevice::EngineDevice(const ServeSetup& setup)
    : setup_(setup), executor_(*setup.model, *setup.recipe, executor_options(setup)), lane_(make_lane(setup, executor_)) {}

EngineDevice::~EngineDevice() = default;

Device::Traits EngineDevice::traits() const {
  Traits traits;
  traits.unnamed_rest = executor_.may_rest();
  traits.wants_events = true;
  return traits;
}

void EngineDevice::attach(ReplicaState& state, const Scheduler& scheduler) {
  const ReplicaLimits& limits = state.memory().limits();
  if (limits.keeps_host_copies) throw InputError("'memory.swap_reuse' is of 'host: sim' alone: the engine copies every block out again");
  if (limits.swap.overlap != SwapSetup::Overlap::kNone || limits.swap.codec.is_on())
    throw InputError(
        "'memory.swap_overlap' and 'memory.swap_format' are of 'host: sim' alone: the engine copies blocks as they are, between "
        "steps");
  state_ = &state;
  state.memory().pool().split_log = &split_;
  if (!setup_.nominal_time) executor_.warm_up(largest_load(setup_, scheduler));
}

void EngineDevice::on_receive(const TraceRequest& request, RequestId r) {
  handed_blocks_[request.number] = kNotStarted;
  EngineSequence& sequence = job_.arrived.emplace_back();
  sequence.index = static_cast<std::int32_t>(index(r));
  sequence.prompt_tokens = request.prompt_tokens;
  sequence.draws = request.number;
  sequence.ids = request_content(request, setup_.seed, setup_.model->config().vocab_size);
}

void EngineDevice::on_event(const EventRecord& event) {
  using Kind = ExecutorAction::Kind;
  const auto found = handed_blocks_.find(event.request);
  if (found == handed_blocks_.end()) return;
  const bool was_computed = !job_.actions.empty() && job_.actions.back().request == event.request;
  if (event.event == RequestEvent::kPreempted && found->second != kNotStarted) {
    job_.actions.push_back({Kind::kForget, event.request});
    found->second = kNotStarted;
  } else if (event.event == RequestEvent::kSwappedOut && was_computed) {  // follows its kPreempted
    job_.actions.back().kind = Kind::kSwapOut;
    found->second = 0;
  } else if (event.event == RequestEvent::kFinished || event.event == RequestEvent::kRejected) {
    job_.actions.push_back({Kind::kFinish, event.request});
    handed_blocks_.erase(found);
  }
}

Picoseconds EngineDevice::copy(const SwapCopy& copy, Picoseconds at) {
  if (copy.to_host) return at;  // see on_event()
  const Request& r = state_->table()[copy.request];
  std::int64_t& handed = handed_blocks_.at(r.number);
  if (handed == kNotStarted) return at;  // preempted by its plan: nothing was computed
  job_.actions.push_back({ExecutorAction::Kind::kSwapIn, r.number, blocks_from(r, 0)});
  handed = std::ssize(r.blocks);
  submit({}, false);
  return at;
}

bool EngineDevice::begin(InFlightStep& step, Picoseconds /*at*/) {
  const auto any = [&](auto is) { return std::any_of(step.entries.begin(), step.entries.end(), is); };
  if (step.idle_rows > 0 || any([](const StepEntry& e) { return e.padded_tokens > 0; }))
    throw InputError("the scheduler pads its batches, which the engine does not; choose another scheduler for 'host: engine'");
  if (step.loop_layers > 0 || any([](const StepEntry& e) { return !e.passes_all_layers(); }))
    throw InputError("the scheduler plans layers apart, which the engine does not run; choose another scheduler for 'host: engine'");
  for (const StepEntry& entry : step.entries) add_row(entry);
  submit(setup_.nominal_time ? setup_.nominal_time(step) : Picoseconds{}, true);
  inspect();
  return false;
}

void EngineDevice::add_row(const StepEntry& entry) {
  const Request& r = state_->table()[entry.request];
  std::int64_t& handed = handed_blocks_.at(r.number);
  ExecutorAction row{ExecutorAction::Kind::kRun, r.number, {}, entry, r.prompt_tokens, r.num_hashes > 0};
  if (entry.ends_prompt) row.prompt_tokens = row.end();
  handed = std::max<std::int64_t>(handed, 0);
  if (!r.left_hashed || entry.leaves_hashed) {
    row.blocks = blocks_from(r, handed);
    handed = std::ssize(r.blocks);
  }
  job_.actions.push_back(std::move(row));
}

std::vector<TakenBlock> EngineDevice::blocks_from(const Request& r, std::int64_t first) const {
  std::vector<TakenBlock> blocks;
  for (auto i = static_cast<std::size_t>(first); i < r.blocks.size(); ++i)
    blocks.push_back({r.blocks[i], state_->pool().takes(r.blocks[i])});
  return blocks;
}

void EngineDevice::submit(Picoseconds nominal, bool is_step) {
  job_.split = std::move(split_);
  split_.clear();
  handed_.push_back(is_step);
  lane_->submit(std::move(job_), nominal);
  job_ = {};
}

void EngineDevice::finish(InFlightStep& step) {
  while (true) {
    const StepLane::Output output = lane_->wait_output();
    const bool is_step = handed_.front();
    handed_.pop_front();
    if (!is_step) continue;
    step.start = output.start;
    step.end = output.end;
    break;
  }
  const bool counts = setup_.stop.after_time.count() == 0 || step.end <= to_ps(setup_.stop.after_time);
  if (setup_.step_done && counts) setup_.step_done(step);
}

void EngineDevice::end() {
  for (; !handed_.empty(); handed_.pop_front()) static_cast<void>(lane_->wait_output());
  if (setup_.emitted != nullptr) executor_.run(std::move(job_));
  inspect();
}

void EngineDevice::inspect() const {
  if (setup_.inspect && setup_.nominal_time) setup_.inspect(*state_, executor_);
}

void LaneClock::start(StepLane& lane) {
  lane_ = &lane;
  lane.start();
}

void LaneClock::reach(Picoseconds at) {
  if (each_turn_) each_turn_();
  while (lane_->now() < at) {
    lane_->wait_until(at);
    if (each_turn_) each_turn_();
  }
}

Picoseconds LaneClock::now(Picoseconds at) { return std::max(at, lane_->now()); }

}  // namespace kvlab
