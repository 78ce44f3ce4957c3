#include "engine/serve/step_lane.h"

#include <algorithm>
#include <chrono>

#include "base/parallel.h"

namespace kvlab {

namespace {

using RealClock = std::chrono::steady_clock;

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

}  // namespace

std::unique_ptr<StepLane> make_thread_lane(StepExecutor& executor, bool stays_awake) {
  return std::make_unique<ThreadLane>(executor, stays_awake);
}
std::unique_ptr<StepLane> make_nominal_lane(StepExecutor& executor) { return std::make_unique<NominalLane>(executor); }

}  // namespace kvlab
