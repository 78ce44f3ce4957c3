#include <unistd.h>

#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "app/cli.h"
#include "app/sweep.h"

namespace {

// The first Ctrl-C lets runs in progress end without a result; the second ends the program at once.
extern "C" void on_interrupt(int signal) {
  kvlab::stop_requested() = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  return kvlab::run_cli({argv + 1, argv + argc}, std::cout, std::cerr);
}
