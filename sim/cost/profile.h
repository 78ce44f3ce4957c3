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
#include "sim/cost/step_prices.h"

namespace kvlab {

// Bin i: edge[i] < v <= edge[i + 1]; outer values go to outer bins.
struct SkewAxis {
  std::vector<double> edges;  // bins + 1, ascending
  std::vector<std::string> labels;
  [[nodiscard]] std::size_t bin(double value) const;
};

// LLMServingSim's skew_fit: alpha in [0, 1] by prompt tokens (exact), decode rows, skew, longest row, kv before the prompt; else
// alpha_default.
//   skew = var / (var + (longest - mean)^2) of decode lengths
class SkewTable final : public SkewRule {
 public:
  struct Entry {
    std::int64_t prompt_tokens;
    std::size_t rows, skew, longest, before;  // bins
    double alpha;
  };
  SkewTable(SkewAxis rows, SkewAxis skew, SkewAxis longest, SkewAxis before, double alpha_default, std::vector<Entry> entries);

  [[nodiscard]] int bucket(const DecodeBatch& batch) const override;
  [[nodiscard]] double alpha(int bucket) const override;
  // prompt_tokens: sum over prompts; before: cached tokens, mean over prompt tokens.
  [[nodiscard]] double mixed_alpha(const DecodeBatch& batch, std::int64_t prompt_tokens, double before) const;

  [[nodiscard]] const SkewAxis& axis(std::size_t i) const { return axes_[i]; }  // rows, skew, longest, before
  [[nodiscard]] double alpha_default() const { return alpha_default_; }
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

 private:
  [[nodiscard]] std::size_t cell(const DecodeBatch& batch, std::size_t before_bin) const;
  std::vector<SkewAxis> axes_;
  double alpha_default_;
  std::vector<Entry> entries_;
  std::vector<std::int64_t> prompt_tokens_;  // ascending
  std::vector<std::vector<double>> alpha_;   // by profiled value: [rows][skew][longest][before]
};

struct ProfileOp {
  std::string name;
  std::string covers;  // of operations.h; another name is added to the step
  using Axis = OpFamily;
  Axis axis = Axis::kTokens;
  int per_layer = 1;  // 0: once per step
  SampleGrid times;
  Footing at_best = Footing::kInside;        // kInterpolated, kExtrapolated: from other shapes
  std::optional<std::size_t> layer_class{};  // of layer_classes(); none: all

  [[nodiscard]] bool is_of_class(std::size_t one) const { return !layer_class || *layer_class == one; }
};

struct Profile {
  std::string file;                     // or folder
  std::string format;                   // of ProfileFormat
  std::string device, hardware, model;  // "": not said
  std::string measured, source;         // date; tool and version
  int tp = 1;
  std::vector<ProfileOp> ops;
  SampleGrid attention;  // prefill_chunk, kv_prefill, n_decode, kv_decode; one layer
  Footing attention_at_best = Footing::kInside;
  std::int64_t longest_prompt = 0;   // with cached tokens; 0: the table's
  SampleGrid shared_call;            // tokens; saved by a prompt next to a longer one
  bool attention_has_append = true;  // includes writes
  bool repeats_scatter = false;      // too much for limits of collectives
  bool has_small_ops = true;         // else the roofline prices norms, activations, embedding, sampler
  SampleGrid moe;                    // tokens, activated_experts; one uncut layer
  std::vector<CollectiveTable> collectives;
  PolicyTimes policy;
  // Token counts no further apart take the upper time (a partial tile is as slow). 1: interpolated.
  int tile_rows = 16;
  KvReads kv_reads = KvReads::kStored;  // by attention
  std::optional<SkewTable> skew;
  Picoseconds host_time{};
  std::map<std::string, std::string> options;  // of the measured engine
  std::vector<std::string> notes;              // for the result
};

inline Profile empty_profile(const std::string& file, const std::string& format, int tp) {
  Profile p;
  p.file = file, p.format = format, p.tp = tp;
  return p;
}

// Over all that a cost depends on, 16 hexadecimal digits. A converted profile keeps it.
std::string profile_hash(const Profile& profile);

// LLMServingSim profiler: meta.yaml and tp<N>/*.csv in microseconds. Throws InputError with file:line.
Profile read_bundle(const std::string& folder, int tp);
// Folders tp<N>/, ascending.
std::vector<int> profile_tp_degrees(const std::string& folder);
// Throws InputError if missing.
std::string tp_folder(const std::string& folder, int tp);

// meta.yaml of our format; checks version and unit only.
inline constexpr int kProfileSchema = 1;
Params read_profile_meta(const std::string& folder);

inline constexpr const char* kOwnProfileFormat = "kvlab";
// docs/cost-model.md. write_kvlab_profile adds tp<N>/, and replaces no file.
Profile read_kvlab_profile(const std::string& folder, int tp);
void write_kvlab_profile(const Profile& profile, const std::string& folder);

SampleGrid::Value time_of_op(const ProfileOp& op, std::int64_t count, int tile_rows);

// Samples must ascend; `places`: their lines.
SampleGrid checked_grid(std::size_t axes, std::vector<SampleGrid::Sample> samples, const std::vector<std::string>& places);

// With one table in a profile.
inline constexpr std::array kGridFamilies{OpFamily::kAttention, OpFamily::kMoe};
SampleGrid Profile::*grid_of(OpFamily family);

bool is_part_of_another(const Profile& profile, OpId op);
bool has_times(const Profile& profile, OpId op);

}  // namespace kvlab
