#pragma once

#include <chrono>
#include <cstddef>
#include <iosfwd>
#include <string>

namespace kvlab {

// Says how far work has come that may take seconds: nothing in the first half second. On a terminal one line that is rewritten, "kvlab:
// reading 1,200 of 10,800 runs"; elsewhere one line in all.
class SlowCount {
 public:
  // err: null, nothing is said.
  SlowCount(std::ostream* err, bool is_terminal, std::string verb, std::size_t total);
  ~SlowCount();
  SlowCount(const SlowCount&) = delete;
  SlowCount& operator=(const SlowCount&) = delete;
  // One more of them is done.
  void next();

 private:
  std::ostream* err_;
  bool is_terminal_, has_said_ = false;
  std::string verb_;
  std::size_t total_, done_ = 0;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace kvlab
