#include "sim/cost/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <iterator>
#include <utility>

#include "base/hash.h"
#include "base/text.h"
#include "sim/cost/operations.h"

namespace kvlab {

namespace {

constexpr int kEvenBucket = 0;  // equal lengths: no correction

bool is_even(const DecodeBatch& batch) { return batch.rows < 2 || batch.kv_max <= batch.kv_min; }

class Hasher {
 public:
  void number(std::int64_t value) { state_ = hash_combine(state_, static_cast<std::uint64_t>(value)); }
  void real(double value) { state_ = hash_combine(state_, std::bit_cast<std::uint64_t>(value)); }
  void text(const std::string& value) {
    number(static_cast<std::int64_t>(value.size()));
    for (const char c : value) number(static_cast<unsigned char>(c));
  }
  void grid(const SampleGrid& grid) {
    number(static_cast<std::int64_t>(grid.samples().size()));
    for (const SampleGrid::Sample& s : grid.samples()) {
      for (const std::int64_t x : s.at) number(x);
      number(s.time.count());
    }
  }
  void skew(const SkewTable& skew) {
    for (std::size_t i = 0; i < 4; ++i)
      for (const double edge : skew.axis(i).edges) real(edge);
    real(skew.alpha_default());
    for (const SkewTable::Entry& e : skew.entries()) {
      for (const std::size_t bin : {e.rows, e.skew, e.longest, e.before}) number(static_cast<std::int64_t>(bin));
      number(e.prompt_tokens);
      real(e.alpha);
    }
  }
  [[nodiscard]] std::string hex() const { return fmt::format("{:016x}", state_); }

