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

namespace {

constexpr int kWarps = 4;
constexpr int kInFlight = 4;  // groups of 8 numbers loaded before the first is encoded

// kInFlight groups per lane.
struct Flight {
  float x[kInFlight][8];
  int at[kInFlight];          // first byte in the tile's; -1: not a group of this tile
  std::uint32_t present = 0;  // bit u: group u's token is there

  // `left`: groups per lane before the end of the tile.
  template <class T>
  __device__ __forceinline__ void load(const CodecArgs& a, const LaneTile& tile, int left, TileWalk& walk) {
    const T* const data = static_cast<const T*>(a.list.data);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const bool mine = u < left && walk.token < tile.n;
      const std::int64_t from = tile.slot(walk.token);
      at[u] = mine ? tile.bytes_before(walk) : -1;
      if (mine && from >= 0) {
        load8(data + from * a.list.rows.head_dim + tile.channel(a, walk), x[u]);
        if (tile.scales != nullptr) {
          float divisor[8];
          load8(tile.scales + tile.channel(a, walk), divisor);
#pragma unroll
          for (int i = 0; i < 8; ++i) x[u][i] /= divisor[i];
        }
        present |= 1U << u;
      }
      walk.next();
    }
  }

  // Over the group's lanes.
  __device__ __forceinline__ void find_ranges(int lanes, GroupRange (&range)[kInFlight]) const {
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if ((present >> u & 1U) == 0) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) range[u].take(x[u][i]);
    }
    for (int offset = lanes / 2; offset > 0; offset /= 2) {
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) range[u].join_lane(offset);
    }
  }
};

// If a group has enough lanes, lane u chooses the step of group u.
template <bool Symmetric>
struct Steps {
  int lanes, part, bits;
  GroupStep shared{};

  __device__ __forceinline__ Steps(const LaneTile& tile, int bits_per_number, const GroupRange (&range)[kInFlight])
      : lanes(tile.lanes), part(tile.part), bits(bits_per_number) {
    static_assert(kInFlight == 4);
    if (lanes >= kInFlight) {
      const bool odd = part % 2 != 0, upper = part % 4 >= 2;
      GroupRange mine;
      mine.least = upper ? (odd ? range[3].least : range[2].least) : (odd ? range[1].least : range[0].least);
      mine.most = upper ? (odd ? range[3].most : range[2].most) : (odd ? range[1].most : range[0].most);
      shared = choose_step<Symmetric>(mine, bits);
    }
  }
  // All lanes call it.
  __device__ __forceinline__ GroupStep of(int u, const GroupRange& range) const {
    GroupStep s;
    if (lanes >= kInFlight) {
      const int source = lane_index() - part + u;
      s.header = __shfl_sync(kAllLanes, shared.header, source);
      s.inverse = __shfl_sync(kAllLanes, shared.inverse, source);
      s.zero = Symmetric ? 0.0F : half_value(s.header);
    } else {
      s = choose_step<Symmetric>(range, bits);
    }
    return s;
  }
};

// Groups along channels of 8 * 2^n numbers, n <= 5, that divide head_dim.
template <class T, int Bits, bool Symmetric>
__global__ void __launch_bounds__(kWarps* kWarpSize) quantize_tokens(CodecArgs a, int groups_per_token) {
  const WarpEntries mine(a, kWarps);
  if (mine.n <= 0) return;
  const LaneTile tile(a, mine, groups_per_token);
  const int bits = Bits != 0 ? Bits : a.bits, per_lane = a.list.rows.head_dim / 8;
  const float top = top_code<Symmetric>(bits);
  TileWalk walk(tile.lanes, groups_per_token);
  for (int step = 0; step < per_lane && step * (kWarpSize / tile.lanes) < tile.n * groups_per_token; step += kInFlight) {
    Flight groups;
    groups.load<T>(a, tile, per_lane - step, walk);
    GroupRange range[kInFlight];
    groups.find_ranges(tile.lanes, range);
    const Steps<Symmetric> steps(tile, bits, range);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      GroupStep s = steps.of(u, range[u]);
      if (groups.at[u] < 0) continue;
      unsigned long long codes = 0;
      if ((groups.present >> u & 1U) != 0) {
#pragma unroll
        for (int i = 0; i < 8; ++i) add_code<Bits>(codes, encode<Symmetric>(s, top, groups.x[u][i]), bits, i);
      } else {
        s.header = 0;
      }
      if (tile.part == 0) put_bytes(tile.packed + groups.at[u], s.header, a.header, a.align);
      put_bytes(tile.packed + groups.at[u] + a.header + tile.part * bits, codes, bits, a.align);
    }
  }
}

