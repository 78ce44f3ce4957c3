#include "serving/op_sums.h"

#include <algorithm>

namespace kvlab {

void add_op(std::vector<PolicyOp>& ops, const PolicyOp& more) {
  const bool has_own_time = more.beside != FetchBeside::kNothing;
  auto at = std::find_if(ops.begin(), ops.end(), [&](const PolicyOp& o) {
    return (o.name.data() == more.name.data() || o.name == more.name) &&
           (!has_own_time || o.bytes * more.launches == more.bytes * o.launches);
  });
  if (at == ops.end()) at = ops.insert(ops.end(), {more.name, 0, 0, 0, more.over_host_link, more.from_disk, more.beside});
  at->launches += more.launches;
  at->bytes += more.bytes;
  at->flops += more.flops;
}

}  // namespace kvlab
