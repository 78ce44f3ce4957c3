#include "sim/cost/token_weave.h"

#include <fmt/format.h>

#include <cmath>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/cost/make_cost_model.h"
#include "sim/cost/step_prices.h"
#include "sim/cost/step_sums.h"
#include "sim/cost/step_work.h"

namespace kvlab {

namespace {

struct Half {
  StepShape shape;
  std::vector<PrefillPiece> prefills;
};

// [begin, end) as their share of all totals.
void take_decodes(const StepShape& whole, std::int64_t begin, std::int64_t end, StepShape& part) {
  if (begin == end) return;
  const auto share = [&](auto all) {
    return static_cast<decltype(all)>(share_of(std::int64_t{all}, end, whole.decodes) - share_of(std::int64_t{all}, begin, whole.decodes));
  };
  part.decodes = static_cast<std::int32_t>(end - begin);
  part.decode_kv_tokens = share(whole.decode_kv_tokens);
  part.decode_kv_squares = share(whole.decode_kv_squares);
  part.decode_kv_max = whole.decode_kv_max;
  part.decode_kv_min = whole.decode_kv_min;
  part.decode_full = share(whole.decode_full);
  part.decode_open_max = whole.decode_open_max;
  part.in_window = {share(whole.in_window.kv_tokens), share(whole.in_window.full), whole.in_window.open_max};
}

// After `first` tokens, in the order decode rows, prompts, rows without attention. A cut prompt continues.
void cut(const StepShape& whole, std::int64_t first, std::array<Half, 2>& halves) {
  std::int64_t room = first;
  const auto take = [&room](std::int32_t rows) {
    const auto taken = static_cast<std::int32_t>(std::min<std::int64_t>(rows, room));
    room -= taken;
    return taken;
  };
  for (Half& half : halves) half.shape = {}, half.prefills.clear();
  auto& [one, two] = halves;
  const std::int32_t decodes = take(whole.decodes);
  take_decodes(whole, 0, decodes, one.shape);
  take_decodes(whole, decodes, whole.decodes, two.shape);
  for (const PrefillPiece& piece : whole.prefills) {
    const std::int32_t tokens = take(piece.new_tokens), rest = piece.new_tokens - tokens;
    if (tokens > 0) one.prefills.push_back({tokens, piece.kv_before});
    if (rest > 0) two.prefills.push_back({rest, piece.kv_before + tokens});
  }
  one.shape.idle_rows = take(whole.idle_rows);
  two.shape.idle_rows = whole.idle_rows - one.shape.idle_rows;
  one.shape.padding_rows = take(whole.padding_rows);
  two.shape.padding_rows = whole.padding_rows - one.shape.padding_rows;
  for (Half& half : halves) half.shape.prefills = half.prefills;
}

// Shares of linear time.
struct Shares {
  double feed_forward = 0, norms = 0;
};

class TokenWeave final : public CostModel {
 public:
  TokenWeave(std::unique_ptr<CostModel> plain, const CostSetup& setup)
      : plain_(std::move(plain)), prices_(setup.prices), model_(setup.model), parallel_(setup.parallel), rule_(*setup.overlap) {}

  StepCost step(const StepShape& shape) override {
    const StepCost plain = plain_->step(shape);
    const std::int64_t tokens = shape.tokens() + shape.padding_rows;
    if (tokens < rule_.min_tokens) return plain;
    const TokenSplit split = split_of(tokens);
    if (split.first == 0) return plain;
    StepShape in_layers = shape;
    in_layers.ops = {};
    in_layers.layers = shape.layers == 0 ? num_layers() : shape.layers;
    const StepCost layers = plain_->step(in_layers);
    StepCost woven = weave(in_layers, split);
    if (woven.total >= layers.total) return plain;
    woven.flops = layers.flops;
    woven.bytes = layers.bytes;
    StepCost cost = plain;
    cost.add(layers, -1);
    cost.add(woven);
    return cost;
  }
  DecodeSpan decode_span(const StepShape& shape) override {
    if (shape.tokens() + shape.padding_rows < rule_.min_tokens) return plain_->decode_span(shape);
    return {step(shape), {}, 1};
  }
  void stage_times(const StepShape& shape, std::vector<Picoseconds>& stages) override { stages = {step(shape).total}; }
  [[nodiscard]] Picoseconds host_time(const StepShape& shape) const override { return plain_->host_time(shape); }
  [[nodiscard]] int num_layers() const override { return plain_->num_layers(); }
  [[nodiscard]] AttentionWindows windows() const override { return plain_->windows(); }
  [[nodiscard]] double peak_flops() const override { return plain_->peak_flops(); }
  [[nodiscard]] double peak_bytes_per_s() const override { return plain_->peak_bytes_per_s(); }
  [[nodiscard]] std::string likely_cause() const override { return plain_->likely_cause(); }

