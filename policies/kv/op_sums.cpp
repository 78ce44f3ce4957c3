#include "policies/kv/op_sums.h"

#include <algorithm>

#include "policies/kv/step_ops.h"

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

void add_calls(std::vector<PolicyOp>& ops, const OpCall& call, std::int64_t times, FetchBeside beside) {
  const bool fetches = is_fetch(call);
  if (call.op == "attend" || (fetches && call.bytes == 0)) return;
  add_op(ops, {call.op, times, times * call.bytes, times * call.flops, call.op == kFetch, call.op == kReadDisk,
               fetches ? beside : FetchBeside::kNothing});
}

}  // namespace kvlab
