#pragma once

#include <atomic>

namespace kvlab {

// Set by an interrupt while there are StopSignals: runs in progress end without a result.
std::atomic<bool>& stop_requested();

// While at least one of these exists, the first Ctrl-C or SIGTERM sets stop_requested(), and the next one does what it did before: it ends
// the program, or a host such as Python handles it. Threads may hold one each.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
};

}  // namespace kvlab
