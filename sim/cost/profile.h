#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config/params.h"
#include "base/config/registry.h"
#include "base/csv.h"
#include "base/picoseconds.h"
#include "policies/kv/footprint.h"
#include "sim/cost/collectives.h"
#include "sim/cost/operations.h"
#include "sim/cost/step_prices.h"

namespace kvlab {

enum class TimeUnit : std::uint8_t { kNs, kUs, kMs };

// Three decimals, exact to the picosecond.
std::string ns_text(Picoseconds time);

// CSV, kept as text. Errors have file:line and column.
class MeasuredTable {
 public:
  using Key = std::vector<std::pair<std::string, std::int64_t>>;  // columns that are matched

  explicit MeasuredTable(const std::string& file);
  static std::optional<MeasuredTable> read_if_there(const std::string& file);

  [[nodiscard]] bool has(const std::string& column) const { return table_.header().has(column); }
  [[nodiscard]] std::size_t column(const std::string& name) const { return table_.header().at(name); }
  [[nodiscard]] std::size_t num_rows() const { return table_.num_rows(); }
  [[nodiscard]] std::string text(std::size_t row, std::size_t column) const { return std::string(table_.field(row, column)); }
  [[nodiscard]] std::int64_t count(std::size_t row, std::size_t column) const;  // in [0, 2^40]
  [[nodiscard]] double real(std::size_t row, std::size_t column) const;         // finite
  // Positive; rounded to picoseconds.
  [[nodiscard]] Picoseconds time(std::size_t row, std::size_t column, TimeUnit unit) const;
  // A sample per row, in ascending order: columns `axes`, time, spread ("": none, else 0 or more).
  [[nodiscard]] SampleGrid grid(const std::vector<std::string>& axes, const std::string& time, TimeUnit unit,
                                const std::string& spread = "") const;
  // Of rows with this key; may be empty.
  [[nodiscard]] SampleGrid grid(const Key& key, const std::vector<std::string>& axes, const std::string& time = "time_ns") const;
  // In rows with this key, ascending.
  [[nodiscard]] std::vector<std::int64_t> values(const std::string& column, const Key& key) const;
  [[nodiscard]] std::string place(std::size_t row) const;  // "file:line"
  [[nodiscard]] const std::string& file() const { return table_.header().file; }

 private:
  [[noreturn]] void fail(std::size_t row, std::size_t column, const std::string& what) const;
  [[nodiscard]] std::vector<std::size_t> rows_of(const Key& key) const;
  [[nodiscard]] SampleGrid grid(const std::vector<std::string>& axes, const std::string& time, TimeUnit unit, const std::string& spread,
                                const std::vector<std::size_t>& rows) const;

  CsvText table_;
};

// y[m, n] = x[m, k] w^T of one type: linear between sizes; proportional beyond the largest n or k, since the last slope is noisy.
class GemmTable {
 public:
  explicit GemmTable(SampleGrid grid);
  [[nodiscard]] SampleGrid::Value at(std::int64_t n, std::int64_t k, std::int64_t m) const;
  [[nodiscard]] const std::vector<std::int64_t>& rows() const { return rows_; }  // m, ascending

 private:
  SampleGrid grid_;  // n, k, m
  std::vector<std::int64_t> rows_;
  std::int64_t most_n_ = 0, most_k_ = 0;
};

struct HardwareSpec;

// Batched call, counted as in kernels/ops.h.
struct PolicySample {
  // As in OpCall; host_to_device: copy from pinned memory; at_rest/RECIPE: unpacking and packing a step's sequences, bytes of K and V in
  // the model's type (UnpackOps).
  std::string op;
  std::int64_t rows = 0, tokens = 0, outputs = 0, bytes = 0, flops = 0;
  Picoseconds time{};
  double spread_frac = 0;
};

// launch + byte * bytes + flop * FLOPs, nonnegative, of least squared relative error.
class WorkPrice {
 public:
  explicit WorkPrice(std::span<const PolicySample> samples);  // not empty
  // Interpolated up to the samples' most bytes and FLOPs, else extrapolated.
  [[nodiscard]] SampleGrid::Value at(double bytes, double flops) const;

 private:
  using Vector3 = std::array<double, 3>;
  // Relative to the largest.
  [[nodiscard]] Vector3 work(double bytes, double flops) const { return {1, bytes / most_bytes_, flops / most_flops_}; }

