#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/model/layer/layer.h"
#include "sim/cost/roofline_prices.h"

namespace kvlab {

namespace {

const OpWork* find_op(const std::vector<OpWork>& ops, std::string_view name) {
  const auto at = std::find_if(ops.begin(), ops.end(), [&](const OpWork& op) { return name_of(op.op) == name; });
  return at == ops.end() ? nullptr : &*at;
}

}  // namespace

ProfilePrices::ProfilePrices(std::shared_ptr<const Profile> profile, std::shared_ptr<const RooflinePrices> roofline,
                             std::shared_ptr<const RooflinePrices> roofline_as_measured)
    : profile_(std::move(profile)),
      roofline_(std::move(roofline)),
      as_measured_(std::move(roofline_as_measured)),
      model_(roofline_->model()),
      layers_(layer_classes(model_)),
      parallel_(roofline_->parallel()),
      measured_at_(as_measured_->parallel()) {
  for (const SampleGrid::Sample& s : profile_->attention.samples()) {
    const auto prompt = static_cast<double>(s.at[0]);
    if (prompt > 0 && (smallest_prompt_ == 0 || prompt < smallest_prompt_)) smallest_prompt_ = prompt;
    has_mixed_ = has_mixed_ || (s.at[0] > 0 && s.at[2] > 0);
  }
  attention_scale_ = static_cast<double>(measured_at_.tp) / parallel_.tp;
  Ops ops;
  for (const LayerClass& layers : layers_) layer_ops(model_, parallel_, layers, 1, ops);
  for (const OpWork& op : ops) layer_ops_.emplace(name_of(op.op));
}

// Adds tables, then the roofline for uncovered operations. ops, as_measured: per rank here, and as profiled.
void ProfilePrices::add_ops(ProfileOp::Axis axis, std::optional<std::size_t> layer_class, std::int64_t count, const Ops& ops,
                            const Ops& as_measured, Price& price, Price* feed_forward, Price* norms) const {
  const bool is_scaled = measured_at_.tp != parallel_.tp;
  const auto add = [&](std::string_view name, double ps, Footing footing) {
    price.add(ps, footing);
    if (feed_forward != nullptr && is_feed_forward(name)) feed_forward->add(ps, footing);
    if (norms != nullptr && name == name_of(OpId::kLayernorm)) norms->add(ps, footing);
  };
  for (const ProfileOp& op : profile_->ops) {
    if (op.axis != axis || (op.per_layer > 0) != layer_class.has_value()) continue;
    const OpWork* here = find_op(ops, op.covers);
    const bool is_of_others = here == nullptr && layer_ops_.contains(op.covers),
               is_shared = parallel_.dp > 1 && op.covers == name_of(OpId::kMoe);
    if (layer_class && (is_of_others || is_shared || !op.is_of_class(*layer_class))) continue;
    const OpWork* there = find_op(as_measured, op.covers);
    Value value = time_of_op(op, count, profile_->tile_rows);
    if (is_scaled && here != nullptr && there != nullptr && (here->flops != there->flops || here->bytes != there->bytes)) {
      value.ps *= roofline_->op_ps(*here) / as_measured_->op_ps(*there);
      value.footing = Footing::kExtrapolated;
    }
    add(op.covers, std::max(1, op.per_layer) * value.ps, value.footing);
  }
  for (const OpWork& op : ops)
    if (!has_times(*profile_, op.op)) add(name_of(op.op), op.times * roofline_->op_ps(op), Footing::kRoofline);
}

// Each of ep ranks has 1 / ep of (token, expert) pairs and expected experts. The table is for whole experts, the roofline scales it for
// split ones.
ProfilePrices::Value ProfilePrices::moe(std::int64_t tokens) const {
  const MoeExpertsShape shape{tokens, model_.hidden, model_.moe_intermediate, model_.experts, model_.experts_per_token};
  const double ranks = parallel_.ep;
  const std::array<double, 2> at{static_cast<double>(tokens) / ranks, expected_experts(shape) / ranks};
  Value value = profile_->moe.at(at);
  if (parallel_.ep == 1 && parallel_.expert_ranks() > 1) {
    value.ps *= roofline_->op_ps(experts_op(model_, parallel_, tokens)) / roofline_->op_ps(experts_op(model_, Parallel{}, tokens));
    value.footing = Footing::kExtrapolated;
  }
  return value;
}

TokenPrice ProfilePrices::tokens(std::int64_t tokens) const {
  const std::int64_t own = ceil_div(tokens, parallel_.data_ranks());
  TokenPrice price;
  Ops here, there;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const LayerClass& layers = layers_[i];
    TokenPrice::Layer& layer = price.layers.emplace_back();
    layer.count = layers.count;
    here.clear();
    there.clear();
    layer_ops(model_, parallel_, layers, tokens, here);
    layer_ops(model_, measured_at_, layers, own, there);
    add_ops(ProfileOp::Axis::kTokens, i, own, here, there, layer.linear, layers.has_experts ? &layer.experts : &layer.mlp, &layer.norms);
    if (!layers.has_experts || profile_->moe.empty() || parallel_.dp > 1) continue;
    const Value value = moe(tokens);
    layer.linear.add(value.ps, value.footing);
    layer.experts.add(value.ps, value.footing);
  }
  here.clear();
  there.clear();
  step_ops(model_, parallel_, tokens, here);
  step_ops(model_, measured_at_, own, there);
  add_ops(ProfileOp::Axis::kTokens, std::nullopt, own, here, there, price.once);
  roofline_->add_collectives(tokens, price);
  return price;
}

