#include <algorithm>

#include "kernels/model/embedding/embedding.h"

namespace kvlab {

void run_cpu(const Embedding& a) {
  for (std::int64_t t = 0; t < a.tokens; ++t) std::copy_n(a.table + a.ids[t] * a.width, a.width, a.out + t * a.width);
}

}  // namespace kvlab
