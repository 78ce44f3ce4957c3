#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/ceil_div.h"
#include "base/file_memo.h"
#include "base/usage.h"
#include "sim/cost/collectives.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/profile.h"
#include "sim/cost/step_work.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;
constexpr const char* kConvert = "./kvlab profile convert --format aisimulate";
constexpr const char* kDefaultFolder = "results/measured/aisimulate";  // as in profiles/aisimulate/convert.py
constexpr double kPlainBits = 16;

// The package's product type for weights of `num_bits`.
std::string gemm_type(Dtype compute, double num_bits) {
  constexpr double kBlockScales = 1e-3;  // bits per weight of block scales
  constexpr double kFourBits = 6;        // including scales
  if (compute == Dtype::kFp8) return num_bits > 8 + kBlockScales ? "fp8_block" : "fp8";
  if (compute == Dtype::kInt8) return "sq";
  if (compute == Dtype::kFp4) return "nvfp4";
  return num_bits >= kPlainBits ? "bfloat16" : num_bits < kFourBits ? "int4_wo" : "int8_wo";
}

// With their shares of products.
std::map<std::string, double> types_of(const WeightFormat& format) {
  const double plain = format.share[static_cast<std::size_t>(Dtype::kBf16)] + format.share[static_cast<std::size_t>(Dtype::kFp16)] +
                       format.share[static_cast<std::size_t>(Dtype::kFp32)];
  const bool is_mixed = plain > 0 && plain < 1;
  std::map<std::string, double> types;
  for (std::size_t t = 0; t < kNumDtypes; ++t) {
    if (format.share[t] <= 0) continue;
    const auto compute = static_cast<Dtype>(t);
    const bool is_plain = bits(compute) >= static_cast<std::int64_t>(kPlainBits);
    const double rest = is_mixed ? (format.bits - kPlainBits * plain) / (1 - plain) : format.bits;
    types[gemm_type(compute, is_mixed && is_plain ? kPlainBits : rest)] += format.share[t];
  }
  return types;
}

std::string table_file(const std::string& folder, const std::string& kind, const std::string& type) {
  return folder + "/" + kind + "_" + type + ".csv";
}

// nullopt: no such file.
std::shared_ptr<const std::optional<GemmTable>> gemm_table(const std::string& file) {
  static FileMemo<std::optional<GemmTable>> known;
  return known.get(file, [&](SeenFiles& seen) {
    seen.add(file);
    const auto table = MeasuredTable::read_if_there(file);
    return table ? std::optional<GemmTable>(table->grid({}, {"n", "k", "m"})) : std::nullopt;
  });
}

class Products {
 public:
  explicit Products(const Profile& profile) : profile_(profile) {}

  // nullopt: no table.
  std::optional<ProfileOp> times(const OpWork& op, ProfileOp::Axis axis, int per_layer) {
    const std::map<std::string, double> types =
        op.format == nullptr ? std::map<std::string, double>{{"bfloat16", 1.0}} : types_of(*op.format);
    const GemmTable* first = nullptr;
    for (const auto& [type, share] : types) {
      const GemmTable* table = table_of(type);
      if (table == nullptr) return std::nullopt;
      if (first == nullptr) first = table;
    }
    ProfileOp made{std::string(name_of(op.op)), std::string(name_of(op.op)), axis, per_layer, {}, Footing::kInside};
    std::vector<SampleGrid::Sample> samples;
    for (const std::int64_t m : first->rows()) {
      double ps = 0;
      for (const auto& [type, share] : types) {
        const SampleGrid::Value value = table_of(type)->at(op.out, op.in, m);
        ps += share * value.ps;
        made.at_best = std::max(made.at_best, value.footing);
      }
      samples.push_back({{m}, round_ps(ps), 0});
    }
    made.times = SampleGrid(1, std::move(samples));
    return made;
  }