Price ProfilePrices::experts(std::int64_t tokens) const {
  const auto own =
      std::find_if(profile_->ops.begin(), profile_->ops.end(), [](const auto& op) { return op.covers == name_of(OpId::kMoe); });
  const bool has_own = own != profile_->ops.end();
  if (!has_own && profile_->moe.empty()) return roofline_->experts(tokens);
  const Value value = has_own ? time_of_op(*own, tokens, profile_->tile_rows) : moe(tokens);
  return price_of(value.ps, value.footing);
}

Price ProfilePrices::head(std::int64_t rows) const {
  const std::int64_t own = ceil_div(rows, parallel_.data_ranks());
  Price price;
  Ops here, there;
  head_ops(model_, parallel_, rows, here);
  head_ops(model_, measured_at_, own, there);
  add_ops(ProfileOp::Axis::kSequences, std::nullopt, own, here, there, price);
  return price;
}

// One layer. length: mean of decode rows with the new token.
ProfilePrices::Value ProfilePrices::attention(double prompt, double before, double rows, double length) const {
  const double at_least = prompt > 0 ? std::max(prompt, smallest_prompt_) : 0;
  Value value = profile_->attention.at(std::array{at_least, before, rows, length});
  value.footing = std::max(value.footing, profile_->attention_at_best);
  const bool is_beyond = profile_->longest_prompt > 0 && prompt + before > static_cast<double>(profile_->longest_prompt);
  if (at_least != prompt || attention_scale_ != 1 || is_beyond) value.footing = Footing::kExtrapolated;
  value.ps *= attention_scale_;
  return value;
}

// Linear in mean length, so also in the total. Measured lengths count as interpolated, so spans cross them.
DecodeCurve ProfilePrices::decode_attention(std::size_t attention_class, std::int64_t rows) const {
  if (profile_->attention.empty()) return roofline_->decode_attention(attention_class, rows);
  const double n = static_cast<double>(rows), own = static_cast<double>(ceil_div(rows, parallel_.data_ranks()));
  const double layers = static_cast<double>(roofline_->attention()[attention_class].count);
  const std::vector<std::int64_t> lengths = profile_->attention.last_axis_knots(std::array{0.0, 0.0, own});
  DecodeCurve curve;
  const auto ps_at = [&](double length) { return layers * attention(0, 0, own, length).ps; };
  const auto first = static_cast<double>(lengths.front());
  if (first > 1) curve.knots.push_back({0, ps_at(first), 0, Footing::kExtrapolated});
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const auto length = static_cast<double>(lengths[i]);
    const bool is_last = i + 1 == lengths.size();
    const double next = is_last ? length + 1 : static_cast<double>(lengths[i + 1]);
    const double here = ps_at(length);
    const Footing middle = attention(0, 0, own, (length + next) / 2).footing;
    curve.knots.push_back({n * std::max(0.0, length - 1), here, (ps_at(next) - here) / (next - length) / n,
                           std::max(middle, is_last ? Footing::kExtrapolated : Footing::kInterpolated)});
  }
  return curve;
}

