#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/int128.h"
#include "base/picoseconds.h"
#include "policies/kv/footprint.h"
#include "policies/scheduler/scheduler.h"

namespace kvlab {

// Attends to kv_before cached tokens and causally to itself.
struct PrefillPiece {
  std::int32_t new_tokens = 0;
  std::int32_t kv_before = 0;
};

// Decode rows in window layers, if others have no window.
struct WindowRows {
  std::int64_t kv_tokens = 0;
  std::int32_t full = 0;      // fill the window
  std::int32_t open_max = 0;  // longest of the others
};

// Visible tokens; 0: all.
struct AttentionWindows {
  std::int32_t every_layer = 0, some_layers = 0;  // at most one is set
};

// At the experts of a step.
struct GroupTokens {
  std::int64_t useful = 0;                 // of all ranks
  std::int64_t computed = 0;               // of all ranks, with padding and dummies
  std::int64_t smallest = 0, largest = 0;  // per rank

  void add(std::int64_t its_useful, std::int64_t its_computed) {
    smallest = computed == 0 ? its_computed : std::min(smallest, its_computed);
    largest = std::max(largest, its_computed);
    useful += its_useful;
    computed += its_computed;
  }
};

// One rank's step. kv: cached tokens before the row's own, up to the window (add_decode_row).
struct StepShape {
  std::span<const PrefillPiece> prefills;
  std::int32_t decodes = 0;
  std::int64_t decode_kv_tokens = 0;  // sum over rows
  std::int32_t decode_kv_max = 0;
  std::int32_t decode_kv_min = 0;
  std::int64_t decode_kv_squares = 0;  // sum of kv^2, for skew rules
  std::int32_t decode_full = 0;        // fill the window and stop growing
  std::int32_t decode_open_max = 0;    // longest of the others
  WindowRows in_window;                // in window layers, if others have none
  std::int32_t idle_rows = 0;          // without attention
  std::int32_t padding_rows = 0;       // without useful work
  std::int32_t head_rows = 0;          // with logits
  std::span<const PolicyOp> ops;
  std::int32_t sparse_layers = 0;      // layers with the attention of `prefills` in `ops`
  std::int32_t layers = 0;             // 0: all, embedding and head; else only this many
  const GroupTokens* group = nullptr;  // at the experts; null: other ranks are idle

  [[nodiscard]] std::int64_t tokens() const {
    std::int64_t sum = std::int64_t{decodes} + idle_rows;
    for (const PrefillPiece& piece : prefills) sum += piece.new_tokens;
    return sum;
  }
};

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

// Into an empty shape. With windows, rows list each kv.
inline void add_decode_rows(StepShape& shape, const DecodeRows& rows, const AttentionWindows& windows) {
  for (const std::int32_t kv : rows.kv) add_decode_row(shape, kv, windows);
  if (!rows.kv.empty()) return;
  shape.decodes = rows.count;
  shape.decode_kv_tokens = rows.kv_tokens;
  shape.decode_kv_squares = rows.kv_squares;
  shape.decode_kv_min = rows.kv_min;
  shape.decode_kv_max = rows.kv_max;
}

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

// kExperts: feed-forward part of expert layers. kLinear: other per-token operations.
enum class CostPart : std::uint8_t { kLinear, kAttention, kHead, kCollective, kPolicy, kExperts };
inline constexpr std::size_t kCostParts = 6;
// In descending trust: measured, between or beyond measured shapes, roofline, link datasheet.
enum class Footing : std::uint8_t { kInside, kInterpolated, kExtrapolated, kRoofline, kDatasheet };
inline constexpr std::size_t kFootings = 5;
using ByFooting = std::array<Picoseconds, kFootings>;

// Integers, so sums over skipped steps are exact. Most cells are 0: a bit marks each other one.
class PartTimes {
 public:
  static constexpr std::size_t kCells = kCostParts * kFootings;
  static constexpr std::size_t cell(CostPart part, Footing footing) {
    return static_cast<std::size_t>(part) * kFootings + static_cast<std::size_t>(footing);
  }

  void add(std::size_t cell, Picoseconds ps) {
    cells_[cell] += ps;
    used_ |= 1U << cell;
  }
  // visit(cell, picoseconds)
  template <class Visit>
  void each(const Visit& visit) const {
    for (std::uint32_t left = used_; left != 0; left &= left - 1) {
      const auto cell = static_cast<std::size_t>(std::countr_zero(left));
      visit(cell, cells_[cell]);
    }
  }
  [[nodiscard]] ByFooting row(CostPart part) const {
    ByFooting row;
    std::copy_n(cells_.begin() + static_cast<std::ptrdiff_t>(cell(part, Footing{})), kFootings, row.begin());
    return row;
  }
  friend bool operator==(const PartTimes& a, const PartTimes& b) { return a.cells_ == b.cells_; }

 private:
  std::array<Picoseconds, kCells> cells_{};
  std::uint32_t used_ = 0;
};
static_assert(PartTimes::kCells <= 32);

struct StepCost {
  Picoseconds total{};  // sum of `times`
  PartTimes times;
  std::int64_t flops = 0;  // useful
  std::int64_t bytes = 0;  // HBM

  [[nodiscard]] Picoseconds of(CostPart part) const {
    const ByFooting row = times.row(part);
    return std::accumulate(row.begin(), row.end(), Picoseconds{});
  }
  [[nodiscard]] Picoseconds of(Footing footing) const {
    Picoseconds sum{};
    times.each(
        [&](std::size_t cell, Picoseconds ps) { sum += cell % kFootings == static_cast<std::size_t>(footing) ? ps : Picoseconds{}; });
    return sum;
  }
  void add(CostPart part, Footing footing, Picoseconds ps) {
    total += ps;
    times.add(PartTimes::cell(part, footing), ps);
  }
  void add(const StepCost& more, std::int64_t count = 1) {
    total += more.total * count;
    flops += more.flops * count;
    bytes += more.bytes * count;
    more.times.each([&](std::size_t cell, Picoseconds ps) { times.add(cell, ps * count); });
  }
};

// Consecutive decode-only steps of the same rows: exactly base + i * slope for 0 <= i < valid_steps.
struct DecodeSpan {
  StepCost base, slope;
  std::int64_t valid_steps = 1;
};

// One rank (a GPU, or a tensor/expert-parallel group). Caches, so one object serves one thread; a call does not depend on those before.
class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual StepCost step(const StepShape& shape) = 0;
  // Without prefills. All rows gain a token per step, up to the window.
  virtual DecodeSpan decode_span(const StepShape& shape) = 0;
  // CPU time to plan and launch a step; 0 if unknown.
  [[nodiscard]] virtual Picoseconds host_time(const StepShape& shape) const = 0;
  // Includes activation transfer; one entry without pipeline parallelism.
  virtual void stage_times(const StepShape& shape, std::vector<Picoseconds>& stages) = 0;
  [[nodiscard]] virtual int num_layers() const = 0;
  [[nodiscard]] virtual AttentionWindows windows() const { return {}; }
  [[nodiscard]] virtual int num_stages() const { return 1; }
  virtual double prefill_seconds(std::int32_t tokens, std::int32_t kv_before) {
    const PrefillPiece piece{tokens, kv_before};
    StepShape shape;
    shape.prefills = std::span(&piece, 1);
    return to_s(step(shape).total);
  }
  [[nodiscard]] virtual double peak_flops() const = 0;
  [[nodiscard]] virtual double peak_bytes_per_s() const = 0;
  // Checked first if steps are implausibly long.
  [[nodiscard]] virtual std::string likely_cause() const { return "check the rates of the hardware"; }
};

}  // namespace kvlab
