#include "sim/cost/roofline_prices.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/ceil_div.h"
#include "sim/cost/collectives.h"

namespace kvlab {

namespace {

// PCIe 4.0 x16, for cards without a rate.
constexpr double kHostLinkBytesPerS = 25e9;

}  // namespace

RooflinePrices::RooflinePrices(ModelSpec model, HardwareSpec hardware, Parallel parallel, std::shared_ptr<const Collectives> collectives)
    : model_(std::move(model)),
      hardware_(std::move(hardware)),
      parallel_(parallel),
      collectives_(std::move(collectives)),
      layers_(layer_classes(model_)),
      attention_(attention_classes(model_)),
      ps_per_flop_(kPsPerSecond / hardware_.reached_flops(model_.dtype)),
      ps_per_byte_(kPsPerSecond / (hardware_.memory_bytes_per_s * hardware_.bandwidth_frac)) {
  for (std::size_t t = 0; t < kNumDtypes; ++t) ps_per_flop_of_[t] = kPsPerSecond / hardware_.reached_flops(static_cast<Dtype>(t));
  for (const AttentionClass& layers : attention_) works_.emplace_back(model_, parallel_, layers);
}

double RooflinePrices::body_ps(double flops, double bytes, const WeightFormat* format) const {
  double ps_per_flop = format == nullptr ? ps_per_flop_ : 0;
  for (std::size_t t = 0; format != nullptr && t < kNumDtypes; ++t) ps_per_flop += format->share[t] * ps_per_flop_of_[t];
  return std::max(flops * ps_per_flop, bytes * ps_per_byte_);
}

double RooflinePrices::floor_ps(const WeightFormat* format) const {
  if (format == nullptr) return launch_ps();
  double ns = 0;
  for (std::size_t t = 0; t < kNumDtypes; ++t) ns += format->share[t] * hardware_.linear_floor(static_cast<Dtype>(t));
  return ns * 1e3;
}

double RooflinePrices::experts_ps(const OpWork& op) const {
  const bool has_mxfp4 = model_.quantization == "mxfp4" && op.format->bits < 8;
  const bool is_mxfp4 = hardware_.fp4_flops > 0 && model_.quantization == "mxfp4";  // multiplied by fp8 activations
  const HardwareSpec::Experts& reached = hardware_.experts_in(*op.format, has_mxfp4);
  double seconds = 0;
  for (std::size_t t = 0; t < kNumDtypes; ++t)
    seconds += static_cast<double>(op.flops) * op.format->share[t] / hardware_.peak_flops(is_mxfp4 ? Dtype::kFp8 : static_cast<Dtype>(t));
  if (reached.passes > 0 && op.pairs > 0) return grouped_ps(op, reached, seconds / reached.flops_frac);
  return std::max(seconds / reached.flops_frac * kPsPerSecond, static_cast<double>(op.bytes) * ps_per_byte_) + reached.floor_ns * 1e3;
}

// Small tiles read an expert's weights before its products, so times add.
double RooflinePrices::grouped_ps(const OpWork& op, const HardwareSpec::Experts& reached, double product_seconds) const {
  const double pairs = static_cast<double>(op.pairs), hidden = static_cast<double>(model_.hidden);
  const double width = static_cast<double>(op.flops) / (2 * pairs) / (model_.gated_mlp ? 3 : 2) / hidden;
  const auto value = static_cast<double>(model_.activation_bytes());
  const double weights = static_cast<double>(op.bytes) - 2 * pairs * (hidden + width) * value;
  const double weight_seconds = weights / (hardware_.memory_bytes_per_s * reached.bandwidth_frac);
  return (product_seconds + weight_seconds) * kPsPerSecond + reached.passes * pairs * hidden * value * ps_per_byte_ +
         reached.floor_ns * 1e3;
}

double RooflinePrices::op_ps(const OpWork& op) const {
  if (op.op == OpId::kMoe) return experts_ps(op);
  return body_ps(static_cast<double>(op.flops), static_cast<double>(op.bytes), op.format) + floor_ps(op.format);
}

SampleGrid::Value RooflinePrices::collective(Collective op, int ranks, std::int64_t tokens) const {
  return collectives_->time(op, message_bytes(model_, parallel_, op, tokens), ranks);
}

void RooflinePrices::add_collectives(std::int64_t tokens, TokenPrice& price) const {
  const SampleGrid::Value sum = collective(Collective::kAllReduce, parallel_.tp, tokens);
  for (std::size_t i = 0; i < layers_.size(); ++i) price.layers[i].collective.add(layers_[i].parts() * sum.ps, sum.footing);
  price.once_collective.add(sum.ps, sum.footing);  // embedding, split by vocabulary
  // Ranks that share a scheduler's tokens exchange them; else an all-reduce includes the experts' sums.
  if (!model_.is_moe() || parallel_.data_ranks() == 1) return;
  const SampleGrid::Value swap = collective(Collective::kAllToAll, parallel_.ep, tokens);
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (layers_[i].has_experts) price.layers[i].collective.add(2 * swap.ps, swap.footing);  // dispatch and combine
}

TokenPrice RooflinePrices::tokens(std::int64_t tokens) const {
  TokenPrice price;
  std::vector<OpWork> ops;
  for (const LayerClass& layers : layers_) {
    TokenPrice::Layer& layer = price.layers.emplace_back();
    layer.count = layers.count;
    ops.clear();
    layer_ops(model_, parallel_, layers, tokens, ops);
    for (const OpWork& op : ops) {
      const double ps = op.times * op_ps(op);
      layer.linear.add(ps, Footing::kRoofline);
      if (is_feed_forward(name_of(op.op))) (layers.has_experts ? layer.experts : layer.mlp).add(ps, Footing::kRoofline);
      if (op.op == OpId::kLayernorm) layer.norms.add(ps, Footing::kRoofline);
    }
  }
  ops.clear();
  step_ops(model_, parallel_, tokens, ops);
  for (const OpWork& op : ops) price.once.add(op.times * op_ps(op), Footing::kRoofline);
  add_collectives(tokens, price);
  return price;
}

Price RooflinePrices::experts(std::int64_t tokens) const {
  return price_of(op_ps(experts_op(model_, parallel_, tokens)), Footing::kRoofline);
}

Price RooflinePrices::exchange(const GroupTokens& group) const {
  const double bytes = exchange_message_bytes(model_, parallel_, group);
  Price price;
  for (const CollectiveUse& use : exchange_collectives(parallel_)) {
    const int stride = use.op == Collective::kAllToAll ? 1 : parallel_.tp;
    const SampleGrid::Value value = collectives_->time(use.op, bytes, use.ranks, stride);
    price.add(value.ps, value.footing);
  }
  return price;
}

Price RooflinePrices::head(std::int64_t rows) const {
  std::vector<OpWork> ops;
  head_ops(model_, parallel_, rows, ops);
  Price price;
  for (const OpWork& op : ops) price.add(op.times * op_ps(op), Footing::kRoofline);
  return price;
}

double RooflinePrices::prefill_ps(const AttentionWork& work, const PrefillPiece& piece) const {
  const Work w = work.prefill(piece);
  return body_ps(static_cast<double>(w.flops), static_cast<double>(w.bytes));
}

// Linear in kv_tokens.
double RooflinePrices::decode_ps(const AttentionWork& work, std::int64_t rows, double kv_tokens) const {
  const auto below = static_cast<std::int64_t>(std::floor(kv_tokens));
  const double rest = kv_tokens - static_cast<double>(below);
  const Work a = work.decode(rows, below);
  if (rest == 0) return body_ps(static_cast<double>(a.flops), static_cast<double>(a.bytes));
  const Work b = work.decode(rows, below + 1);
  const auto between = [&](std::int64_t x, std::int64_t y) { return static_cast<double>(x) + rest * static_cast<double>(y - x); };
  return body_ps(between(a.flops, b.flops), between(a.bytes, b.bytes));
}

double RooflinePrices::decode_ops_ps(const AttentionWork& work, std::int64_t rows) const {
  double ps = 0;
  if (!work.has_ops()) return ps;
  for (const OpWork& op : work.decode_ops(rows)) ps += op_ps(op);
  return ps;
}

// Knots: 0, and the crossover between memory and compute.
DecodeCurve RooflinePrices::decode_attention(std::size_t attention_class, std::int64_t rows) const {
  const AttentionWork& work = works_[attention_class];
  const double ranks = parallel_.data_ranks();
  const auto own_rows = static_cast<std::int64_t>(std::ceil(static_cast<double>(rows) / ranks));
  const double layers = static_cast<double>(attention_[attention_class].count);
  const Work none = work.decode(own_rows, 0), one = work.decode(own_rows, 1);
  const double flop_slope = static_cast<double>(one.flops - none.flops) * ps_per_flop_;
  const double byte_slope = static_cast<double>(one.bytes - none.bytes) * ps_per_byte_;
  const double gap = static_cast<double>(none.bytes) * ps_per_byte_ - static_cast<double>(none.flops) * ps_per_flop_;
  std::vector<double> at{0.0};
  const double crossing = flop_slope == byte_slope ? -1.0 : gap / (flop_slope - byte_slope);
  if (crossing > 0) at.push_back(crossing);
  const double others = attention_floor_ps() + decode_ops_ps(work, own_rows);
  DecodeCurve curve;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double here = decode_ps(work, own_rows, at[i]);
    const double step = i + 1 < at.size() ? at[i + 1] - at[i] : 1.0;
    const double slope = (decode_ps(work, own_rows, at[i] + step) - here) / step;
    curve.knots.push_back({at[i] * ranks, layers * (here + others), layers * slope / ranks, Footing::kRoofline});
  }
  return curve;
}