 private:
  std::uint64_t state_ = 1;
};

struct FamilyTable {
  std::string_view name;
  std::vector<std::string> columns;
};

const FamilyTable& table_in(OpFamily family) {
  static const FamilyTable calls{"policy", {"rows", "tokens", "outputs", "bytes", "flops"}};
  static const std::vector<FamilyTable> all{{"", {"tokens"}},
                                            {"", {"sequences"}},
                                            {"attention", {"prefill_chunk", "kv_prefill", "n_decode", "kv_decode"}},
                                            {"moe", {"tokens", "activated_experts"}},
                                            {"all_reduce", {"ranks", "bytes"}},
                                            calls,
                                            calls};
  return all.at(static_cast<std::size_t>(family));
}

}  // namespace

std::size_t SkewAxis::bin(double value) const {
  const auto inner = edges.begin() + 1, last = edges.end() - 1;  // outer edges clamp
  return static_cast<std::size_t>(std::lower_bound(inner, last, value) - inner);
}

SkewTable::SkewTable(std::vector<SkewAxis> axes, double alpha_default, std::vector<Entry> entries)
    : axes_(std::move(axes)), alpha_default_(alpha_default), entries_(std::move(entries)) {
  for (const Entry& e : entries_) prompt_tokens_.push_back(e.prompt_tokens);
  std::sort(prompt_tokens_.begin(), prompt_tokens_.end());
  prompt_tokens_.erase(std::unique(prompt_tokens_.begin(), prompt_tokens_.end()), prompt_tokens_.end());
  std::size_t cells = 1;
  for (const SkewAxis& axis : axes_) cells *= axis.labels.size();
  alpha_.assign(prompt_tokens_.size(), std::vector<double>(cells, std::clamp(alpha_default_, 0.0, 1.0)));
  for (const Entry& e : entries_) {
    const auto at =
        static_cast<std::size_t>(std::lower_bound(prompt_tokens_.begin(), prompt_tokens_.end(), e.prompt_tokens) - prompt_tokens_.begin());
    const std::size_t i =
        ((e.rows * axes_[1].labels.size() + e.skew) * axes_[2].labels.size() + e.longest) * axes_[3].labels.size() + e.before;
    alpha_[at][i] = std::clamp(e.alpha, 0.0, 1.0);
  }
}

std::size_t SkewTable::cell(const DecodeBatch& batch, std::size_t before_bin) const {
  // Profiles have two lengths with a share `skew` of long rows: var / (var + (max - mean)^2) for this mean, maximum and variance. Integers
  // keep an evenly growing batch's bucket.
  const Int128 variance = Int128{batch.rows} * batch.kv_squares - Int128{batch.kv_tokens} * batch.kv_tokens;
  const Int128 above = Int128{batch.rows} * batch.kv_max - batch.kv_tokens;
  const double skew = variance <= 0 ? 0 : static_cast<double>(variance) / static_cast<double>(variance + above * above);
  std::size_t i = axes_[0].bin(static_cast<double>(batch.rows));
  i = i * axes_[1].labels.size() + axes_[1].bin(std::clamp(skew, 0.0, 1.0));
  i = i * axes_[2].labels.size() + axes_[2].bin(static_cast<double>(batch.kv_max + 1));  // includes the new token
  return i * axes_[3].labels.size() + before_bin;
}

int SkewTable::bucket(const DecodeBatch& batch) const {
  if (is_even(batch)) return kEvenBucket;
  return kEvenBucket + 1 + static_cast<int>(cell(batch, axes_[3].bin(0)));
}

double SkewTable::alpha(int bucket) const {
  if (bucket == kEvenBucket) return 0;
  if (prompt_tokens_.empty() || prompt_tokens_.front() != 0) return std::clamp(alpha_default_, 0.0, 1.0);
  return alpha_.front()[static_cast<std::size_t>(bucket - kEvenBucket - 1)];
}

double SkewTable::mixed_alpha(const DecodeBatch& batch, std::int64_t prompt_tokens, double before) const {
  if (is_even(batch)) return 0;
  const auto at = std::lower_bound(prompt_tokens_.begin(), prompt_tokens_.end(), prompt_tokens);
  if (at == prompt_tokens_.end() || *at != prompt_tokens) return std::clamp(alpha_default_, 0.0, 1.0);
  return alpha_[static_cast<std::size_t>(at - prompt_tokens_.begin())][cell(batch, axes_[3].bin(before))];
}

std::string profile_hash(const Profile& profile) {
  Hasher h;
  const auto is_sum = [&](const CollectiveTable& t) { return t.op == Collective::kAllReduce && t.ranks == profile.tp; };
  h.number(profile.tp);
  h.number(profile.host_time.count());
  for (const ProfileOp& op : profile.ops) {
    h.text(op.name);
    h.text(op.covers);
    h.number(op.per_layer);
    h.grid(op.times);
    if (op.at_best != Footing::kInside) h.number(static_cast<std::int64_t>(op.at_best));
    if (op.layer_class) h.number(static_cast<std::int64_t>(*op.layer_class));
  }
  h.grid(profile.attention);
  h.grid(profile.moe);
  const bool sums = std::any_of(profile.collectives.begin(), profile.collectives.end(), is_sum);
  if (!sums) h.number(0);
  for (const CollectiveTable& t : profile.collectives) {
    if (!is_sum(t)) h.text(fmt::format("{} over {}", collective_name(t.op), t.ranks));
    h.grid(t.points);
  }
  if (!profile.shared_call.empty()) h.grid(profile.shared_call);
  if (profile.longest_prompt != 0) h.number(profile.longest_prompt);
  if (profile.skew) h.skew(*profile.skew);
  if (!profile.attention_has_append) h.text("append_kv apart");
  if (profile.kv_reads == KvReads::kDecoded) h.text("decoded KV");
  if (profile.kv_reads == KvReads::kUnpacked) h.text("unpacked KV");
  if (profile.tile_rows != Profile{}.tile_rows) h.number(profile.tile_rows);
  for (const PolicySample& s : profile.policy.samples()) {
    h.text(s.op);
    h.number(s.bytes);
    h.number(s.time.count());
    h.number(static_cast<std::int64_t>(profile.policy.scale(s.op)));
  }
  return h.hex();
}

SampleGrid::Value time_of_op(const ProfileOp& op, std::int64_t count, int tile_rows) {
  std::int64_t at = count;
  const std::vector<SampleGrid::Sample>& samples = op.times.samples();
  const auto above =
      std::lower_bound(samples.begin(), samples.end(), count, [](const SampleGrid::Sample& s, std::int64_t n) { return s.at[0] < n; });
  if (op.axis == ProfileOp::Axis::kTokens && tile_rows > 1 && above != samples.begin() && above != samples.end() &&
      above->at[0] - std::prev(above)->at[0] <= tile_rows)
    at = above->at[0];
  const auto point = static_cast<double>(at);
  SampleGrid::Value value = op.times.at(std::span(&point, 1));
  value.footing = std::max({value.footing, op.at_best, at > count ? Footing::kInterpolated : Footing::kInside});
  return value;
}

SampleGrid checked_grid(std::size_t axes, std::vector<SampleGrid::Sample> samples, const std::vector<std::string>& places) {
  for (std::size_t i = 1; i < samples.size(); ++i) {
    if (samples[i - 1].at < samples[i].at) continue;
    const bool is_repeat = samples[i - 1].at == samples[i].at;
    throw InputError(places[i] + (is_repeat ? ": the same point as " : ": out of order, it belongs before ") + places[i - 1]);
  }
  return {axes, std::move(samples)};
}

SampleGrid Profile::*grid_of(OpFamily family) {
  if (family == OpFamily::kAttention) return &Profile::attention;
  if (family == OpFamily::kMoe) return &Profile::moe;
  throw InternalError("a profile has a table for each operation of this family");
}

bool is_part_of_another(const Profile& profile, OpId op) {
  const std::optional<OpFamily> whole = operation(op).part_of;
  return whole && (*whole != OpFamily::kAttention || profile.attention_has_append);
}

bool has_times(const Profile& profile, OpId op) {
  const Operation& o = operation(op);
  if (std::any_of(profile.ops.begin(), profile.ops.end(), [&](const ProfileOp& p) { return p.covers == o.name; })) return true;
  if (is_part_of_another(profile, op)) return !(profile.*grid_of(*o.part_of)).empty();
  if (o.family == OpFamily::kTokens || o.family == OpFamily::kSequences) return false;
  if (o.family == OpFamily::kPolicy || o.family == OpFamily::kCopy) return profile.policy.has(o.name);
  if (o.family != OpFamily::kCollective) return !(profile.*grid_of(o.family)).empty();
  return std::any_of(profile.collectives.begin(), profile.collectives.end(),
                     [&](const CollectiveTable& t) { return collective_name(t.op) == o.name; });
}

Params read_profile_meta(const std::string& folder) {
  Params meta(load_config(folder + "/meta.yaml"), std::make_shared<Choices>(), "profile '" + folder + "'");
  meta.required<int>("schema_version", kProfileSchema, kProfileSchema, "version of this format");
  meta.choice("time_unit", {"ns"}, 0, "unit of every time_ns column");
  return meta;
}

std::string ProfileFormat::read_folder(Params& p) const { return p.resolve_file(p.text("path", "folder of the profile")); }

std::unique_ptr<ProfileFormat> make_profile_format(const std::string& name) {
  Params none = Params::empty("profile format");
  return Registry<ProfileFormat>::table_view().at(name).make(none);
}

std::vector<std::string> profile_format_names() {
  std::vector<std::string> names = Registry<ProfileFormat>::names();
  std::erase_if(names, [](const std::string& name) { return !make_profile_format(name)->has_tables(); });
  std::stable_partition(names.begin(), names.end(), [](const std::string& name) { return name == kOwnProfileFormat; });
  return names;
}

bool ProfileFormat::is_form_of(const std::string& folder) const {
  const std::string file = mark().first;
  const auto is_there = [&](const std::string& path) {
    std::error_code error;
    return std::filesystem::exists(folder + "/" + path, error);
  };
  if (!has_degrees()) return !file.empty() && is_there(file);
  const std::vector<int> degrees = profile_tp_degrees(folder);
  return std::any_of(degrees.begin(), degrees.end(),
                     [&](int tp) { return is_there("tp" + std::to_string(tp) + file.substr(file.find('/'))); });
}

std::string profile_format_of(const std::string& folder) {
  std::vector<std::string> marks;
  for (const std::string& name : profile_format_names()) {
    const std::unique_ptr<ProfileFormat> format = make_profile_format(name);
    if (format->is_form_of(folder)) return name;
    const auto [file, rest] = format->mark();
    if (!file.empty()) marks.push_back(file + (marks.empty() ? " would make it " : " ") + rest);
  }
  throw InputError(folder + ": holds no profile: " + join(marks, ", "));
}

const std::vector<std::string>& columns_of(OpFamily family) { return table_in(family).columns; }

std::string_view table_of(OpFamily family) { return table_in(family).name; }

}  // namespace kvlab