// Windows are looked up at visible tokens. The roofline's ratio scales longer prompts.
ProfilePrices::Value ProfilePrices::prompt_attention(std::size_t attention_class, const PrefillPiece& piece, double rows,
                                                     double length) const {
  const AttentionClass& layers = roofline_->attention()[attention_class];
  if (!shows_window(model_, layers)) return attention(piece.new_tokens, piece.kv_before, rows, length);
  const PrefillPiece shown{piece.new_tokens, static_cast<std::int32_t>(std::min<std::int64_t>(piece.kv_before, layers.window))};
  Value value = attention(shown.new_tokens, shown.kv_before, rows, length);
  if (std::int64_t{shown.new_tokens} + shown.kv_before <= layers.window) return value;
  const AttentionWork all(model_, parallel_, {AttentionKind::kFull, 0, 1});
  value.ps *= roofline_->prefill_ps(roofline_->work(attention_class), piece) / roofline_->prefill_ps(all, shown);
  value.footing = Footing::kExtrapolated;
  return value;
}

// One call: the longest prompt with all decode rows (a mixed batch decodes in the ragged-prompt kernel); other prompts add their time less
// the savings in a shared call. Uneven decode rows follow the skew rule.
ProfilePrices::Value ProfilePrices::attention_of_mixed(std::size_t attention_class, const StepShape& shape) const {
  const auto longer = [](const PrefillPiece& a, const PrefillPiece& b) {
    return a.new_tokens != b.new_tokens ? a.new_tokens < b.new_tokens : a.kv_before < b.kv_before;
  };
  const auto longest = std::max_element(shape.prefills.begin(), shape.prefills.end(), longer);
  const int ranks = parallel_.data_ranks();
  const double rows = static_cast<double>(ceil_div(shape.decodes, ranks));
  const AttentionClass& layers = roofline_->attention()[attention_class];
  const double mean = shape.decodes == 0 ? 0 : static_cast<double>(kv_tokens_in(layers, model_, shape)) / shape.decodes + 1;
  const auto with_longest = [&](double length) { return prompt_attention(attention_class, *longest, rows, length); };
  Value value;
  if (has_mixed_ || shape.decodes == 0) {
    value = with_longest(mean);
  } else {
    value = prompt_attention(attention_class, *longest, 0, 0);
    const Value decode = attention(0, 0, rows, mean);
    value = {value.ps + decode.ps, std::max(value.footing, decode.footing)};
  }
  double others = 0;
  std::int64_t prompt_tokens = 0;
  double weighted_before = 0;
  for (const PrefillPiece& piece : shape.prefills) {
    prompt_tokens += piece.new_tokens;
    weighted_before += static_cast<double>(piece.new_tokens) * piece.kv_before;
    if (&piece == &*longest) continue;
    const Value alone = prompt_attention(attention_class, piece, 0, 0);
    const double tokens = piece.new_tokens;
    const double saved = profile_->shared_call.empty() ? 0 : attention_scale_ * profile_->shared_call.at(std::span(&tokens, 1)).ps;
    others += std::max(0.0, alone.ps - saved);
    value.footing = std::max(value.footing, alone.footing);
  }
  if (profile_->skew && has_mixed_ && shape.decodes > 1 && !shows_window(model_, layers)) {
    const double alpha = profile_->skew->mixed_alpha(batch_of(shape), prompt_tokens, weighted_before / static_cast<double>(prompt_tokens));
    if (alpha > 0) value.ps += alpha * std::max(0.0, with_longest(shape.decode_kv_max + 1.0).ps - value.ps);
  }
  // Data parallel attention spreads other prompts over ranks; the longest occupies its rank.
  value.ps += ranks == 1 ? others : std::max(0.0, (others + value.ps) / ranks - value.ps);
  return value;
}

Price ProfilePrices::mixed_attention(const StepShape& shape) const {
  if (profile_->attention.empty()) return roofline_->mixed_attention(shape);
  Price price;
  for (std::size_t c = 0; c < roofline_->attention().size(); ++c) {
    const Value value = attention_of_mixed(c, shape);
    price.add(static_cast<double>(roofline_->attention()[c].count) * value.ps, value.footing);
  }
  return price;
}

// Per call; an operation's calls in a step count as equal.
Price ProfilePrices::policy(const PolicyOp& op) const {
  const double launches = static_cast<double>(std::max<std::int64_t>(1, op.launches));
  const double bytes = static_cast<double>(op.bytes) * policy_share(model_, parallel_) / launches;
  const double flops = static_cast<double>(op.flops) * policy_share(model_, parallel_) / launches;
  if (op.from_disk) return roofline_->policy(op);
  const std::optional<Value> value = profile_->policy.at(op.over_host_link ? name_of(OpId::kHostToDevice) : op.name, bytes, flops);
  if (!value) return roofline_->policy(op);
  return price_of(launches * value->ps, value->footing);
}

}  // namespace kvlab
