#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/cases/kernel_case.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/operations.h"
#include "sim/cost/profile.h"

namespace kvlab {

// A place in a table: one or two counts; unused ones are 0.
using CalibrationPoint = std::array<std::int64_t, 2>;

// One table of the profile, and which operation is timed for it.
struct CalibrationTable {
  enum class Kind : std::uint8_t {
    kOp,       // over tokens or sequences
    kPrefill,  // new tokens, cached tokens before them
    kDecode,   // rows, length of each
    kPolicy,   // cached tokens per KV head; the second count is the length of a sequence, 0: at most kLayoutTokens
    kCopy,     // bytes over the host link
    kRecipe,   // bytes and FLOPs of a recipe's operation: points are the sizes of the engine's calls
  };
  std::string name;  // of the table's file; of a policy operation: as its OpCall has it
  Kind kind = Kind::kOp;
  std::optional<OpId> op;  // none: kRecipe
  std::string covers;      // kOp: as in ProfileOp
  ProfileOp::Axis axis = ProfileOp::Axis::kTokens;
  int per_layer = 1;
  DeviceKind device = DeviceKind::kCpu;
  std::string family, format;                       // of the registry
  std::array<std::vector<std::int64_t>, 2> coarse;  // the grid that is measured first; the second empty with one axis
  std::int64_t most_product = 0;                    // points whose counts' product is larger are left out: memory; 0: none are
  std::int64_t most_copies = 1;                     // of the operands: a layer's are met again after all other layers
  std::int64_t streamed_bytes = 0;                  // what passes through the cache before an operand is met again: a model's weights, and
  std::int64_t streamed_bytes_per_token = 0;        // this for each token of KV in a step; 0: as much as evicts the cache
  std::int64_t most_sequences = 0;                  // of a step: more tokens than these are prompts'

  [[nodiscard]] bool in_every_step() const { return kind != Kind::kPolicy && kind != Kind::kCopy && kind != Kind::kRecipe; }
  [[nodiscard]] bool is_streamed() const { return streamed_bytes > 0; }
  [[nodiscard]] std::size_t axes() const { return coarse[1].empty() ? 1 : 2; }
  [[nodiscard]] bool has(const CalibrationPoint& at) const {
    return axes() == 1 || most_product == 0 || (at[0] * std::max<std::int64_t>(at[1], 1)) <= most_product;
  }
};
inline constexpr std::int64_t kLayoutTokens = 4096;
inline constexpr std::int64_t kContextTokens = 512;  // of a sequence whose length a point does not say

// Approximate bytes of all copies of the operands at a point.
std::int64_t copied_bytes(const CalibrationTable& table, const CalibrationPoint& at);

// Approximate bytes of all copies of the activations at a point: those of a whole forward pass over its tokens, after which an operation
// meets its own again. 0 for a policy's operations and copies.
std::int64_t activation_bytes(const CalibrationTable& table, const ModelSpec& model, const CalibrationPoint& at);

// The rotation of the operands at a point on a device. Weights and KV: the bytes that pass through the cache in a step, at most all weights
// or three times the cache, and at most an eighth of the memory; others, and activations: at most cold_rotation().
Rotation rotation_at(const CalibrationTable& table, const ModelSpec& model, const CalibrationPoint& at, const TimedDevice& device);

// The sizes of the largest steps that calibration measures.
struct CalibrationLimits {
  std::int64_t tokens = 8192, sequences = 256, length = 32768;
  std::int64_t kv_bytes = std::int64_t{8} << 30;  // of K and V together in one measurement
};
// The default limits for a model on a device with `memory_bytes`.
CalibrationLimits default_limits(const ModelSpec& model, DeviceKind kind, std::int64_t memory_bytes);

// The tables of a model in the order they are measured. InputError for models whose operations are not timed: experts, learned positions,
// MLPs without a gate.
std::vector<CalibrationTable> calibration_tables(const ModelSpec& model, DeviceKind kind, const CalibrationLimits& limits);

// The shape that the table's family is prepared with: a value for each of its axes. InternalError for an axis without a meaning here.
Shape shape_at(const CalibrationTable& table, const ModelSpec& model, const CalibrationPoint& at);

}  // namespace kvlab
