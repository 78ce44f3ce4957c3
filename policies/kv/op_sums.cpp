#include "policies/kv/op_sums.h"

#include <algorithm>

#include "policies/kv/step_ops.h"

namespace kvlab {

void add_op(std::vector<PolicyOp>& ops, const PolicyOp& more) {
  auto at = std::find_if(ops.begin(), ops.end(), [&](const PolicyOp& o) { return o.name == more.name; });
  if (at == ops.end()) at = ops.insert(ops.end(), {more.name, 0, 0, 0, more.over_host_link});
  at->launches += more.launches;
  at->bytes += more.bytes;
  at->flops += more.flops;
}

void add_calls(std::vector<PolicyOp>& ops, const OpCall& call, std::int64_t times) {
  const bool fetches = call.op == kFetch;
  if (call.op == "attend" || (fetches && call.bytes == 0)) return;
  add_op(ops, {call.op, times, times * call.bytes, times * call.flops, fetches});
}

}  // namespace kvlab