 private:
  const GemmTable* table_of(const std::string& type) {
    auto& table = tables_[type];
    if (table == nullptr) table = gemm_table(table_file(profile_.file, "gemm", type));
    return *table ? &**table : nullptr;
  }

  const Profile& profile_;
  std::map<std::string, std::shared_ptr<const std::optional<GemmTable>>> tables_;
};

void add_products(Profile& profile, const ModelSpec& m, const Parallel& p) {
  Products products(profile);
  std::vector<OpWork> ops;
  const auto add = [&](ProfileOp::Axis axis, bool in_layer, std::optional<std::size_t> layer_class) {
    for (const OpWork& op : ops) {
      if (op.out == 0) continue;
      std::optional<ProfileOp> made = products.times(op, axis, in_layer ? op.times : 0);
      if (!made) continue;
      made->layer_class = layer_class;
      profile.ops.push_back(std::move(*made));
    }
    ops.clear();
  };
  const std::vector<LayerClass> classes = layer_classes(m);
  for (std::size_t i = 0; i < classes.size(); ++i) {
    layer_ops(m, p, classes[i], p.data_ranks(), ops);
    add(ProfileOp::Axis::kTokens, true, classes.size() > 1 ? std::optional(i) : std::nullopt);
  }
  head_ops(m, p, p.data_ranks(), ops);
  add(ProfileOp::Axis::kSequences, false, std::nullopt);
}

// The table counts tokens of all ranks, the profile a group's.
void add_experts(Profile& profile, const ModelSpec& m, const Parallel& p) {
  if (!m.is_moe()) return;
  std::string type = types_of(m.expert_weights).begin()->first;
  if (m.quantization == "mxfp4") type = "w4a16_mxfp4";
  const auto table = MeasuredTable::read_if_there(table_file(profile.file, "moe", type));
  if (!table) return;
  const bool is_cut = p.ep == 1;
  const SampleGrid all = table->grid({{"hidden", m.hidden},
                                      {"intermediate", m.moe_intermediate},
                                      {"experts", m.experts},
                                      {"experts_per_token", m.experts_per_token},
                                      {"tp", is_cut ? p.expert_ranks() : 1},
                                      {"ep", p.ep}},
                                     {"tokens"});
  std::vector<SampleGrid::Sample> samples;
  for (SampleGrid::Sample s : all.samples()) {
    s.at[0] = ceil_div(s.at[0], p.data_ranks());
    if (samples.empty() || samples.back().at[0] < s.at[0])
      samples.push_back(s);
    else
      samples.back() = s;
  }
  if (!samples.empty())
    profile.ops.push_back({std::string(name_of(OpId::kMoe)), std::string(name_of(OpId::kMoe)), ProfileOp::Axis::kTokens, 1,
                           SampleGrid(1, std::move(samples)), Footing::kInside});
}

struct HeadTimes {
  SampleGrid attention, shared_call;  // as in Profile
  std::int64_t longest_prompt = 0;
  std::vector<std::string> notes;
};

class HeadTables {
 public:
  explicit HeadTables(const AttentionPrefillShape& heads) : shape_(heads) {}