 private:
  const TokenSplit& split_of(std::int64_t tokens);
  const Shares& shares_of(std::int64_t tokens);
  StepCost weave(const StepShape& in_layers, const TokenSplit& split);
  HalfTimes add_half(const StepCost& half, const Shares& shares, const TokenSplit& split, double of_attention, StepCost& sum) const;

  std::unique_ptr<CostModel> plain_;
  std::shared_ptr<const StepPrices> prices_;
  ModelSpec model_;
  Parallel parallel_;
  TokenWeaveRule rule_;
  std::unordered_map<std::int64_t, TokenSplit> splits_;
  std::unordered_map<std::int64_t, Shares> shares_;
  std::array<Half, 2> halves_;
};

const TokenSplit& TokenWeave::split_of(std::int64_t tokens) {
  const auto [at, is_new] = splits_.try_emplace(tokens);
  if (!is_new) return at->second;
  std::vector<WovenProduct> products;
  std::vector<OpWork> ops;
  for (const LayerClass& layers : layer_classes(model_)) {
    ops.clear();
    layer_ops(model_, parallel_, layers, tokens, ops);
    for (const OpWork& op : ops)
      if (op.out > 0)
        products.push_back(
            {op.out, static_cast<double>(op.flops) * static_cast<double>(op.times * layers.count), is_feed_forward(name_of(op.op))});
  }
  at->second = split_tokens(rule_, tokens, products);
  return at->second;
}

const Shares& TokenWeave::shares_of(std::int64_t tokens) {
  const auto [at, is_new] = shares_.try_emplace(tokens);
  if (!is_new) return at->second;
  double linear = 0, feed_forward = 0, norms = 0;
  for (const TokenPrice::Layer& layer : prices_->tokens(tokens).layers) {
    const auto count = static_cast<double>(layer.count);
    linear += count * (layer.linear.total() - layer.experts.total());
    feed_forward += count * layer.mlp.total();
    norms += count * layer.norms.total();
  }
  if (linear > 0) at->second = {feed_forward / linear, norms / linear};
  return at->second;
}

// Norms are in the collective's kernel. Measured products include waves, so only the
// roofline's are charged for the split. of_attention: slowdown of attention.
HalfTimes TokenWeave::add_half(const StepCost& half, const Shares& shares, const TokenSplit& split, double of_attention,
                               StepCost& sum) const {
  const double slow = rule_.slowdown();
  const auto waves_at = [](std::size_t footing, double waves) { return static_cast<Footing>(footing) >= Footing::kRoofline ? waves : 1; };
  const auto products = [&](std::size_t f) { return (1 - shares.feed_forward - shares.norms) * waves_at(f, split.attention_waves); };
  const auto feed_forward = [&](std::size_t f) { return shares.feed_forward * waves_at(f, split.feed_forward_waves); };
  const auto add = [&](CostPart part, const auto& times) {
    const ByFooting row = half.times.row(part);
    for (std::size_t f = 0; f < kFootings; ++f)
      if (row[f] != Picoseconds{}) charge(sum, part, round_time(times(f) * row[f].real(), kLongStep), static_cast<Footing>(f));
  };
  add(CostPart::kLinear, [&](std::size_t f) { return of_attention * products(f) + slow * feed_forward(f); });
  add(CostPart::kExperts, [&](std::size_t) { return slow; });
  add(CostPart::kAttention, [&](std::size_t) { return of_attention; });
  HalfTimes times{half.of(CostPart::kAttention).real(), half.of(CostPart::kExperts).real(), half.of(CostPart::kCollective).real()};
  const ByFooting linear = half.times.row(CostPart::kLinear);
  for (std::size_t f = 0; f < kFootings; ++f) {
    times.attention += products(f) * linear[f].real();
    times.feed_forward += feed_forward(f) * linear[f].real();
  }
  times.attention *= slow, times.feed_forward *= slow;
  return times;
}

// Layers only. Collectives count exposed time; kinds of layers are averaged.
StepCost TokenWeave::weave(const StepShape& in_layers, const TokenSplit& split) {
  cut(in_layers, split.first, halves_);
  const double layers = in_layers.layers, slow = rule_.slowdown();
  StepCost sum;
  ByFooting collectives{};
  std::array<HalfTimes, 2> times;
  for (std::size_t h = 0; h < 2; ++h) {
    StepShape& shape = halves_[h].shape;
    shape.layers = in_layers.layers;
    const StepCost half = plain_->step(shape);
    const double of_attention = h == 0 ? slow - (slow - 1) / layers : slow;  // the first overlaps no collective
    times[h] = add_half(half, shares_of(shape.tokens() + shape.padding_rows), split, of_attention, sum);
    const ByFooting row = half.times.row(CostPart::kCollective);
    for (std::size_t f = 0; f < kFootings; ++f) collectives[f] += row[f];
  }
  const double all = times[0].collectives + times[1].collectives;
  const double exposed = all > 0 ? exposed_ps(times, layers) / all : 0;
  for (std::size_t f = 0; f < kFootings; ++f)
    if (collectives[f] != Picoseconds{})
      charge(sum, CostPart::kCollective, round_time(exposed * collectives[f].real(), kLongStep), static_cast<Footing>(f));
  return sum;
}

}  // namespace

std::optional<TokenWeaveRule> read_overlap(Params& parallel, const CostSetup& setup) {
  auto [name, own] = parallel.named("overlap", "none",
                                    "what runs beside all-reduces: none, or {token_weave: {min_tokens, comm_sms, tile_tokens, "
                                    "tile_columns, wave_aware}}");
  if (name == "none") {
    own.reject_unread();
    return std::nullopt;
  }
  const std::vector<std::string> known{"none", "token_weave"};
  if (name != known[1]) parallel.fail_at("overlap", "unknown overlap '" + name + "'" + suggestion(name, known));
  constexpr std::int64_t kMostTokens = 1 << 24, kMostSms = 1 << 16;
  TokenWeaveRule rule;
  rule.min_tokens = own.optional<std::int64_t>("min_tokens", rule.min_tokens, 2, kMostTokens, "of a step that may be split");
  rule.comm_sms = own.optional<std::int64_t>("comm_sms", rule.comm_sms, 0, kMostSms, "SMs of the kernel that sums and normalizes");
  rule.tile_tokens = own.optional<std::int64_t>("tile_tokens", rule.tile_tokens, 1, kMostTokens, "rows of a product's tile");
  rule.tile_columns = own.optional<std::int64_t>("tile_columns", rule.tile_columns, 1, kMostTokens, "columns of a product's tile");
  rule.wave_aware = own.flag("wave_aware", rule.wave_aware, "split where it adds the fewest waves; false: in the middle");
  own.reject_unread();
  const Parallel& p = setup.parallel;
  if (p.tp == 1) parallel.fail_at("overlap", "'overlap' hides the all-reduces of tensor parallelism, and tp = 1 has none: raise 'tp'");
  if (p.pp > 1 || p.dp > 1 || p.data_ranks() > 1)
    parallel.fail_at("overlap", "'overlap' is of tensor parallelism alone: leave out 'pp', 'dp' and an 'ep' above 'tp'");
  rule.sms = setup.hardware.sms;
  if (rule.sms == 0)
    parallel.fail_at("overlap", fmt::format("token_weave needs the number of SMs of {}: add 'sms: NUMBER' to {}", setup.hardware.name,
                                            setup.hardware.file));
  if (rule.comm_sms >= rule.sms)
    own.fail_at("comm_sms",
                fmt::format("'comm_sms' = {} leaves none of the {} SMs of {} to compute", rule.comm_sms, rule.sms, setup.hardware.name));
  return rule;
}

std::unique_ptr<CostModel> make_token_weave(std::unique_ptr<CostModel> plain, const CostSetup& setup) {
  return std::make_unique<TokenWeave>(std::move(plain), setup);
}

}  // namespace kvlab
