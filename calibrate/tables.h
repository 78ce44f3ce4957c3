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

// One or two counts; unused ones are 0.
using CalibrationPoint = std::array<std::int64_t, 2>;

struct CalibrationTable {
  enum class Kind : std::uint8_t {
    kOp,       // tokens or sequences
    kPrefill,  // new tokens, cached tokens
    kDecode,   // rows, their length
    kPolicy,   // cached tokens per KV head; length of a sequence, 0: at most kLayoutTokens
    kCopy,     // bytes over the host link
    kRecipe,   // bytes and FLOPs of a recipe's operation, in the engine
  };
  std::string name;  // of the file; of policy operations as in OpCall
  Kind kind = Kind::kOp;
  std::optional<OpId> op;  // none: kRecipe
  std::string covers;      // kOp: as ProfileOp
  ProfileOp::Axis axis = ProfileOp::Axis::kTokens;
  int per_layer = 1;
  DeviceKind device = DeviceKind::kCpu;
  std::string family, format;                       // of the registry
  std::array<std::vector<std::int64_t>, 2> coarse;  // measured first; second empty with one axis
  std::int64_t most_product = 0;                    // of a point's counts, for memory; 0: no limit
  std::int64_t most_copies = 1;                     // of the operands; a layer's recur after all other layers
  std::int64_t streamed_bytes = 0;                  // bytes through the cache before an operand recurs: a model's weights, and
  std::int64_t streamed_bytes_per_token = 0;        // this per KV token of a step; 0: enough to evict the cache
  std::int64_t most_sequences = 0;                  // of a step: more tokens are prompts'

  [[nodiscard]] bool in_every_step() const { return kind != Kind::kPolicy && kind != Kind::kCopy && kind != Kind::kRecipe; }
  [[nodiscard]] bool is_streamed() const { return streamed_bytes > 0; }
  [[nodiscard]] std::size_t axes() const { return coarse[1].empty() ? 1 : 2; }
  [[nodiscard]] bool has(const CalibrationPoint& at) const {
    return axes() == 1 || most_product == 0 || (at[0] * std::max<std::int64_t>(at[1], 1)) <= most_product;
  }
};
inline constexpr std::int64_t kLayoutTokens = 4096;
inline constexpr std::int64_t kContextTokens = 512;  // of a sequence, if a point has no length

// For all operand copies, approximate.
std::int64_t copied_bytes(const CalibrationTable& table, const CalibrationPoint& at);

// For all activation copies, approximate: a forward pass over the point's tokens. 0 for policy operations and copies.
std::int64_t activation_bytes(const CalibrationTable& table, const ModelSpec& model, const CalibrationPoint& at);

// Weights and KV rotate over a step's bytes, at most all weights or three times the cache, and an eighth of memory; others and activations
// over at most cold_rotation().
Rotation rotation_at(const CalibrationTable& table, const ModelSpec& model, const CalibrationPoint& at, const TimedDevice& device);

// The largest measured steps.
struct CalibrationLimits {
  std::int64_t tokens = 8192, sequences = 256, length = 32768;
  std::int64_t kv_bytes = std::int64_t{8} << 30;  // K and V in one measurement
};
CalibrationLimits default_limits(const ModelSpec& model, DeviceKind kind, std::int64_t memory_bytes);

// In measuring order. Throws InputError for experts, learned positions, MLPs without gate.
std::vector<CalibrationTable> calibration_tables(const ModelSpec& model, DeviceKind kind, const CalibrationLimits& limits);

// A value for each axis of the family. Throws InternalError for an unknown axis.
Shape shape_at(const CalibrationTable& table, const ModelSpec& model, const CalibrationPoint& at);

}  // namespace kvlab
