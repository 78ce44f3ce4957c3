#pragma once

#include <cstdint>
#include <functional>

namespace kvlab {

// part(i) for i in [0, count) on the caller's task arena (default: all cores). Parts must not share writes or wait for each other. Rethrows
// one exception.
void for_each_in_parallel(std::int64_t count, const std::function<void(std::int64_t)>& part);

int num_parallel();

}  // namespace kvlab
