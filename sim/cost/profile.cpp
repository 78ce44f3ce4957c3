#include "sim/cost/profile.h"

#include <fmt/format.h>

#include <bit>

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
  h.number(profile.tp);
  h.number(profile.host_time);
  for (const ProfileOp& op : profile.ops) {
    h.text(op.name);
    h.text(op.covers);
    h.number(op.per_layer);
    h.grid(op.times);
  }
  h.grid(profile.attention);
  h.grid(profile.moe);
  h.grid(profile.all_reduce);
  if (profile.skew) h.skew(*profile.skew);
  return h.hex();
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