  // nullopt: not in the tables.
  std::optional<HeadTimes> read(const std::string& decode_file, const std::string& prefill_file) {
    const auto decode = MeasuredTable::read_if_there(decode_file), prefill = MeasuredTable::read_if_there(prefill_file);
    if (!decode || !prefill) return std::nullopt;
    const std::int64_t kv = nearest_kv_heads(*decode, 0), prompt_kv = nearest_kv_heads(*prefill, window_of(*prefill));
    if (kv == 0 || prompt_kv == 0) return std::nullopt;
    const auto key = [&](std::int64_t window, std::int64_t kv_heads) {
      return MeasuredTable::Key{{"window", window}, {"head_dim", shape_.head_dim}, {"kv_heads", kv_heads}};
    };
    measured_window_ = window_of(*prefill);
    rows_ = decode->grid(key(0, kv), {"q_heads", "rows", "context"});
    one_ = prefill->grid(key(measured_window_, prompt_kv), {"q_heads", "tokens"});
    more_ = prefill->grid(key(measured_window_, prompt_kv), {"q_heads", "tokens"}, "more_ns");
    rows_scale_ = static_cast<double>(shape_.kv_heads) / static_cast<double>(kv);
    lengths_ = one_.last_axis_knots(std::array{q_heads(), 0.0});
    std::vector<SampleGrid::Sample> samples = decode_samples();
    const std::vector<SampleGrid::Sample> prompts = prompt_samples();
    samples.insert(samples.end(), prompts.begin(), prompts.end());
    HeadTimes times{SampleGrid(4, std::move(samples)), SampleGrid(1, saved_samples()), lengths_.back(), {}};
    if (kv != shape_.kv_heads)
      times.notes.push_back(fmt::format("attention of {} KV heads is taken from that of {} with {:.3g} times the decode rows",
                                        shape_.kv_heads, kv, rows_scale_));
    if (shape_.window != measured_window_)
      times.notes.push_back(fmt::format("prompts with a window of {} are full attention by their share of query-key pairs", shape_.window));
    return times;
  }

 private:
  [[nodiscard]] double q_heads() const { return static_cast<double>(shape_.q_heads); }

  // The model's, or 0 if not in the table.
  [[nodiscard]] std::int64_t window_of(const MeasuredTable& table) const {
    return table.values("kv_heads", {{"window", shape_.window}, {"head_dim", shape_.head_dim}}).empty() ? 0 : shape_.window;
  }

  // The model's, else the next lower, else the lowest; 0: none of this width.
  [[nodiscard]] std::int64_t nearest_kv_heads(const MeasuredTable& table, std::int64_t window) const {
    const std::vector<std::int64_t> known = table.values("kv_heads", {{"window", window}, {"head_dim", shape_.head_dim}});
    if (known.empty()) return 0;
    const auto above = std::upper_bound(known.begin(), known.end(), shape_.kv_heads);
    return above == known.begin() ? known.front() : *std::prev(above);
  }

  // Work splits over rows and KV heads: doubling either takes equally long.
  [[nodiscard]] double decode_ps(double rows, double context) const {
    return rows_.at(std::array{q_heads() / rows_scale_, rows * rows_scale_, context}).ps;
  }

  [[nodiscard]] std::vector<SampleGrid::Sample> decode_samples() const {
    std::set<std::int64_t> counts;
    for (const SampleGrid::Sample& s : rows_.samples()) counts.insert(s.at[1]);
    std::vector<SampleGrid::Sample> samples;
    for (const std::int64_t n : counts) {
      const double rows = static_cast<double>(n);
      for (const std::int64_t context : rows_.last_axis_knots(std::array{q_heads() / rows_scale_, rows * rows_scale_, 0.0}))
        samples.push_back({{0, 0, n, context}, round_ps(decode_ps(rows, static_cast<double>(context))), 0});
    }
    return samples;
  }

  [[nodiscard]] double pairs(std::int64_t tokens, std::int64_t before, std::int64_t window) const {
    AttentionPrefillShape s = shape_;
    s.new_tokens = tokens;
    s.kv_before = before;
    s.window = window;
    return static_cast<double>(attended_pairs(s));
  }

  // Beyond the longest measured prompt in proportion to query-key pairs.
  [[nodiscard]] double whole_ps(const SampleGrid& grid, std::int64_t tokens) const {
    const std::int64_t own = std::min(tokens, lengths_.back());
    const double ps = grid.at(std::array{q_heads(), static_cast<double>(own)}).ps;
    return own == tokens ? ps : ps * pairs(tokens, 0, measured_window_) / pairs(own, 0, measured_window_);
  }

