#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "policies/kv/footprint.h"
#include "sim/cost/collectives.h"
#include "sim/cost/operations.h"
#include "sim/cost/policy_times.h"
#include "sim/cost/sample_grid.h"
#include "sim/cost/skew_table.h"

namespace kvlab {

// Times of an operation over tokens or sequences of a step.
struct ProfileOp {
  std::string name;    // as in the file it came from
  std::string covers;  // the operation (operations.h); another name is added to the step
  using Axis = OpFamily;
  Axis axis = Axis::kTokens;
  int per_layer = 1;  // calls per layer; 0: once per step
  SampleGrid times;
  Footing at_best = Footing::kInside;        // kInterpolated, kExtrapolated: from other shapes
  std::optional<std::size_t> layer_class{};  // of layer_classes(); none: all

  [[nodiscard]] bool is_of_class(std::size_t one) const { return !layer_class || *layer_class == one; }
};

// Kernel times of one model, GPU and tensor-parallel degree, read from any format.
struct Profile {
  std::string file;                     // or folder
  std::string format;                   // name of its ProfileFormat
  std::string device, hardware, model;  // "": not said
  std::string measured, source;         // date; tool and version
  int tp = 1;
  std::vector<ProfileOp> ops;
  SampleGrid attention;                          // prefill_chunk, kv_prefill, n_decode, kv_decode; one layer
  Footing attention_at_best = Footing::kInside;  // as in ProfileOp
  std::int64_t longest_prompt = 0;               // measured, with cached tokens; 0: the table's
  SampleGrid shared_call;                        // tokens; time saved by a prompt next to a longer one
  bool attention_has_append = true;              // writes of new K and V are in its times
  bool repeats_scatter = false;                  // too much for limits of collectives
  bool has_small_ops = true;                     // false: the roofline prices norms, activations, embedding, sampler
  SampleGrid moe;                                // tokens, activated_experts; one layer, not cut over ranks
  std::vector<CollectiveTable> collectives;
  PolicyTimes policy;  // of a KV policy's operations
  // Between token counts no further apart the time is the upper one's (a partial tile is as slow as a whole one). 1: interpolated.
  int tile_rows = 16;
  KvReads kv_reads = KvReads::kStored;         // by attention
  std::optional<SkewTable> skew;               // if enabled
  Picoseconds host_time{};                     // of one step
  std::map<std::string, std::string> options;  // of the measured engine
  std::vector<std::string> notes;              // of the reader; in the result
};

// Hash of all that a cost depends on, 16 hexadecimal digits. A converted profile keeps it.
std::string profile_hash(const Profile& profile);

// A folder of the LLMServingSim profiler: meta.yaml and tp<N>/*.csv in microseconds. Throws InputError with file:line.
Profile read_bundle(const std::string& folder, int tp);
// Degrees with a folder tp<N>/, ascending.
std::vector<int> profile_tp_degrees(const std::string& folder);

// meta.yaml of our own format; version and unit are checked, the other keys unread.
inline constexpr int kProfileSchema = 1;
Params read_profile_meta(const std::string& folder);

inline constexpr const char* kOwnProfileFormat = "kvlab";
// docs/cost-model.md. write_kvlab_profile adds tp<N>/ to a folder of other degrees, and replaces no file.
Profile read_kvlab_profile(const std::string& folder, int tp);
void write_kvlab_profile(const Profile& profile, const std::string& folder);

// Over tokens by the rule of tile_rows, over sequences linear.
SampleGrid::Value time_of_op(const ProfileOp& op, std::int64_t count, int tile_rows);

// Samples must ascend; `places`: the line of each.
SampleGrid checked_grid(std::size_t axes, std::vector<SampleGrid::Sample> samples, const std::vector<std::string>& places);

// Families with one table in a profile.
inline constexpr std::array kGridFamilies{OpFamily::kAttention, OpFamily::kMoe};
SampleGrid Profile::*grid_of(OpFamily family);

// The times of another table include the operation's (Operation::part_of).
bool is_part_of_another(const Profile& profile, OpId op);
// As an operation or as a part of one.
bool has_times(const Profile& profile, OpId op);

}  // namespace kvlab
