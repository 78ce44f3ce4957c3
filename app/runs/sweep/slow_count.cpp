#include "app/runs/sweep/slow_count.h"

#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "base/csv.h"

namespace kvlab {

namespace {

constexpr std::chrono::milliseconds kSilent{500}, kBetween{250};

}  // namespace

SlowCount::SlowCount(std::ostream* err, bool is_terminal, std::string verb, std::size_t total)
    : err_(err), is_terminal_(is_terminal), verb_(std::move(verb)), total_(total), next_(std::chrono::steady_clock::now() + kSilent) {}

SlowCount::~SlowCount() {
  if (has_said_ && is_terminal_) *err_ << "\r\033[K" << std::flush;
}

void SlowCount::next() {
  ++done_;
  if (err_ == nullptr || (has_said_ && !is_terminal_)) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kBetween;
  has_said_ = true;
  const std::string total = short_number(static_cast<double>(total_));
  if (is_terminal_)
    *err_ << fmt::format("\r\033[Kkvlab: {} {} of {} runs", verb_, short_number(static_cast<double>(done_)), total) << std::flush;
  else
    *err_ << fmt::format("kvlab: {} {} runs ...\n", verb_, total) << std::flush;
}

}  // namespace kvlab