  // By its share of pairs, at least the part without its past or one row that reads that past.
  [[nodiscard]] double part_ps(std::int64_t tokens, std::int64_t before) const {
    const double share = pairs(tokens, before, shape_.window) / pairs(tokens + before, 0, measured_window_);
    const double alone = whole_ps(one_, tokens) * pairs(tokens, 0, shape_.window) / pairs(tokens, 0, measured_window_);
    if (before == 0) return alone;
    const std::int64_t seen = shape_.window > 0 ? std::min(shape_.window, tokens + before) : tokens + before;
    return std::max({share * whole_ps(one_, tokens + before), alone, decode_ps(1, static_cast<double>(seen))});
  }

  [[nodiscard]] std::vector<SampleGrid::Sample> prompt_samples() const {
    constexpr int kDoublings = 3;  // beyond the longest measured prompt (Profile::longest_prompt)
    std::vector<std::int64_t> tokens = lengths_;
    for (int i = 0; i < kDoublings; ++i) tokens.push_back(2 * tokens.back());
    std::vector<std::int64_t> before{0};
    before.insert(before.end(), tokens.begin(), tokens.end());
    std::vector<SampleGrid::Sample> samples;
    for (const std::int64_t t : tokens)
      for (const std::int64_t b : before) samples.push_back({{t, b, 0, 0}, round_ps(part_ps(t, b)), 0});
    return samples;
  }

  // A further prompt takes more_ns.
  [[nodiscard]] std::vector<SampleGrid::Sample> saved_samples() const {
    std::vector<SampleGrid::Sample> samples;
    for (const std::int64_t t : lengths_) samples.push_back({{t}, round_ps(std::max(0.0, whole_ps(one_, t) - whole_ps(more_, t))), 0});
    return samples;
  }

  AttentionPrefillShape shape_;
  SampleGrid rows_, one_, more_;  // q_heads, rows, context; q_heads, tokens; q_heads, tokens
  std::vector<std::int64_t> lengths_;
  std::int64_t measured_window_ = 0;
  double rows_scale_ = 1;  // model KV heads over the table's
};

void add_heads(Profile& profile, const AttentionPrefillShape& s) {
  static FileMemo<std::optional<HeadTimes>> known;
  const std::string type = s.kv_bytes < 2 ? "fp8" : "bfloat16";
  const std::string decode = table_file(profile.file, "attention_decode", type),
                    prefill = table_file(profile.file, "attention_prefill", type);
  const auto times = known.get(fmt::format("{}\n{} {} {} {}", decode, s.q_heads, s.kv_heads, s.head_dim, s.window), [&](SeenFiles& seen) {
    seen.add(decode);
    seen.add(prefill);
    return HeadTables(s).read(decode, prefill);
  });
  if (!*times) return;
  profile.attention = (*times)->attention;
  profile.shared_call = (*times)->shared_call;
  profile.attention_at_best = Footing::kInterpolated;
  profile.longest_prompt = (*times)->longest_prompt;
  profile.notes.insert(profile.notes.end(), (*times)->notes.begin(), (*times)->notes.end());
}

std::string known_folders(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.is_directory(error)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names.empty() ? "" : fmt::format("; {} has {}", folder.string(), join(names, ", "));
}

bool is_shape_folder(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string().starts_with("gemm_")) return true;
  return false;
}

// Throws InputError with the command that makes it.
std::string shape_tables_folder(Params& choice) {
  const std::string system = choice.text("system", "", "the package's name of the machine, for example h100_sxm");
  const std::string backend = choice.text("backend", "vllm", "engine that was measured: vllm, trtllm or sglang");
  const std::string version = choice.text("version", "", "of the engine");
  const std::string dir =
      choice.text("dir", "", "folder that the conversion wrote; default: results/measured/aisimulate/SYSTEM/BACKEND/VERSION");
  if (choice.is_describing()) return "";
  if (dir.empty() && (system.empty() || version.empty()))
    choice.fail("'aisimulate' needs 'system' and 'version', or 'dir'; '" + std::string(kConvert) + " --list' prints those there are");
  const fs::path by_name = fs::path(kDefaultFolder) / system / backend / version;
  const std::string folder = choice.resolve_file(dir.empty() ? by_name.string() : dir);
  if (is_shape_folder(folder)) return folder;
  const std::string named = fmt::format(" --system {} --backend {} --version {}", system.empty() ? "SYSTEM" : system, backend,
                                        version.empty() ? "VERSION" : version);
  choice.fail(fmt::format("there are no measured tables in {}; this makes them: {}{}{}{}", folder, kConvert, named,
                          dir.empty() ? "" : " --out " + dir, dir.empty() ? known_folders(by_name.parent_path()) : ""));
}

