#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <mutex>
#include <string>
#include <thread>

namespace kvlab {

struct SweepProgress {
  std::uint64_t runs_done = 0, num_runs = 0;  // of runs to execute
  std::uint64_t requests = 0;                 // over all runs
  double passed_s = 0;
};
using ProgressListener = std::function<void(const SweepProgress&)>;

// On a terminal rewrites a line four times a second. The listener is called as often; it must not throw.
class Progress {
 public:
  Progress(std::ostream& err, std::size_t num_runs, bool is_shown, ProgressListener listener = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void run_done() { ++runs_done_; }
  void clear_line();
  std::atomic<std::uint64_t>& requests() { return requests_; }

 private:
  void loop();
  [[nodiscard]] SweepProgress now() const;
  void draw();
  std::ostream& err_;
  std::size_t num_runs_;
  bool is_shown_;
  ProgressListener listener_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::atomic<std::uint64_t> requests_{0}, runs_done_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool is_over_ = false;
  std::thread thread_;
};

// On an engine run: expected time, and quarters of its requests, at least ten seconds apart.
class ServingProgress {
 public:
  using Clock = std::chrono::steady_clock;
  using Say = std::function<void(const std::string& line)>;

  // expected_s, requests: predicted by the profile; requests 0: unknown. says_quarters: no progress bar is shown.
  ServingProgress(Say say, std::string run, double expected_s, std::int64_t requests, bool says_quarters);
  void request_done(Clock::time_point now = Clock::now());

 private:
  Say say_;
  std::string run_;
  std::int64_t requests_, done_ = 0;
  bool says_quarters_;
  Clock::time_point began_ = Clock::now(), said_ = began_;
};

// Set by an interrupt while a StopSignals exists; current runs end without a result.
std::atomic<bool>& stop_requested();

// The first Ctrl-C or SIGTERM sets stop_requested(); the next is handled as before. Several threads may hold one.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
};

}  // namespace kvlab
