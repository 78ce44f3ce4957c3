#pragma once

#include "kernels/device/cuda/launch.cuh"
#include "kernels/device/cuda/tile_walk.cuh"
#include "kernels/storage/quantize/group_codec.cuh"

namespace kvlab {

// Group number `group` of a row's list in the order in which groups are stored, of any shape: element i is channel c + i of token t, or
// channel c of token t + i.
struct AnyGroup {
  int t, c, n;      // n: elements; 0: there is no such group
  std::int64_t at;  // bytes from the row's first to the group's
  bool across;

  __device__ __forceinline__ AnyGroup(const CodecArgs& a, int row, std::int64_t group, bool along_channels, int per_line)
      : t(0), c(0), n(0), at(0), across(along_channels) {
    const int d = a.list.rows.head_dim, entries = a.list.entries(row);
    if (entries == 0) return;
    const int size = across ? a.group : a.group == 0 || a.group > entries ? entries : a.group;
    const std::int64_t line = group / per_line;
    const int in_line = static_cast<int>(group % per_line);
    if (line * (across ? 1 : size) >= entries) return;
    t = static_cast<int>(across ? line : line * size), c = across ? in_line * size : in_line;
    n = across ? min(size, d - c) : min(size, entries - t);
    if (across)
      at = line * (d / size * a.group_bytes(size) + (d % size > 0 ? a.group_bytes(d % size) : 0)) + in_line * a.group_bytes(size);
    else
      at = line * a.group_bytes(size) * d + in_line * a.group_bytes(n);
  }
  // Of element i, in elements of the pool; -1 where the entry stands for no token.
  __device__ __forceinline__ std::int64_t place(const CodecArgs& a, int row, int i) const {
    const std::int64_t slot = a.list.slot(row, across ? t : t + i);
    return slot < 0 ? -1 : slot * a.list.rows.head_dim + channel(i);
  }
  __device__ __forceinline__ int channel(int i) const { return across ? c + i : c; }
};

// Blocks of `warps` warps for all groups of all rows, one warp per group; sets a.tiles. Second: groups per token or block of tokens.
inline std::pair<LaunchShape, int> any_groups(CodecArgs& a, bool across, int warps) {
  const int d = a.list.rows.head_dim, size = across || (a.group > 0 && a.group < a.list.longest) ? a.group : a.list.longest;
  const std::int64_t per_line = across ? ceil_div(d, size) : d, lines = across ? a.list.longest : ceil_div(a.list.longest, size);
  a.tiles = static_cast<int>(ceil_div(lines * per_line, warps));
  return {{dim3(static_cast<unsigned>(std::int64_t{a.list.rows.num_rows} * a.tiles)), dim3(static_cast<unsigned>(warps * kWarpSize))},
          static_cast<int>(per_line)};
}

}  // namespace kvlab
