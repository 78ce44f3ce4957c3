#include "app/runs/sweep/stop_signals.h"

#include <csignal>
#include <mutex>

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
