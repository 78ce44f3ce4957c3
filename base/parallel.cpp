#include "base/parallel.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

namespace kvlab {

void for_each_in_parallel(std::int64_t count, const std::function<void(std::int64_t)>& part) {
  if (count == 1) return part(0);
  // Isolated: while it waits, the caller takes up no other work, such as a whole run of a sweep, whose locks it may hold.
  tbb::this_task_arena::isolate([&] {
    tbb::parallel_for(
        std::int64_t{0}, count, std::int64_t{1}, [&](std::int64_t i) { part(i); }, tbb::simple_partitioner{});
  });
}

int num_parallel() { return tbb::this_task_arena::max_concurrency(); }

}  // namespace kvlab
