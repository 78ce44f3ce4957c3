#include "sim/cost/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "base/hash.h"

namespace kvlab {

namespace {

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
      number(s.time);
    }
  }
  void skew(const SkewTable& skew) {
    for (std::size_t i = 0; i < 4; ++i) {
      for (const double edge : skew.axis(i).edges) real(edge);
    }
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

}  // namespace

std::string profile_hash(const Profile& profile) {
  Hasher h;
  const auto is_sum = [&](const CollectiveTable& t) { return t.op == Collective::kAllReduce && t.ranks == profile.tp; };
  h.number(profile.tp);
  h.number(profile.host_time);
  for (const ProfileOp& op : profile.ops) {
    h.text(op.name);
    h.text(op.covers);
    h.number(op.per_layer);
    h.grid(op.times);
    if (op.at_best != Footing::kInside) h.number(static_cast<std::int64_t>(op.at_best));
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
    h.number(s.time);
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

const std::vector<KnownOp>& known_ops() {
  using Axis = ProfileOp::Axis;
  static const std::vector<KnownOp> ops{
      {"embedding", Axis::kTokens, 0},       {"layernorm", Axis::kTokens, 2},  {"qkv_proj", Axis::kTokens, 1},
      {"qk_norm", Axis::kTokens, 1},         {"rotary_emb", Axis::kTokens, 1}, {"o_proj", Axis::kTokens, 1},
      {"gate_up_proj", Axis::kTokens, 1},    {"act_fn", Axis::kTokens, 1},     {"down_proj", Axis::kTokens, 1},
      {"final_layernorm", Axis::kTokens, 0}, {"lm_head", Axis::kSequences, 0}, {"sampler", Axis::kSequences, 0},
  };
  return ops;
}

}  // namespace kvlab
