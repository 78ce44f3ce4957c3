#pragma once

#include <atomic>

namespace kvlab {

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
