#include "app/runs/stop_signals.h"

namespace kvlab {

std::atomic<bool>& stop_requested() {
  static std::atomic<bool> stop{false};
  return stop;
}

namespace {

extern "C" void on_stop_signal(int /*signal*/) { stop_requested() = true; }

}  // namespace

StopSignals::StopSignals() {
  struct sigaction action {};
  action.sa_handler = on_stop_signal;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);  // once; then it ends the program
  ::sigaction(SIGINT, &action, &interrupt_);
  ::sigaction(SIGTERM, &action, &terminate_);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGINT, &interrupt_, nullptr);
  ::sigaction(SIGTERM, &terminate_, nullptr);
}

}  // namespace kvlab
