#pragma once

#include <atomic>
#include <csignal>

namespace kvlab {

// Set by an interrupt while there are StopSignals: runs in progress end without a result.
std::atomic<bool>& stop_requested();

// While one of these is there, the first Ctrl-C or SIGTERM sets stop_requested() and the second ends the program at once. Without one, the
// first ends it, as the flag would not be read.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

 private:
  struct sigaction interrupt_ = {}, terminate_ = {};  // what they did before
};

}  // namespace kvlab
