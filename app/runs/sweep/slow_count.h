#pragma once

#include <chrono>
#include <cstddef>
#include <iosfwd>
#include <string>

namespace kvlab {

// For work over half a second, "kvlab: reading 1,200 of 10,800 runs": rewritten on a terminal, else printed once.
class SlowCount {
 public:
  // err: null: silent.
  SlowCount(std::ostream* err, bool is_terminal, std::string verb, std::size_t total);
  ~SlowCount();
  SlowCount(const SlowCount&) = delete;
  SlowCount& operator=(const SlowCount&) = delete;
  void next();

 private:
  std::ostream* err_;
  bool is_terminal_, has_said_ = false;
  std::string verb_;
  std::size_t total_, done_ = 0;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace kvlab
