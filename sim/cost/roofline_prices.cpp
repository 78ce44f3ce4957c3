#include "sim/cost/roofline_prices.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/ceil_div.h"
#include "kernels/model/all_reduce/all_reduce.h"
#include "kernels/model/all_to_all/all_to_all.h"
#include "sim/cost/expert_exchange.h"

namespace kvlab {

namespace {

// Of a link to host memory whose card says nothing: PCIe 4.0 x16, and one copy call; the defaults of `memory`.
constexpr double kHostLinkBytesPerS = 25e9, kHostCallPs = 10e6;

Price extrapolated(double ps) {
  Price price;
  price.add(ps, Footing::kExtrapolated);
  return price;
}

}  // namespace

RooflinePrices::RooflinePrices(ModelSpec model, HardwareSpec hardware, Parallel parallel)
    : model_(std::move(model)),
      hardware_(std::move(hardware)),
      parallel_(parallel),
      work_(model_, parallel_),
      ps_per_flop_(kPsPerSecond / (hardware_.peak_flops(model_.dtype) * hardware_.flops_frac)),
      ps_per_byte_(kPsPerSecond / (hardware_.memory_bytes_per_s * hardware_.bandwidth_frac)) {
  for (std::size_t t = 0; t < kNumDtypes; ++t)
    ps_per_flop_of_[t] = kPsPerSecond / (hardware_.peak_flops(static_cast<Dtype>(t)) * hardware_.flops_frac);
}

double RooflinePrices::body_ps(double flops, double bytes, const WeightFormat* format) const {
  double ps_per_flop = format == nullptr ? ps_per_flop_ : 0;
  for (std::size_t t = 0; format != nullptr && t < kNumDtypes; ++t) ps_per_flop += format->share[t] * ps_per_flop_of_[t];
  return std::max(flops * ps_per_flop, bytes * ps_per_byte_);
}

double RooflinePrices::op_ps(const OpWork& op) const {
  return body_ps(static_cast<double>(op.flops), static_cast<double>(op.bytes), op.format) + launch_ps();
}

double RooflinePrices::link_ps(std::int64_t bytes, std::int64_t hops) const {
  return static_cast<double>(bytes) / hardware_.link_bytes_per_s * kPsPerSecond +
         static_cast<double>(hops) * hardware_.link_latency_ns * 1e3;
}

double RooflinePrices::layer_all_reduce_ps(std::int64_t tokens) const {
  if (parallel_.tp == 1) return 0;
  const std::int64_t own = ceil_div(tokens, parallel_.data_ranks());
  const AllReduceShape s{own * model_.hidden * model_.activation_bytes(), parallel_.tp, model_.activation_bytes()};
  return link_ps(bytes(s), hops(s));
}

double RooflinePrices::layer_all_to_all_ps(std::int64_t tokens) const {
  if (parallel_.ep == 1 || parallel_.dp > 1 || !model_.is_moe()) return 0;
  const AllToAllShape s{ceil_div(tokens, parallel_.ep), model_.hidden, model_.experts_per_token, parallel_.ep, model_.activation_bytes()};
  return link_ps(bytes(s), hops(s));
}

TokenPrice RooflinePrices::tokens(std::int64_t tokens) const {
  TokenPrice price;
  std::vector<OpWork> ops;
  layer_ops(model_, parallel_, tokens, ops);
  for (const OpWork& op : ops) price.layer.add(op.share * op.times * op_ps(op), Footing::kExtrapolated);
  ops.clear();
  step_ops(model_, parallel_, tokens, ops);
  for (const OpWork& op : ops) price.once.add(op.times * op_ps(op), Footing::kExtrapolated);
  price.layer_collective = extrapolated(2 * layer_all_reduce_ps(tokens) + 2 * model_.expert_share() * layer_all_to_all_ps(tokens));
  price.once_collective = extrapolated(layer_all_reduce_ps(tokens));  // of the embedding, whose table is cut by vocabulary
  return price;
}

Price RooflinePrices::experts(std::int64_t tokens) const {
  return extrapolated(model_.expert_share() * op_ps(experts_op(model_, parallel_, tokens)));
}

// A direct exchange: each rank waits for all others once.
Price RooflinePrices::exchange(const GroupTokens& group) const {
  const ExchangeVolume volume = exchange_volume(model_, parallel_, group);
  return extrapolated(2 * model_.expert_share() * link_ps(volume.bytes, volume.ranks - 1));
}

Price RooflinePrices::head(std::int64_t rows) const {
  std::vector<OpWork> ops;
  head_ops(model_, parallel_, rows, ops);
  Price price;
  for (const OpWork& op : ops) price.add(op.times * op_ps(op), Footing::kExtrapolated);
  return price;
}

double RooflinePrices::prefill_ps(const PrefillPiece& piece) const {
  const Work w = work_.prefill(piece);
  return body_ps(static_cast<double>(w.flops), static_cast<double>(w.bytes));
}

// Work is linear in kv_tokens, so its real-valued form follows from its values at whole numbers.
double RooflinePrices::decode_ps(std::int64_t rows, double kv_tokens) const {
  const auto below = static_cast<std::int64_t>(std::floor(kv_tokens));
  const double rest = kv_tokens - static_cast<double>(below);
  const Work a = work_.decode(rows, below);
  if (rest == 0) return body_ps(static_cast<double>(a.flops), static_cast<double>(a.bytes));
  const Work b = work_.decode(rows, below + 1);
  const auto between = [&](std::int64_t x, std::int64_t y) { return static_cast<double>(x) + rest * static_cast<double>(y - x); };
  return body_ps(between(a.flops, b.flops), between(a.bytes, b.bytes));
}

// Knots: no cached tokens, and where compute overtakes memory (or the reverse).
DecodeCurve RooflinePrices::decode_attention(std::int64_t rows) const {
  const double ranks = parallel_.data_ranks();
  const auto own_rows = static_cast<std::int64_t>(std::ceil(static_cast<double>(rows) / ranks));
  const double layers = static_cast<double>(model_.layers);
  const Work none = work_.decode(own_rows, 0), one = work_.decode(own_rows, 1);
  const double flop_slope = static_cast<double>(one.flops - none.flops) * ps_per_flop_;
  const double byte_slope = static_cast<double>(one.bytes - none.bytes) * ps_per_byte_;
  const double gap = static_cast<double>(none.bytes) * ps_per_byte_ - static_cast<double>(none.flops) * ps_per_flop_;
  std::vector<double> at{0.0};
  const double crossing = flop_slope == byte_slope ? -1.0 : gap / (flop_slope - byte_slope);
  if (crossing > 0) at.push_back(crossing);
  DecodeCurve curve;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double here = decode_ps(own_rows, at[i]);
    const double step = i + 1 < at.size() ? at[i + 1] - at[i] : 1.0;
    const double slope = (decode_ps(own_rows, at[i] + step) - here) / step;
    curve.knots.push_back({at[i] * ranks, layers * (here + launch_ps()), layers * slope / ranks, Footing::kExtrapolated});
  }
  return curve;
}

