#include "base/parallel.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

namespace kvlab {

void for_each_in_parallel(std::int64_t count, const std::function<void(std::int64_t)>& part) {
  if (count == 1) return part(0);
  // The waiting caller must not start other work, whose locks it may hold.
  tbb::this_task_arena::isolate([&] {
    tbb::parallel_for(
        std::int64_t{0}, count, std::int64_t{1}, [&](std::int64_t i) { part(i); }, tbb::simple_partitioner{});
  });
}

int num_parallel() { return tbb::this_task_arena::max_concurrency(); }

}  // namespace kvlab
