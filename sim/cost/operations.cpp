#include "sim/cost/operations.h"

#include "base/error.h"

namespace kvlab {

const std::vector<std::string>& columns_of(OpFamily family) {
  static const std::vector<std::string> tokens{"tokens"}, sequences{"sequences"}, collectives{"ranks", "bytes"},
      moe{"tokens", "activated_experts"}, attention{"prefill_chunk", "kv_prefill", "n_decode", "kv_decode"},
      calls{"rows", "tokens", "outputs", "bytes", "flops"};
  switch (family) {
    case OpFamily::kTokens:
      return tokens;
    case OpFamily::kSequences:
      return sequences;
    case OpFamily::kAttention:
      return attention;
    case OpFamily::kMoe:
      return moe;
    case OpFamily::kCollective:
      return collectives;
    case OpFamily::kPolicy:
    case OpFamily::kCopy:
      return calls;
  }
  throw InternalError("a family of operations without columns");
}

std::string_view table_of(OpFamily family) {
  switch (family) {
    case OpFamily::kTokens:
    case OpFamily::kSequences:
      return "";
    case OpFamily::kAttention:
      return "attention";
    case OpFamily::kMoe:
      return "moe";
    case OpFamily::kCollective:
      return "all_reduce";
    case OpFamily::kPolicy:
    case OpFamily::kCopy:
      return "policy";
  }
  throw InternalError("a family of operations without a table");
}

}  // namespace kvlab
