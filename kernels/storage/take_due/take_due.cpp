#include "kernels/storage/take_due/take_due.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace kvlab {

OpCall call(const TakeDue& a) {
  const std::int64_t due = a.first[a.kv.num_rows];
  return {.op = "take_due", .rows = a.kv.num_rows, .tokens = a.kv.total(), .outputs = due, .bytes = 4 * a.kv.total() + 8 * due};
}
KVLAB_WITHOUT_CUDA(TakeDue)

void run_cpu(const TakeDue& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) {
    std::int32_t* const list = a.index + a.first[r];
    const std::int64_t room = a.first[r + 1] - a.first[r];
    if (room == 0) continue;
    std::int64_t unmarked = 0;
    for (std::int32_t i = 0; i < a.kv.len[r]; ++i) unmarked += (a.kv.word(a.channel, r, i) & a.bit) == 0 ? 1 : 0;
    std::int64_t take = std::min(room, std::max<std::int64_t>(0, unmarked - a.residual_tokens));
    take -= take % a.block_tokens;
    std::int64_t taken = 0;
    for (std::int32_t i = 0; taken < take; ++i) {
      std::uint32_t& word = a.kv.word(a.channel, r, i);
      if ((word & a.bit) != 0) continue;
      word |= a.bit;
      list[taken++] = i;
    }
    std::fill(list + taken, list + room, -1);
  }
}

OpCall call(const SplitListed& a) {
  const std::int64_t n = a.first[a.num_rows];
  return {.op = "split_listed", .rows = a.num_rows, .tokens = n, .outputs = n, .bytes = 12 * n, .flops = 2 * n};
}
KVLAB_WITHOUT_CUDA(SplitListed)

void run_cpu(const SplitListed& a) {
  std::vector<std::int32_t> order;
  std::vector<bool> is_high;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    const std::int32_t* const list = a.index + a.first[r];
    const auto entries = static_cast<std::size_t>(a.first[r + 1] - a.first[r]);
    std::int64_t room_high = a.high_first[r + 1] - a.high_first[r];
    const auto score = [&](std::int32_t i) { return a.scores[a.row_first[r] + list[i]]; };
    order.resize(entries);
    std::iota(order.begin(), order.end(), 0);
    const auto tokens = static_cast<std::size_t>(std::find(list, list + entries, -1) - list);
    std::stable_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(tokens),
                     [&](std::int32_t x, std::int32_t y) { return score(x) > score(y); });
    is_high.assign(entries, false);
    for (std::size_t i = 0; i < entries && room_high > 0; ++i, --room_high) is_high[static_cast<std::size_t>(order[i])] = true;
    std::int32_t* high = a.high + a.high_first[r];
    std::int32_t* low = a.low + (a.first[r] - a.high_first[r]);
    for (std::size_t i = 0; i < entries; ++i) *(is_high[i] ? high++ : low++) = list[i];
  }
}

}  // namespace kvlab
