#include "app/runs/sweep/progress.h"

#include <fmt/format.h>

#include <csignal>
#include <mutex>
#include <ostream>
#include <utility>

#include "base/csv.h"

namespace kvlab {

std::atomic<bool>& stop_requested() {
  static std::atomic<bool> stop{false};
  return stop;
}

namespace {

std::mutex stop_signals_mutex;
int num_stop_signals = 0;
struct sigaction earlier_interrupt = {}, earlier_terminate = {};  // set before the handler is installed

extern "C" void on_stop_signal(int signal) {
  stop_requested() = true;
  ::sigaction(signal, signal == SIGINT ? &earlier_interrupt : &earlier_terminate, nullptr);
}

}  // namespace

Progress::Progress(std::ostream& err, std::size_t num_runs, bool is_shown, ProgressListener listener)
    : err_(err), num_runs_(num_runs), is_shown_(is_shown), listener_(std::move(listener)) {
  if (is_shown_ || listener_) thread_ = std::thread([this] { loop(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  wake_.notify_all();
  thread_.join();
  clear_line();
  if (listener_) listener_(now());
}

void Progress::clear_line() {
  if (is_shown_) err_ << "\r\033[K" << std::flush;
}

void Progress::loop() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::milliseconds(250), [this] { return is_over_; })) {
    if (is_shown_) draw();
    if (listener_) listener_(now());
  }
}

SweepProgress Progress::now() const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - began_;
  return {runs_done_, num_runs_, requests_, passed.count()};
}

void Progress::draw() {
  const SweepProgress at = now();
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(kWidth * at.runs_done / at.num_runs);
  std::string line = fmt::format("\r\033[K[{:#<{}}{:.<{}}] {}/{} runs", "", filled, "", kWidth - filled, at.runs_done, at.num_runs);
  line += fmt::format("  {} req/s", short_number(static_cast<double>(at.requests) / at.passed_s));
  if (at.runs_done > 0)
    line +=
        fmt::format("  {:.0f} s to go", at.passed_s / static_cast<double>(at.runs_done) * static_cast<double>(at.num_runs - at.runs_done));
  err_ << line << std::flush;
}

ServingProgress::ServingProgress(Say say, std::string run, double expected_s, std::int64_t requests, bool says_quarters)
    : say_(std::move(say)), run_(std::move(run)), requests_(requests), says_quarters_(says_quarters) {
  if (say_ && requests_ > 0)
    say_(fmt::format("run {}: {} requests on the engine, about {:.3g} s by the profile", run_, requests_, expected_s));
}

void ServingProgress::request_done(Clock::time_point now) {
  ++done_;
  const bool is_quarter = requests_ > 0 && done_ < requests_ && 4 * done_ / requests_ > 4 * (done_ - 1) / requests_;
  if (!say_ || !says_quarters_ || !is_quarter || now - said_ < std::chrono::seconds(10)) return;
  said_ = now;
  say_(
      fmt::format("run {}: {} of {} requests after {:.0f} s", run_, done_, requests_, std::chrono::duration<double>(now - began_).count()));
}

StopSignals::StopSignals() {
  const std::lock_guard lock(stop_signals_mutex);
  if (num_stop_signals++ > 0) return;
  ::sigaction(SIGINT, nullptr, &earlier_interrupt);
  ::sigaction(SIGTERM, nullptr, &earlier_terminate);
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(stop_signals_mutex);
  if (--num_stop_signals > 0) return;
  ::sigaction(SIGINT, &earlier_interrupt, nullptr);
  ::sigaction(SIGTERM, &earlier_terminate, nullptr);
}

}  // namespace kvlab