std::string collective_file(const std::string& folder, Collective op) { return fmt::format("{}/{}.csv", folder, collective_name(op)); }

Profile read_shape_profile(const std::string& folder, int tp) {
  Params meta = read_profile_meta(folder);
  UsageLog::note_file(folder + "/meta.yaml");
  meta.choice("tables", {"by_shape"}, 0, "what rows are of");
  Profile p = empty_profile(folder, "aisimulate", tp);
  p.has_small_ops = false;
  p.device = meta.text("device", "", "the GPU as its driver names it");
  p.hardware = meta.text("hardware", "", "name in profiles/hardware");
  const std::string system = meta.text("system", "", "the package's name of the machine");
  const std::string backend = meta.text("backend", "", "engine"), version = meta.text("version", "", "of the engine");
  p.source = meta.text("source", "", "tool and version") + ", " + system + " " + backend + " " + version;
  p.options[backend + "_version"] = version;
  if (meta.has("notes")) p.notes = meta.words("notes", "what the conversion had to decide");
  meta.reject_unread();
  for (const Collective op : kAllCollectives) {
    const std::string file = collective_file(folder, op);
    if (std::error_code error; fs::exists(file, error)) UsageLog::note_file(file);
  }
  read_collective_tables(folder, 0, p.collectives);
  return p;
}

// One rank. Missing tables stay empty, and attention's for latent vectors or states.
void read_tables_of_model(Profile& profile, const ModelSpec& m, const Parallel& p) {
  add_products(profile, m, p);
  add_experts(profile, m, p);
  // K and V per head, equal in all layers.
  if (m.latent.exists() || m.linear.exists() || m.compressed.exists() || m.index.exists() || !m.layer_shapes.empty()) return;
  add_heads(profile, AttentionWork(m, p, profiled_attention(m)).prompt_shape());
}

class AiSimulateFormat final : public ProfileFormat {
 public:
  explicit AiSimulateFormat(Params& /*p*/) {}
  [[nodiscard]] std::string parameters() const override { return "system, backend, version, dir, missing, impossible"; }
  [[nodiscard]] std::string folder_key() const override { return "dir"; }
  [[nodiscard]] std::string read_folder(Params& p) const override { return shape_tables_folder(p); }
  [[nodiscard]] bool is_form_of(const std::string& folder) const override { return is_shape_folder(folder); }
  [[nodiscard]] Profile read(const std::string& folder, int tp) const override {
    static FileMemo<Profile> known;
    return *known.get(fmt::format("{}\n{}", folder, tp), [&](SeenFiles& seen) {
      for (const Collective op : kAllCollectives) seen.add(collective_file(folder, op));
      return read_shape_profile(folder, tp);
    });
  }
  void add_tables_of_model(Profile& profile, const ModelSpec& m, const Parallel& p) const override { read_tables_of_model(profile, m, p); }
  [[nodiscard]] std::string why_not_converted() const override {
    return "'profile convert --format aisimulate' needs Python: call it as ./kvlab, which runs profiles/aisimulate/convert.py";
  }
};

KVLAB_REGISTER(ProfileFormat, AiSimulateFormat, "aisimulate", "tables of the Python package aisimulate", "aisimulate, Apache-2.0");

}  // namespace

}  // namespace kvlab
