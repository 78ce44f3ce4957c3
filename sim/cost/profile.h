#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/params.h"
#include "policies/kv/footprint.h"
#include "sim/cost/collectives.h"
#include "sim/cost/operations.h"
#include "sim/cost/policy_times.h"
#include "sim/cost/sample_grid.h"
#include "sim/cost/skew_table.h"

namespace kvlab {

// Times of one operation over the number of tokens, or of sequences, in a step.
struct ProfileOp {
  std::string name;    // as in the file it came from
  std::string covers;  // the operation whose time it is, or part of it; a name that operations.h does not have is simply added
  using Axis = OpFamily;
  Axis axis = Axis::kTokens;
  int per_layer = 1;  // calls in a layer; 0: once per step
  SampleGrid times;
  Footing at_best = Footing::kInside;        // interpolated: its times are between those of other shapes; extrapolated: beyond them
  std::optional<std::size_t> layer_class{};  // of the model's layer_classes, where layers differ in its shape; none: of all layers

  [[nodiscard]] bool is_of_class(std::size_t one) const { return !layer_class || *layer_class == one; }
};

// Measured kernel times of one model on one GPU at one tensor-parallel degree: every format is read into this.
struct Profile {
  std::string file;                     // folder or file it was read from
  std::string format;                   // bundle, vidur, kvlab or aisimulate
  std::string device, hardware, model;  // as the profile names them; empty where it does not say
  std::string measured, source;         // date; tool and version
  int tp = 1;
  std::vector<ProfileOp> ops;
  SampleGrid attention;                          // prefill_chunk, kv_prefill, n_decode, kv_decode; one layer
  Footing attention_at_best = Footing::kInside;  // as at_best of an operation
  std::int64_t longest_prompt = 0;               // cached tokens included, that was measured; 0: the table's own
  SampleGrid shared_call;                        // tokens; time that a prompt saves in a call that has a longer one; empty: nothing
  bool attention_has_append = true;              // its times include the write of new K and V; false: an operation of its own
  bool has_small_ops = true;                     // false: no tables of norms, activations, embedding and sampler; the roofline prices them
  SampleGrid moe;                                // tokens, activated_experts; one layer, not cut over ranks
  std::vector<CollectiveTable> collectives;
  PolicyTimes policy;  // of a KV policy's operations
  // Rows of a matrix product come in tiles, and a partial tile takes as long as a whole one: between two token counts no further apart than
  // this the time is that of the upper one. 1: times of operations over tokens are interpolated everywhere.
  int tile_rows = 16;
  KvReads kv_reads = KvReads::kStored;         // the form of packed KV that attention reads
  std::optional<SkewTable> skew;               // only where the profile says it is to be used
  Picoseconds host_time{};                     // of planning and launching one step
  std::map<std::string, std::string> options;  // of the engine it was measured with
  std::vector<std::string> notes;              // decisions of the reader; shown with the result
};

// Hash of everything that a cost can depend on: tables, calls per layer, skew, host time. 16 hexadecimal digits. The same for
// a profile and its conversion into another format.
std::string profile_hash(const Profile& profile);

// A folder of the LLMServingSim profiler: meta.yaml and tp<N>/*.csv in microseconds. InputError with file:line; a missing
// tp<N> lists those there are.
Profile read_bundle(const std::string& folder, int tp);
// The degrees a bundle or kvlab profile has tables for, ascending.
std::vector<int> profile_tp_degrees(const std::string& folder);

// Vidur's mlp.csv and attention.csv (milliseconds), and all_reduce.csv where there is one. Medians are taken; rows of other
// degrees are skipped.
Profile read_vidur(const std::string& folder, int tp);

// meta.yaml of a folder in our own format, or of tables that belong to no model: its version and unit are checked, the other keys are to
// be read.
inline constexpr int kProfileSchema = 1;
Params read_profile_meta(const std::string& folder);

// Our own format: docs/cost-model.md. write_kvlab_profile adds tp<N>/ to a folder that holds the same profile at other
// degrees, and refuses to replace files.
Profile read_kvlab_profile(const std::string& folder, int tp);
void write_kvlab_profile(const Profile& profile, const std::string& folder);

// Time of an operation over tokens, by the rule of tile_rows; over sequences straight lines.
SampleGrid::Value time_of_op(const ProfileOp& op, std::int64_t count, int tile_rows);

// Checks that samples ascend without repeats; `places` names the line of each.
SampleGrid checked_grid(std::size_t axes, std::vector<SampleGrid::Sample> samples, const std::vector<std::string>& places);

// The table of a family of which a profile has one: attention, experts.
inline constexpr std::array kGridFamilies{OpFamily::kAttention, OpFamily::kMoe};
SampleGrid Profile::*grid_of(OpFamily family);

// True: the times of another table include the operation's (Operation::part_of), by what the profile says.
bool is_part_of_another(const Profile& profile, OpId op);
// True: the profile has times of the operation, alone or as a part.
bool has_times(const Profile& profile, OpId op);

}  // namespace kvlab
