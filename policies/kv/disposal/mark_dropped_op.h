#pragma once

#include "kernels/rows/elements.h"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Lists the dropped tokens of each row without the mark kTokenMark in word `channel`, ascending, and marks them. A full list takes no more
// tokens; unused entries are -1.
struct MarkDropped {
  static constexpr std::uint32_t kMark = 1;  // kTokenMark
  PartedRows parts;
  std::int32_t channel = 0;
  const std::int64_t* first = nullptr;  // [num_rows + 1] the lists
  std::int32_t* index = nullptr;        // [first[num_rows]] out

  [[nodiscard]] OpCall cost() const {
    const std::int64_t dropped = parts.total_dropped(), listed = rows() == 0 ? 0 : first[rows()];
    return {.op = "mark_dropped", .rows = rows(), .tokens = dropped, .outputs = listed, .bytes = 8 * (dropped + listed), .flops = dropped};
  }
  [[nodiscard]] std::int64_t rows() const { return parts.kv.num_rows; }
  void shapes(auto&& visit) { visit_parts(parts, visit), visit(first, rows() + 1); }

  template <class Team>
  KVLAB_BODY void operator()(const Team& team, std::int64_t at) const {
    const auto row = static_cast<std::int32_t>(at);
    const std::int32_t* const dropped = parts.dropped + parts.dropped_first[row];
    const std::int64_t room = first[row + 1] - first[row];
    std::int32_t* const out = index + first[row];
    const std::int64_t lacking = team.pack(
        parts.num_dropped(row), [&](std::int64_t i) { return (parts.kv.word(channel, row, dropped[i]) & kMark) == 0; },
        [&](std::int64_t place, std::int64_t i) {
          if (place < room) parts.kv.word(channel, row, dropped[i]) |= kMark, out[place] = dropped[i];
        });
    team.each(room, [&](std::int64_t i) {
      if (i >= lacking) out[i] = -1;
    });
  }
};
KVLAB_ROW_OP(MarkDropped)

}  // namespace kvlab
