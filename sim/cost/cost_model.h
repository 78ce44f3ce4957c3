#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/int128.h"
#include "base/picoseconds.h"
#include "policies/kv/footprint.h"

namespace kvlab {

// Part of a prompt computed in a step: new_tokens rows attend to kv_before cached tokens and, causally, to themselves.
struct PrefillPiece {
  std::int32_t new_tokens = 0;
  std::int32_t kv_before = 0;
};

// Decode rows in layers that show them a window, where other layers show all tokens.
struct WindowRows {
  std::int64_t kv_tokens = 0;  // sum over decode rows
  std::int32_t full = 0;       // rows that fill the window
  std::int32_t open_max = 0;   // the longest of the others
};

// How many of the last tokens a token sees, itself included; 0: all of them.
struct AttentionWindows {
  std::int32_t every_layer = 0, some_layers = 0;  // not both
};

// Tokens of the ranks of a group that meet at the experts of a step.
struct GroupTokens {
  std::int64_t useful = 0;                 // of all ranks
  std::int64_t computed = 0;               // of all ranks, padding and dummies included
  std::int64_t smallest = 0, largest = 0;  // computed by one rank

  // One rank more.
  void add(std::int64_t its_useful, std::int64_t its_computed) {
    smallest = computed == 0 ? its_computed : std::min(smallest, its_computed);
    largest = std::max(largest, its_computed);
    useful += its_useful;
    computed += its_computed;
  }
};

// The work of one step of one rank. Decode rows are given by their totals, so that a step of 256 rows is as cheap to
// price as one of 2; kv counts cached tokens before the row's own, of which a sliding window shows the last (add_decode_row).
struct StepShape {
  std::span<const PrefillPiece> prefills;
  std::int32_t decodes = 0;
  std::int64_t decode_kv_tokens = 0;   // sum over decode rows
  std::int32_t decode_kv_max = 0;      // the longest of them
  std::int32_t decode_kv_min = 0;      // the shortest of them
  std::int64_t decode_kv_squares = 0;  // sum over decode rows of kv^2: the spread, for skew rules
  std::int32_t decode_full = 0;        // decode rows that fill the sliding window: no token more makes them longer
  std::int32_t decode_open_max = 0;    // the longest of the others, where there is a window
  WindowRows in_window;                // the same rows in layers with a window, where others see all
  std::int32_t idle_rows = 0;          // rows without attention
  std::int32_t padding_rows = 0;       // the same, whose work is of no use
  std::int32_t head_rows = 0;          // rows that need logits: one per sequence in the step
  std::span<const PolicyOp> ops;
  std::int32_t sparse_layers = 0;      // of all layers, those in which the attention of `prefills` is among `ops`
  std::int32_t layers = 0;             // 0: all layers, embedding and head; else this many layers and nothing else
  const GroupTokens* group = nullptr;  // of a rank in a group: the tokens at the experts, its own included; null: the other ranks are idle