// One warp per group of any shape.
template <class T, bool Symmetric>
__global__ void __launch_bounds__(kWarps* kWarpSize, 8) quantize_any(CodecArgs a, int per_line) {
  const int row = blockIdx.x / a.tiles, bits = a.bits;
  const AnyGroup group(a, row, std::int64_t{blockIdx.x % a.tiles} * kWarps + warp_index(), per_line);
  if (group.n == 0) return;
  const T* const data = static_cast<const T*>(a.list.data);
  const float *const scales = a.scales(row), top = top_code<Symmetric>(bits);
  const auto load = [&](int i, bool& present) {
    const std::int64_t place = group.place(a, row, i);
    present = place >= 0;
    const float x = present ? to_float(data[place]) : 0.0F;
    return scales != nullptr ? x / scales[group.channel(i)] : x;
  };
  GroupRange range;
  int found = 0;
  for (int i = lane_index(); i < group.n; i += kWarpSize) {
    bool present;
    const float x = load(i, present);
    if (present) range.take(x), ++found;
  }
  range.least = warp_min(range.least), range.most = warp_max(range.most), found = warp_sum(found);
  GroupStep s = choose_step<Symmetric>(range, bits);
  if (found == 0) s.header = 0;
  std::uint8_t* const packed = a.packed + a.base[row] + group.at;
  if (lane_index() == 0) put_bytes(packed, s.header, a.header, 1);
  for (int i = lane_index() * 8; i < group.n; i += kWarpSize * 8) {
    const int n = min(8, group.n - i);
    unsigned long long codes = 0;
    for (int j = 0; j < n; ++j) {
      bool present;
      const float x = load(i + j, present);
      if (present) codes |= static_cast<unsigned long long>(encode<Symmetric>(s, top, x)) << bits * j;
    }
    put_bytes(packed + a.header + i / 8 * bits, codes, (n * bits + 7) / 8, 1);
  }
}

void quantize_groups(const CodecArgs& given, ElementType type, CudaContext& cuda) {
  CodecArgs a = given;
  for_type(type, [&](auto zero) {
    using T = decltype(zero);
    if (!fits_lanes(a)) {
      const auto [blocks, per_line] = any_groups(a, kWarps);
      return launch("quantize_any", cuda, blocks, a.symmetric ? quantize_any<T, true> : quantize_any<T, false>, a, per_line);
    }
    a.tiles = static_cast<int>(ceil_div(a.list.longest, kWarps * kWarpSize));
    const LaunchShape blocks = blocks_of(std::int64_t{a.list.rows.num_rows} * a.tiles, kWarps * kWarpSize);
    for_code<sizeof(T) == 2>(a, [&](auto bits, auto symmetric) {
      launch("quantize_tokens", cuda, blocks, quantize_tokens<T, decltype(bits)::value, decltype(symmetric)::value>, a,
             a.list.rows.head_dim / a.group);
    });
  });
}

// The product is not fused with the sum.
__device__ __forceinline__ float combine(Quantize::Mode mode, float x, float decoded, float scale) {
  const float value = __fmul_rn(decoded, scale);  // exact for scale 1
  return mode == Quantize::Mode::kWrite ? value : mode == Quantize::Mode::kAdd ? x + value : x - value;
}

// kInFlight groups per lane.
struct CodeFlight {
  unsigned long long codes[kInFlight];
  std::uint32_t header[kInFlight];
  std::int64_t at[kInFlight];  // pool place of the 8 numbers; -1: none
  int channel[kInFlight];

  // `left`: groups per lane before the end of the tile.
  __device__ __forceinline__ void load(const CodecArgs& a, const LaneTile& tile, int bits, int left, TileWalk& walk) {
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const std::int64_t from = tile.slot(walk.token);
      channel[u] = tile.channel(a, walk);
      at[u] = u < left && walk.token < tile.n && from >= 0 ? from * a.list.rows.head_dim + channel[u] : -1;
      const std::uint8_t* const p = tile.packed + tile.bytes_before(walk);
      if (at[u] >= 0) {
        header[u] = static_cast<std::uint32_t>(get_bytes(p, a.header, a.align));
        codes[u] = get_bytes(p + a.header + tile.part * bits, bits, a.align);
      }
      walk.next();
    }
  }
};