  double most_bytes_ = 1, most_flops_ = 1;
  Vector3 ps_{};  // per launch, most bytes, most FLOPs
};

// Policy operations by bytes per call, linear or log-log. Averages samples of equal bytes; continues along the last two, never falling;
// level below the first.
class PolicyTimes {
 public:
  // kInSteps: timed in steps of recipes. Operations with FLOPs take a + b bytes + c FLOPs (WorkPrice); others are linear. Not limited by
  // the datasheet.
  enum class Scale : std::uint8_t { kLinear, kLog, kInSteps };

  PolicyTimes() = default;
  PolicyTimes(std::vector<PolicySample> samples, const std::map<std::string, Scale>& scales);  // default: linear

  [[nodiscard]] bool empty() const { return samples_.empty(); }
  [[nodiscard]] const std::vector<PolicySample>& samples() const { return samples_; }
  [[nodiscard]] std::vector<std::string> ops() const;
  [[nodiscard]] bool has(std::string_view op) const { return curves_.contains(op); }
  [[nodiscard]] Scale scale(const std::string& op) const { return curves_.find(op)->second.scale; }
  // nullopt: not measured.
  [[nodiscard]] std::optional<SampleGrid::Value> at(std::string_view op, double bytes, double flops) const;

 private:
  struct Curve {
    Scale scale = Scale::kLinear;
    std::optional<WorkPrice> work;
    std::vector<double> bytes, ps;  // bytes: ascending
  };
  std::vector<PolicySample> samples_;
  std::map<std::string, Curve, std::less<>> curves_;
};

// tp<N>/policy.csv and policy.yaml of a kvlab profile; may be empty.
PolicyTimes read_policy_times(const std::string& folder);
void write_policy_times(const PolicyTimes& times, const std::string& folder);

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
  SkewTable(std::vector<SkewAxis> axes, double alpha_default, std::vector<Entry> entries);  // axes: rows, skew, longest, before

  [[nodiscard]] int bucket(const DecodeBatch& batch) const override;
  [[nodiscard]] double alpha(int bucket) const override;
  // prompt_tokens: sum over prompts; before: cached tokens, mean over prompt tokens.
  [[nodiscard]] double mixed_alpha(const DecodeBatch& batch, std::int64_t prompt_tokens, double before) const;

  [[nodiscard]] const SkewAxis& axis(std::size_t i) const { return axes_[i]; }
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

// Compares entries with the datasheet; per table and kind the worst, and the count. Errors: faster than the peak rates, or a wrong unit.
// Warnings: fast by operands in the L2 cache, or falls as work grows.
std::vector<LintFinding> lint_profile(const Profile& profile, const ModelSpec& model, const HardwareSpec& hardware);

// Measured kernel tables, chosen by `profile: {NAME: {...}}`. A new format is one file that ends in
//   KVLAB_REGISTER(ProfileFormat, VidurFormat, "vidur", "tables of Vidur's profiler", "Agrawal et al. 2024");
class ProfileFormat {
 public:
  virtual ~ProfileFormat() = default;

  [[nodiscard]] virtual std::string parameters() const { return "path, missing, impossible, kv_reads"; }
  // False: the functions below are not called.
  [[nodiscard]] virtual bool has_tables() const { return true; }
  // Parameter with the folder.
  [[nodiscard]] virtual std::string folder_key() const { return "path"; }
  // Throws InputError.
  [[nodiscard]] virtual std::string read_folder(Params& p) const;
  // Default of `missing` is `roofline`.
  [[nodiscard]] virtual bool fills_gaps() const { return false; }

  // The file that only this format has, and its word in messages: {"mlp.csv", "Vidur's"}. May be empty.
  [[nodiscard]] virtual std::pair<std::string, std::string> mark() const { return {}; }
  // By default: it has that file.
  [[nodiscard]] virtual bool is_form_of(const std::string& folder) const;
  // Tables are in tp<N>/ per tensor-parallel degree.
  [[nodiscard]] bool has_degrees() const { return mark().first.starts_with("tp<N>/"); }
  // Throws InputError with file:line.
  [[nodiscard]] virtual Profile read(const std::string& folder, int tp) const = 0;
  virtual void add_tables_of_model(Profile& /*profile*/, const ModelSpec& /*m*/, const Parallel& /*p*/) const {}
  // "": it can.
  [[nodiscard]] virtual std::string why_not_converted() const { return ""; }
};

// With tables, our own first.
std::vector<std::string> profile_format_names();
std::unique_ptr<ProfileFormat> make_profile_format(const std::string& name);
// By the folder's files. Throws InputError.
std::string profile_format_of(const std::string& folder);

}  // namespace kvlab
