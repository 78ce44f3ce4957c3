#pragma once

#include <cstdint>
#include <functional>

namespace kvlab {

// Calls part(i) for i in [0, count), on as many threads as the caller's task arena has (by default all cores), and returns when all are
// done. Parts must write apart from one another and must not wait for one another: results then do not depend on the number of
// threads. A part that throws ends the call with one of the exceptions.
void for_each_in_parallel(std::int64_t count, const std::function<void(std::int64_t)>& part);

// How many parts run at once, at most.
int num_parallel();

}  // namespace kvlab
