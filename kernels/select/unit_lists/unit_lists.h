#pragma once

#include <cstdint>

#include "kernels/element.h"
#include "kernels/ops.h"

// Units: pages, chunks, clusters or tokens.
namespace kvlab {

// One array from first[r] on, or separate arrays. Lists may be shorter than their space.
struct UnitLists {
  const std::int64_t* first = nullptr;        // [num_rows + 1] offset of each row's list in `unit`
  const std::int32_t* unit = nullptr;         // [first[num_rows]]
  const std::int32_t* const* rows = nullptr;  // [num_rows] used if `first` is null
  const std::int32_t* count = nullptr;        // [num_rows] null: the whole space

  [[nodiscard]] KVLAB_BOTH std::int64_t size(std::int64_t r) const { return count != nullptr ? count[r] : first[r + 1] - first[r]; }
  [[nodiscard]] KVLAB_BOTH const std::int32_t* row(std::int64_t r) const { return first != nullptr ? unit + first[r] : rows[r]; }
};

// Tokens [0, head[r]), the listed units', then [tail[r], len[r]). Unit u is tokens base[r] + u * unit_tokens on, between head and tail.
struct ExpandUnits {
  std::int32_t num_rows = 0;
  UnitLists lists;
  std::int32_t unit_tokens = 1;
  const std::int32_t* base = nullptr;         // [num_rows], null: 0
  const std::int32_t* head = nullptr;         // [num_rows], null: 0
  const std::int32_t* tail = nullptr;         // [num_rows]
  const std::int32_t* len = nullptr;          // [num_rows]
  const std::int64_t* index_first = nullptr;  // [num_rows + 1] exact offsets
  std::int32_t* index = nullptr;              // [index_first[num_rows]] out

  [[nodiscard]] std::int64_t tokens(std::int32_t r) const {
    return (head == nullptr ? 0 : head[r]) + lists.size(r) * unit_tokens + len[r] - tail[r];
  }
};
OpCall call(const ExpandUnits&);
void run_cpu(const ExpandUnits&);
void run_cuda(const ExpandUnits&, CudaContext&);

// out[first[r] + i] = base.row(r)[pick[first[r] + i]], or base.row(r)[i] with takes_all.
struct ComposeUnits {
  std::int32_t num_rows = 0;
  UnitLists base;
  const std::int64_t* first = nullptr;  // [num_rows + 1]
  const std::int32_t* pick = nullptr;   // [first[num_rows]]
  std::int32_t* out = nullptr;          // may be `pick`
  bool takes_all = false;               // each row is as long as its list; no pick
};
OpCall call(const ComposeUnits&);
void run_cpu(const ComposeUnits&);
void run_cuda(const ComposeUnits&, CudaContext&);

// Union of `lists_per_row` consecutive ascending lists, one per query head.
struct UnionUnits {
  std::int32_t num_rows = 0, lists_per_row = 1;
  UnitLists lists;                      // of num_rows * lists_per_row lists
  const std::int64_t* first = nullptr;  // [num_rows + 1] offsets of the unions
  std::int32_t* unit = nullptr;         // out
  std::int32_t* count = nullptr;        // [num_rows] out
};
// Assumes that unions fill their space.
OpCall call(const UnionUnits&);
void run_cpu(const UnionUnits&);
void run_cuda(const UnionUnits&, CudaContext&);  // counts in CPU memory: waits for the stream

struct KeepUnits {
  std::int32_t num_rows = 0;
  UnitLists lists;
  std::int32_t* const* to = nullptr;  // [num_rows]; rows with an empty list are unchanged
};
OpCall call(const KeepUnits&);
void run_cpu(const KeepUnits&);
void run_cuda(const KeepUnits&, CudaContext&);

// By descending score (ties: lower unit first).
struct RankUnits {
  std::int32_t num_rows = 0;
  UnitLists lists;
  const std::int64_t* score_first = nullptr;  // [num_rows + 1]
  const float* scores = nullptr;              // of all units of the row
  std::int32_t* const* to = nullptr;          // [num_rows]; rows with an empty list are unchanged
};
OpCall call(const RankUnits&);
void run_cpu(const RankUnits&);
void run_cuda(const RankUnits&, CudaContext&);

// The first take[r] of each ranked list, ascending.
struct TakeRanked {
  std::int32_t num_rows = 0;
  const std::int32_t* const* ranked = nullptr;  // [num_rows]
  const std::int64_t* first = nullptr;          // [num_rows + 1] exact offsets
  std::int32_t* unit = nullptr;                 // [first[num_rows]] out
};
OpCall call(const TakeRanked&);
void run_cpu(const TakeRanked&);
void run_cuda(const TakeRanked&, CudaContext&);

// Counts asked-for units that the last step read, then stores `now` (asked for or always read) in `last`. Diagnostic, free.
struct TrackReuse {
  std::int32_t num_rows = 0;
  UnitLists asked, now;
  std::int32_t* const* last = nullptr;       // [num_rows] with space for both steps' lists
  const std::int32_t* last_count = nullptr;  // [num_rows]
  const std::int32_t* held_from = nullptr;   // [num_rows] in CPU memory: units from here on count as read; null: none
  std::int32_t* hits = nullptr;              // [num_rows] out
};
OpCall call(const TrackReuse&);
void run_cpu(const TrackReuse&);
void run_cuda(const TrackReuse&, CudaContext&);  // hits in CPU memory: waits for the stream

}  // namespace kvlab