// One kernel for the whole ragged batch: bodies add up, one launch. With data parallel attention each prompt is on one rank.
Price RooflinePrices::mixed_attention(const StepShape& shape) const {
  double sum = 0, longest = 0;
  for (const PrefillPiece& piece : shape.prefills) {
    const double ps = prefill_ps(piece);
    sum += ps;
    longest = std::max(longest, ps);
  }
  const int ranks = parallel_.data_ranks();
  double ps = std::max(longest, sum / ranks) + launch_ps();
  if (shape.decodes > 0) ps += decode_ps(ceil_div(shape.decodes, ranks), static_cast<double>(shape.decode_kv_tokens) / ranks);
  return extrapolated(static_cast<double>(model_.layers) * ps);
}

Price RooflinePrices::policy(const PolicyOp& op) const {
  const double share = policy_share(model_, parallel_), launches = static_cast<double>(op.launches);
  const double body = body_ps(static_cast<double>(op.flops) * share, static_cast<double>(op.bytes) * share);
  if (!op.over_host_link) return extrapolated(body + launches * launch_ps());
  // Each rank fetches its heads over its own link, after the selection is known and before attention: nothing hides it.
  const double rate = hardware_.pcie_bytes_per_s > 0 ? hardware_.pcie_bytes_per_s : kHostLinkBytesPerS;
  return extrapolated(static_cast<double>(op.bytes) * share / rate * kPsPerSecond + launches * kHostCallPs);
}

Price RooflinePrices::send(std::int64_t tokens) const {
  const std::int64_t own = ceil_div(tokens, parallel_.data_ranks());
  return extrapolated(link_ps(own * model_.hidden * model_.activation_bytes(), 1));
}

}  // namespace kvlab