  // Rows whose work is of use.
  [[nodiscard]] std::int64_t tokens() const {
    std::int64_t sum = std::int64_t{decodes} + idle_rows;
    for (const PrefillPiece& piece : prefills) sum += piece.new_tokens;
    return sum;
  }
};

// One decode row more, of `kv` cached tokens.
inline void add_decode_row(StepShape& shape, std::int32_t kv, const AttentionWindows& windows) {
  if (const std::int32_t window = windows.some_layers; window > 0) {
    const bool is_full = kv >= window - 1;
    shape.in_window.kv_tokens += is_full ? window - 1 : kv;
    shape.in_window.full += is_full ? 1 : 0;
    if (!is_full) shape.in_window.open_max = std::max(shape.in_window.open_max, kv);
  }
  const std::int32_t window = windows.every_layer;
  const bool is_full = window > 0 && kv >= window - 1;
  if (is_full) kv = window - 1;
  shape.decode_kv_min = shape.decodes == 0 ? kv : std::min(shape.decode_kv_min, kv);
  shape.decode_kv_max = std::max(shape.decode_kv_max, kv);
  ++shape.decodes;
  shape.decode_kv_tokens += kv;
  shape.decode_kv_squares += std::int64_t{kv} * kv;
  shape.decode_full += is_full ? 1 : 0;
  if (window > 0 && !is_full) shape.decode_open_max = std::max(shape.decode_open_max, kv);
}

// A step of `rows` decode rows, each of `kv` cached tokens.
inline StepShape equal_decode_rows(std::int32_t rows, std::int32_t kv, const AttentionWindows& windows) {
  StepShape shape;
  if (rows <= 0) return shape;
  add_decode_row(shape, kv, windows);
  shape.decodes = rows;
  shape.decode_kv_tokens *= rows;
  shape.decode_kv_squares *= rows;
  shape.decode_full *= rows;
  shape.in_window.kv_tokens *= rows;
  shape.in_window.full *= rows;
  return shape;
}

// kExperts: feed-forward part of layers with experts: router, experts and shared experts. kLinear: the other operations over tokens.
enum class CostPart : std::uint8_t { kLinear, kAttention, kHead, kCollective, kPolicy, kExperts };
inline constexpr std::size_t kCostParts = 6;
// The basis of a time: measured at this very shape, between measured shapes or outside them, or without a table: by the roofline, or by the
// datasheet of a link. Descending in trust.
enum class Footing : std::uint8_t { kInside, kInterpolated, kExtrapolated, kRoofline, kDatasheet };
inline constexpr std::size_t kFootings = 5;
using ByFooting = std::array<Picoseconds, kFootings>;

// Device time of a step and its parts. All integers, so that sums over skipped steps are exact.
struct StepCost {
  Picoseconds total{};                        // the sum of `times`
  std::array<ByFooting, kCostParts> times{};  // by part and basis
  std::int64_t flops = 0;                     // useful ones, by the formulas of kernels/
  std::int64_t bytes = 0;                     // HBM traffic by the same formulas

  [[nodiscard]] ByFooting& row(CostPart part) { return times[static_cast<std::size_t>(part)]; }
  [[nodiscard]] Picoseconds of(CostPart part) const {
    const ByFooting& own = times[static_cast<std::size_t>(part)];
    return std::accumulate(own.begin(), own.end(), Picoseconds{});
  }
  [[nodiscard]] Picoseconds of(Footing footing) const {
    Picoseconds sum{};
    for (const ByFooting& own : times) sum += own[static_cast<std::size_t>(footing)];
    return sum;
  }
  // `count` steps more; below 0: less.
  void add(const StepCost& more, std::int64_t count = 1) {
    total += more.total * count;
    flops += more.flops * count;
    bytes += more.bytes * count;
    for (std::size_t p = 0; p < kCostParts; ++p)
      for (std::size_t f = 0; f < kFootings; ++f) times[p][f] += more.times[p][f] * count;
  }
};

// Cost of consecutive decode-only steps of one set of rows: step i costs base + i * slope, for 0 <= i < valid_steps. Exactly the cost that
// step() returns for each of them.
struct DecodeSpan {
  StepCost base, slope;
  std::int64_t valid_steps = 1;
};

// Prices steps of one rank (one GPU, or a tensor/expert-parallel group of them). Implementations may cache inside; one object per rank.
class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual StepCost step(const StepShape& shape) = 0;
  // shape has no prefills, and all of its rows gain a token per step, as far as the window shows it.
  virtual DecodeSpan decode_span(const StepShape& shape) = 0;
  // Host time of planning and launching a step: of the profile and of the engine, 0 where neither has one.
  [[nodiscard]] virtual Picoseconds host_time(const StepShape& shape) const = 0;
  // Pipeline parallelism: the same step cut into stages, activations' transfer included; one entry without it.
  virtual void stage_times(const StepShape& shape, std::vector<Picoseconds>& stages) = 0;
  [[nodiscard]] virtual int num_layers() const = 0;
  [[nodiscard]] virtual AttentionWindows windows() const { return {}; }
  [[nodiscard]] virtual int num_stages() const { return 1; }
  // Seconds to compute `tokens` prompt tokens on top of `kv_before`, for policies that weigh the cost of a miss.
  virtual double prefill_seconds(std::int32_t tokens, std::int32_t kv_before) = 0;
  [[nodiscard]] virtual double peak_flops() const = 0;        // FLOP/s of the rank, for MFU
  [[nodiscard]] virtual double peak_bytes_per_s() const = 0;  // HBM bytes/s of the rank, for MBU
  // For an error about implausibly long steps: the figure to check first, and its file.
  [[nodiscard]] virtual std::string likely_cause() const { return "check the rates of the hardware"; }
};

}  // namespace kvlab
