#include <csignal>
#include <iostream>

#include "app/cli.h"

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // writes beyond `ulimit -f` fail with EFBIG
  return kvlab::run_cli({argv + 1, argv + argc}, std::cout, std::cerr);
}