// The reverse of quantize_tokens.
template <class T, int Bits, bool Symmetric>
__global__ void __launch_bounds__(kWarps* kWarpSize) dequantize_tokens(CodecArgs a, int groups_per_token, Quantize::Mode mode) {
  const WarpEntries mine(a, kWarps);
  if (mine.n <= 0) return;
  const LaneTile tile(a, mine, groups_per_token);
  const int bits = Bits != 0 ? Bits : a.bits, per_lane = a.list.rows.head_dim / 8;
  T* const data = static_cast<T*>(a.list.data);
  const float top = top_code<Symmetric>(bits);
  const std::uint32_t mask = (1U << bits) - 1;
  TileWalk walk(tile.lanes, groups_per_token);
  for (int step = 0; step < per_lane && step * (kWarpSize / tile.lanes) < tile.n * groups_per_token; step += kInFlight) {
    CodeFlight groups;
    groups.load(a, tile, bits, per_lane - step, walk);
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      if (groups.at[u] < 0) continue;
      const GroupScale s = scale_of_header<Symmetric>(groups.header[u], top);
      float x[8], scale[8];
      if (mode != Quantize::Mode::kWrite) load8(data + groups.at[u], x);
      if (tile.scales != nullptr) load8(tile.scales + groups.channel[u], scale);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float decoded = decode(s, static_cast<std::uint32_t>(groups.codes[u] >> bits * i) & mask);
        x[i] = combine(mode, x[i], decoded, tile.scales != nullptr ? scale[i] : 1.0F);
      }
      store8(data + groups.at[u], x);
    }
  }
}

// One warp per group of any shape.
template <class T, bool Symmetric>
__global__ void __launch_bounds__(kWarps* kWarpSize, 8) dequantize_any(CodecArgs a, int per_line, Quantize::Mode mode) {
  const int row = blockIdx.x / a.tiles, bits = a.bits;
  const AnyGroup group(a, row, std::int64_t{blockIdx.x % a.tiles} * kWarps + warp_index(), per_line);
  if (group.n == 0) return;
  const std::uint8_t* const packed = a.packed + a.base[row] + group.at;
  T* const data = static_cast<T*>(a.list.data);
  const float *const scales = a.scales(row), top = top_code<Symmetric>(bits);
  const GroupScale s = scale_of_header<Symmetric>(static_cast<std::uint32_t>(get_bytes(packed, a.header, 1)), top);
  for (int i = lane_index(); i < group.n; i += kWarpSize) {
    const std::int64_t place = group.place(a, row, i), bit = std::int64_t{i} * bits;
    if (place < 0) continue;
    const std::uint8_t* const p = packed + a.header + bit / 8;
    std::uint32_t word = p[0];
    if (bit % 8 + bits > 8) word |= static_cast<std::uint32_t>(p[1]) << 8;
    const float decoded = decode(s, word >> bit % 8 & ((1U << bits) - 1)), x = to_float(data[place]);
    data[place] = from_float<T>(combine(mode, x, decoded, scales != nullptr ? scales[group.channel(i)] : 1.0F));
  }
}

void dequantize_groups(const CodecArgs& given, Quantize::Mode mode, ElementType type, CudaContext& cuda) {
  CodecArgs a = given;
  for_type(type, [&](auto zero) {
    using T = decltype(zero);
    if (!fits_lanes(a)) {
      const auto [blocks, per_line] = any_groups(a, kWarps);
      return launch("dequantize_any", cuda, blocks, a.symmetric ? dequantize_any<T, true> : dequantize_any<T, false>, a, per_line, mode);
    }
    a.tiles = static_cast<int>(ceil_div(a.list.longest, kWarps * kWarpSize));
    const LaunchShape blocks = blocks_of(std::int64_t{a.list.rows.num_rows} * a.tiles, kWarps * kWarpSize);
    for_code<sizeof(T) == 2>(a, [&](auto bits, auto symmetric) {
      launch("dequantize_tokens", cuda, blocks, dequantize_tokens<T, decltype(bits)::value, decltype(symmetric)::value>, a,
             a.list.rows.head_dim / a.group, mode);
    });
  });
}

}  // namespace

void run_cuda(const Quantize& op, CudaContext& cuda) {
  const KvRows& kv = op.tokens.kv;
  if (op.tokens.total() == 0 || kv.head_dim == 0) return;
  const CudaContext::Frame frame(cuda);
  const CodecArgs a = codec_args(op, cuda);
  const bool encodes = op.mode == Quantize::Mode::kEncode;
  if (!a.across && kv.head_dim % 2 == 0 && op.scale_row == nullptr)
    return encodes ? quantize_channels(a, kv.type, cuda) : dequantize_channels(a, op.mode, kv.type, cuda);
  encodes ? quantize_groups(a, kv.type, cuda) : dequantize_groups(a, op.mode, kv.type, cuda);
}

}  // namespace kvlab
