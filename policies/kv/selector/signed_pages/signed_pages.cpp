#include "policies/kv/selector/signed_pages/signed_pages.h"

namespace kvlab {

OpCall call(const SignedPages& a) {
  OpCall c{.op = "signed_pages", .rows = a.num_rows};
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int64_t n = a.first[r + 1] - a.first[r], pages = n / a.page_tokens;
    c.tokens += n;
    c.outputs += n;
    c.bytes += pages * a.channels[r] * a.kv_bytes + 4 * n;
    c.flops += pages * a.group * (2LL * a.channels[r] + 4);
  }
  return c;
}

}  // namespace kvlab