// One kernel for the ragged batch: bodies add, one launch; two for latent attention. Data parallel attention has each prompt on one rank.
double RooflinePrices::mixed_layer_ps(std::size_t attention_class, const StepShape& shape) const {
  const AttentionWork& work = works_[attention_class];
  double sum = 0, longest = 0;
  std::int64_t prompt_tokens = 0;
  for (const PrefillPiece& piece : shape.prefills) {
    const double ps = prefill_ps(work, piece);
    sum += ps;
    longest = std::max(longest, ps);
    prompt_tokens += work.op_tokens(piece);
  }
  const int ranks = parallel_.data_ranks();
  double ps = std::max(longest, sum / ranks) + attention_floor_ps();
  if (work.has_ops()) ps += op_ps(work.prefill_op(ceil_div(prompt_tokens, ranks)));
  if (shape.decodes == 0) return ps;
  const std::int64_t rows = ceil_div(shape.decodes, ranks);
  const std::int64_t kv_tokens = kv_tokens_in(attention_[attention_class], model_, shape);
  ps += decode_ps(work, rows, static_cast<double>(kv_tokens) / ranks);
  return work.has_ops() ? ps + attention_floor_ps() + decode_ops_ps(work, rows) : ps;
}

Price RooflinePrices::mixed_attention(const StepShape& shape) const {
  double ps = 0;
  for (std::size_t c = 0; c < attention_.size(); ++c) ps += static_cast<double>(attention_[c].count) * mixed_layer_ps(c, shape);
  return price_of(ps, Footing::kRoofline);
}

Price RooflinePrices::policy(const PolicyOp& op) const {
  const double share = policy_share(model_, parallel_), launches = static_cast<double>(op.launches);
  const double body = body_ps(static_cast<double>(op.flops) * share, static_cast<double>(op.bytes) * share);
  if (!op.is_transfer()) return price_of(body + launches * launch_ps(), Footing::kRoofline);
  // Each rank fetches its heads, and has its share of disks.
  const double link_rate = hardware_.pcie_bytes_per_s > 0 ? hardware_.pcie_bytes_per_s : kHostLinkBytesPerS;
  const double rate = op.from_disk ? hardware_.disk_read_bytes_per_s : link_rate;
  const double call_ps = (op.from_disk ? hardware_.disk_call_ns : hardware_.cpu_call_ns) * 1e3;
  return price_of(static_cast<double>(op.bytes) * share / rate * kPsPerSecond + launches * call_ps, Footing::kDatasheet);
}

Price RooflinePrices::send(std::int64_t tokens) const {
  const SampleGrid::Value value =
      collectives_->time(Collective::kP2p, message_bytes(model_, parallel_, Collective::kP2p, tokens), 2, parallel_.gpus_of_rank() / 2);
  return price_of(value.ps, value.footing);
}

}  // namespace kvlab
