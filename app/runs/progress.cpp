#include "app/runs/progress.h"

#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "base/csv.h"

namespace kvlab {

Progress::Progress(std::ostream& err, std::size_t num_runs, bool is_shown) : err_(err), num_runs_(num_runs), is_shown_(is_shown) {
  if (is_shown_) thread_ = std::thread([this] { loop(); });
}

Progress::~Progress() {
  if (!is_shown_) return;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  wake_.notify_all();
  thread_.join();
  clear_line();
}

void Progress::clear_line() {
  if (is_shown_) err_ << "\r\033[K" << std::flush;
}

void Progress::loop() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::milliseconds(250), [this] { return is_over_; })) draw();
}

void Progress::draw() {
  const double passed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  const std::uint64_t done = runs_done_;
  constexpr int kWidth = 30;
  const int filled = static_cast<int>(kWidth * done / num_runs_);
  std::string line = fmt::format("\r\033[K[{:#<{}}{:.<{}}] {}/{} runs", "", filled, "", kWidth - filled, done, num_runs_);
  line += fmt::format("  {} req/s", short_number(static_cast<double>(requests_) / passed_s));
  if (done > 0) line += fmt::format("  {:.0f} s to go", passed_s / static_cast<double>(done) * static_cast<double>(num_runs_ - done));
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

}  // namespace kvlab
