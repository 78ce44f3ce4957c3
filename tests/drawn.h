#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

#include "tests/short_run.h"

// Tests of drawn runs. KVLAB_SEEDS=first:count draws others.
namespace kvlab::test {

class Drawn {
 public:
  explicit Drawn(std::uint64_t seed) : random_(seed) {}
  std::int32_t from(std::int32_t least, std::int32_t most) {
    return least + static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool one_in(std::int32_t n) { return from(1, n) == 1; }
  template <class T>
  const T& of(const std::vector<T>& all) {
    return all[static_cast<std::size_t>(from(0, static_cast<std::int32_t>(all.size()) - 1))];
  }

 private:
  std::mt19937_64 random_;
};

// The first seed, and the number of seeds: by default `count`, in a short run `short_count`.
inline std::pair<std::uint64_t, std::uint64_t> drawn_seeds(std::uint64_t count, std::uint64_t short_count) {
  unsigned long first = 1, number = short_run() ? short_count : count;
  if (const char* given = std::getenv("KVLAB_SEEDS")) std::sscanf(given, "%lu:%lu", &first, &number);
  return {first, number};
}

}  // namespace kvlab::test
