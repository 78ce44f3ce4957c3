#include "app/progress.h"

#include <fmt/format.h>

#include <ostream>

#include "app/csv.h"

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

}  // namespace kvlab
