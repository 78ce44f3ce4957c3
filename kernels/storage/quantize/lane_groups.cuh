#pragma once

#include "kernels/device/cuda/device.cuh"
#include "kernels/device/cuda/launch.cuh"
#include "kernels/storage/quantize/group_codec.cuh"

namespace kvlab {

// Group `group` in storage order, of any shape: element i is channel c + i of token t, or channel c of token t + i.
struct AnyGroup {
  int t, c, n;      // n: elements; 0: no such group
  std::int64_t at;  // bytes from the row's begin
  bool across;

  __device__ __forceinline__ AnyGroup(const CodecArgs& a, int row, std::int64_t group, int per_line)
      : t(0), c(0), n(0), at(0), across(a.across) {
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
  // In elements of the pool; -1: no token.
  __device__ __forceinline__ std::int64_t place(const CodecArgs& a, int row, int i) const {
    const std::int64_t slot = a.list.slot(row, across ? t : t + i);
    return slot < 0 ? -1 : slot * a.list.rows.head_dim + channel(i);
  }
  __device__ __forceinline__ int channel(int i) const { return across ? c + i : c; }
};

// A row's entries of a warp: up to 32 from `begin` on; n <= 0: none.
struct WarpEntries {
  int row, begin, n;
  __device__ __forceinline__ WarpEntries(const CodecArgs& a, int warps)
      : row(blockIdx.x / a.tiles),
        begin((blockIdx.x % a.tiles * warps + warp_index()) * kWarpSize),
        n(min(kWarpSize, a.list.entries(row) - begin)) {}
};

// A warp's tokens. A group has `lanes` lanes with 8 channels each.
struct LaneTile {
  int n, lanes, part;  // part: the lane's of its group
  int group_bytes, token_bytes;
  std::int64_t own_slot;
  std::uint8_t* packed;  // of the first token
  const float* scales;

  // Not for n <= 0: without that branch the compiler needs fewer registers.
  __device__ __forceinline__ LaneTile(const CodecArgs& a, const WarpEntries& mine, int groups_per_token)
      : n(mine.n), lanes(a.group / 8), part(lane_index() % lanes) {
    own_slot = lane_index() < n ? a.list.slot(mine.row, mine.begin + lane_index()) : -1;
    group_bytes = static_cast<int>(a.group_bytes(a.group)), token_bytes = group_bytes * groups_per_token;
    packed = a.packed + a.base[mine.row] + static_cast<std::int64_t>(mine.begin) * token_bytes;
    scales = a.scales(mine.row);
  }
  // For any token of the tile; -1: none. All lanes call it.
  __device__ __forceinline__ std::int64_t slot(int token) const { return __shfl_sync(kAllLanes, own_slot, token & 31); }
  // First channel of the walk's group, first byte in `packed`.
  __device__ __forceinline__ int channel(const CodecArgs& a, const TileWalk& walk) const { return walk.part * a.group + part * 8; }
  __device__ __forceinline__ int bytes_before(const TileWalk& walk) const { return walk.token * token_bytes + walk.part * group_bytes; }
};

// One warp per group; sets a.tiles. Second: groups per token or block of tokens.
inline std::pair<LaunchShape, int> any_groups(CodecArgs& a, int warps) {
  const int d = a.list.rows.head_dim, size = a.across || (a.group > 0 && a.group < a.list.longest) ? a.group : a.list.longest;
  const std::int64_t per_line = a.across ? ceil_div(d, size) : d, lines = a.across ? a.list.longest : ceil_div(a.list.longest, size);
  a.tiles = static_cast<int>(ceil_div(lines * per_line, warps));
  return {blocks_of(std::int64_t{a.list.rows.num_rows} * a.tiles, warps * kWarpSize), static_cast<int>(per_line)};
}

}  // namespace kvlab
