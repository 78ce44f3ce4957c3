#include "sim/cost/step_cost_model.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "base/ceil_div.h"
#include "base/checked_time.h"
#include "sim/cost/step_sums.h"

namespace kvlab {

namespace {

constexpr std::int64_t kKeptTokens = 1 << 16;  // more are not cached: long prompts rarely repeat
constexpr std::int64_t kKeptRows = 1 << 14;
constexpr std::int64_t kNoEnd = std::int64_t{1} << 60;
constexpr std::int64_t kLongestSpan = 1 << 24;  // search bound in skew buckets; exceeds any sequence

std::int64_t steps_below(std::int64_t at, std::int64_t gain, std::int64_t end) { return gain == 0 ? kNoEnd : (end - 1 - at) / gain + 1; }

Picoseconds along(Picoseconds base, Picoseconds slope, std::int64_t n) {
  return add_time(base, multiply_time(slope, n, kLongStep), kLongStep);
}

}  // namespace

StepCostModel::StepCostModel(std::shared_ptr<const StepPrices> prices, ModelSpec model, const HardwareSpec& hardware, Parallel parallel,
                             EngineTimes engine)
    : prices_(std::move(prices)),
      model_(std::move(model)),
      parallel_(parallel),
      engine_(std::move(engine)),
      has_group_(parallel.dp > 1 && model_.is_moe()),
      uncut_{.ep = parallel.dp, .dp = parallel.dp},
      layers_(layer_classes(model_)),
      peak_flops_(hardware.peak_flops(compute_dtype(model_)) * parallel.gpus_of_rank()),
      peak_bytes_per_s_(hardware.memory_bytes_per_s * parallel.gpus_of_rank()),
      flops_per_token_(3.0 * static_cast<double>(total_parameters(model_))),
      flops_per_pair_(6.0 * static_cast<double>(model_.layers * model_.q_heads * model_.head_dim)),
      likely_cause_(likely_cause_of(hardware)) {
  for (const AttentionClass& layers : attention_classes(model_)) attention_.push_back({layers, AttentionWork(model_, uncut_, layers), {}});
}

// FLOPs and bytes fit into 64 bits, by a bound with a margin.
void StepCostModel::check_work(const StepShape& shape) const {
  constexpr double kLimit = 9e18;
  double flops = flops_per_pair_ * static_cast<double>(shape.decode_kv_tokens);
  double tokens = static_cast<double>(shape.decodes) + shape.idle_rows;
  for (const PrefillPiece& piece : shape.prefills) {
    tokens += piece.new_tokens;
    flops += flops_per_pair_ * piece.new_tokens * (static_cast<double>(piece.kv_before) + piece.new_tokens);
  }
  if (!(flops + flops_per_token_ * tokens < kLimit)) [[unlikely]]
    throw ClockOverflow("one step computes more than 9e18 FLOPs; limit its tokens, for example by the scheduler's budget_tokens");
}

ByFooting StepCostModel::round(const Price& price) {
  ByFooting rounded{};
  const auto at = [&](Footing f) -> Picoseconds& { return rounded[static_cast<std::size_t>(f)]; };
  const auto round_one = [](double ps) { return ps == 0 ? Picoseconds{} : round_time(ps, kLongStep); };
  for (std::size_t f = 0; f < kFootings; ++f) rounded[f] = round_one(price.ps[f]);
  Picoseconds rest = round_one(price.beyond);
  for (const Footing f : {Footing::kRoofline, Footing::kDatasheet}) {
    at(f) = std::min(at(f), rest);
    rest -= at(f);
  }
  at(Footing::kExtrapolated) = rest;
  return rounded;
}

Picoseconds StepCostModel::of_engine(const LayerClass& layers) const {
  const EngineTimes::Device& device = engine_.device;
  Picoseconds time = device.layer;
  if (model_.qk_norm && layers.attention != AttentionKind::kLinear) time += device.qk_norm;
  if (layers.has_experts) time += device.experts;
  return time;
}

void StepCostModel::charge_layers(StepCost& sum, const TokenPrice::Layer& price) {
  ByFooting linear = round(price.linear), experts = round(price.experts);
  for (std::size_t f = 0; f < kFootings; ++f) {
    experts[f] = std::min(experts[f], linear[f]);
    linear[f] -= experts[f];
  }
  charge(sum, CostPart::kLinear, linear, price.count);
  charge(sum, CostPart::kExperts, experts, price.count);
  charge(sum, CostPart::kCollective, round(price.collective), price.count);
}

StepCostModel::TokenEntry StepCostModel::make_tokens(std::int64_t tokens) const {
  TokenEntry entry;
  if (tokens == 0) return entry;
  const TokenPrice price = prices_->tokens(tokens);
  StepCost layers, once, send;
  for (std::size_t i = 0; i < price.layers.size(); ++i) {
    charge_layers(layers, price.layers[i]);
    charge(layers, CostPart::kLinear, multiply_time(of_engine(layers_[i]), price.layers[i].count, kLongStep), Footing::kRoofline);
  }
  charge(once, CostPart::kLinear, round(price.once));
  charge(once, CostPart::kLinear, engine_.device.step, Footing::kRoofline);
  charge(once, CostPart::kCollective, round(price.once_collective));
  if (parallel_.pp > 1) charge(send, CostPart::kCollective, round(prices_->send(tokens)));
  entry.layers = PartSums(layers);
  entry.once = PartSums(once);
  entry.send = PartSums(send);
  std::vector<OpWork> ops;
  for (const LayerClass& of : layers_) {
    ops.clear();
    layer_ops(model_, uncut_, of, tokens, ops);
    const Work one = sum(ops);
    entry.layers_work.flops += of.count * one.flops;
    entry.layers_work.bytes += of.count * one.bytes;
  }
  ops.clear();
  step_ops(model_, uncut_, tokens, ops);
  entry.once_work = sum(ops);
  return entry;
}

StepCostModel::HeadEntry StepCostModel::make_head(std::int64_t rows) const {
  HeadEntry entry;
  entry.is_filled = true;
  if (rows == 0) return entry;
  StepCost price;
  charge(price, CostPart::kHead, round(prices_->head(rows)));
  charge(price, CostPart::kHead, engine_.device.sequence * rows, Footing::kRoofline);
  entry.price = PartSums(price);
  std::vector<OpWork> ops;
  head_ops(model_, uncut_, rows, ops);
  entry.work = sum(ops);
  return entry;
}

const StepCostModel::TokenEntry& StepCostModel::new_tokens(std::int64_t tokens) {
  if (tokens >= kKeptTokens) {
    if (large_tokens_count_ != tokens) large_tokens_ = make_tokens(tokens);
    large_tokens_count_ = tokens;
    return large_tokens_;
  }
  const auto at = static_cast<std::size_t>(tokens);
  if (at >= tokens_.size()) tokens_.resize(std::max(at + 1, tokens_.size() * 2));
  tokens_[at] = std::make_unique<TokenEntry>(make_tokens(tokens));
  return *tokens_[at];
}

const StepCost& StepCostModel::experts_at(std::int64_t tokens) {
  const auto [at, is_new] = experts_.try_emplace(tokens);
  if (!is_new || tokens == 0) return at->second;
  const std::int64_t count = model_.num_expert_layers();
  const OpWork one = experts_op(model_, uncut_, tokens);
  charge(at->second, CostPart::kExperts, round(prices_->experts(tokens)), count);
  add(at->second, {one.flops, one.bytes}, count);
  return at->second;
}

const StepCostModel::HeadEntry& StepCostModel::new_head(std::int64_t rows) {
  if (rows >= kKeptRows) {
    if (large_head_count_ != rows) large_head_ = make_head(rows);
    large_head_count_ = rows;
    return large_head_;
  }
  const auto at = static_cast<std::size_t>(rows);
  if (at >= head_.size()) head_.resize(std::max(at + 1, head_.size() * 2));
  return head_[at] = make_head(rows);
}

// A cell begins at the first whole token after a knot.
std::vector<StepCostModel::Cell> StepCostModel::make_cells(std::size_t at, std::int64_t rows) const {
  std::vector<Cell> cells;
  for (const DecodeCurve::Knot& knot : prices_->decode_attention(at, rows).knots) {
    const auto begin = static_cast<std::int64_t>(std::ceil(knot.kv_tokens));
    const double base = knot.ps + knot.ps_per_token * (static_cast<double>(begin) - knot.kv_tokens);
    if (!cells.empty() && cells.back().begin == begin) cells.pop_back();
    cells.push_back({begin, kNoEnd, round_time(base, kLongStep), round_time(knot.ps_per_token, kLongStep), knot.footing});
  }
  assert(!cells.empty() && cells.front().begin == 0);
  for (std::size_t i = 0; i + 1 < cells.size(); ++i) cells[i].end = cells[i + 1].begin;
  return cells;
}

const std::vector<StepCostModel::Cell>& StepCostModel::new_cells(std::size_t at, std::int64_t rows) {
  std::vector<std::vector<Cell>>& cells = attention_[at].cells;
  const auto row = static_cast<std::size_t>(rows);
  if (row >= cells.size()) cells.resize(std::max(row + 1, cells.size() * 2));
  return cells[row] = make_cells(at, rows);
}

const StepCostModel::Cell& StepCostModel::cell_at(std::size_t at, std::int64_t rows, std::int64_t kv_tokens) {
  const std::vector<Cell>& cells = cells_of(at, rows);
  std::size_t i = cells.size() - 1;
  while (cells[i].begin > kv_tokens) --i;
  return cells[i];
}

StepCostModel::Decode StepCostModel::decode_at(std::size_t at, const StepShape& shape) {
  const AttentionClass& layers = attention_[at].layers;
  const std::int64_t kv_tokens = kv_tokens_in(layers, model_, shape);
  const Cell& mean = cell_at(at, shape.decodes, kv_tokens);
  const Decode d{along(mean.base, mean.slope, kv_tokens - mean.begin), mean.slope, {}, mean.end, kNoEnd, -1, mean.footing};
  // Window rows are nearly even, a state has no length.
  const bool is_even = shows_window(model_, layers) || layers.kind == AttentionKind::kLinear;
  return prices_->skew() == nullptr || shape.decodes < 2 || is_even ? d : with_skew(d, batch_of(shape), mean, at);
}

// t_mean + alpha * (t_max - t_mean); coefficients depend only on cells and bucket.
StepCostModel::Decode StepCostModel::with_skew(Decode d, const DecodeBatch& batch, const Cell& mean, std::size_t at) {
  const std::int64_t rows = batch.rows, kv_max = batch.kv_max;
  const SkewRule& skew = *prices_->skew();
  d.bucket = skew.bucket(batch);
  const double alpha = skew.alpha(d.bucket);
  const Cell max = cell_at(at, rows, rows * kv_max);
  const std::int64_t max_begin = ceil_div(max.begin, rows);
  const auto blend = [&](double a, double b) { return round_ps((1 - alpha) * a + alpha * b); };
  const Picoseconds base = blend(mean.base.real(), along(max.base, max.slope, max_begin * rows - max.begin).real());
  d.per_token = blend(mean.slope.real(), 0);
  d.per_max_token = blend(0, multiply_time(max.slope, rows, kLongStep).real());
  d.time = along(along(base, d.per_token, batch.kv_tokens - mean.begin), d.per_max_token, kv_max - max_begin);
  d.max_end = max.end == kNoEnd ? kNoEnd : ceil_div(max.end, rows);
  d.footing = std::max(mean.footing, max.footing);
  return d;
}

void StepCostModel::add_attention(const StepShape& shape, std::int64_t layers, StepCost& cost) {
  decodes_.clear();
  if (shape.prefills.empty()) {
    for (std::size_t at = 0; at < attention_.size() && shape.decodes > 0; ++at) {
      decodes_.push_back(decode_at(at, shape));
      charge(cost, CostPart::kAttention, share_of(decodes_.back().time, layers, model_.layers), decodes_.back().footing);
    }
    return;
  }
  const ByFooting price = round(prices_->mixed_attention(shape));
  charge_share(cost, {{CostPart::kAttention, &price}}, layers * (model_.layers - shape.sparse_layers), model_.layers * model_.layers);
  for (std::size_t at = 0; at < attention_.size() && shape.decodes > 0 && shape.sparse_layers > 0; ++at) {
    const Decode d = decode_at(at, shape);
    charge(cost, CostPart::kAttention, share_of(d.time, layers * shape.sparse_layers, model_.layers * model_.layers), d.footing);
  }
}

void StepCostModel::add_attention_work(const Attention& attention, const StepShape& shape, std::int64_t layers, StepCost& cost) const {
  const AttentionWork& work = attention.work;
  const auto add_one = [&](const Work& one, std::int64_t among) {
    const std::int64_t count = attention.layers.count;
    add_share(cost, {one.flops * count, one.bytes * count}, layers * among, model_.layers * model_.layers);
  };
  std::int64_t prompt_tokens = 0;
  for (const PrefillPiece& piece : shape.prefills) {
    add_one(work.prefill(piece), model_.layers - shape.sparse_layers);
    prompt_tokens += work.op_tokens(piece);
  }
  if (shape.decodes > 0) add_one(work.decode(shape.decodes, kv_tokens_in(attention.layers, model_, shape)), model_.layers);
  if (!work.has_ops()) return;
  if (const OpWork up = work.prefill_op(prompt_tokens); prompt_tokens > 0) add_one({up.flops, up.bytes}, model_.layers);
  for (const OpWork& op : work.decode_ops(shape.decodes)) add_one({op.flops, op.bytes}, model_.layers);
}

void StepCostModel::add_work(const StepShape& shape, std::int64_t layers, StepCost& cost) {
  const TokenEntry& useful = tokens_at(shape.tokens());
  add_share(cost, useful.layers_work, layers, model_.layers);
  if (shape.layers == 0) add(cost, useful.once_work);
  for (const Attention& attention : attention_) add_attention_work(attention, shape, layers, cost);
  for (const PolicyOp& op : shape.ops)
    if (!op.is_transfer()) add(cost, {op.flops, op.bytes});
}

// Ranks meet at the experts, so take equally long.
void StepCostModel::add_experts(const StepShape& shape, std::int64_t layers, StepCost& cost) {
  GroupTokens group;
  if (shape.group != nullptr) {
    group = *shape.group;
  } else {
    const std::int64_t own = shape.tokens();
    group.add(own, own + shape.padding_rows);
    for (int rank = 1; rank < parallel_.dp; ++rank) group.add(0, 1);
  }
  const StepCost& useful = experts_at(group.useful);
  add_share(cost, {useful.flops, useful.bytes}, layers, model_.layers);
  StepCost exchange;
  charge(exchange, CostPart::kCollective, round(prices_->exchange(group)), model_.num_expert_layers());
  charge_layers(cost, experts_at(group.computed), layers);
  charge_layers(cost, exchange, layers);
}

// The share of `layers` in the times of all.
void StepCostModel::charge_layers(StepCost& cost, const StepCost& all, std::int64_t layers) const {
  const ByFooting linear = all.times.row(CostPart::kLinear), experts = all.times.row(CostPart::kExperts),
                  collectives = all.times.row(CostPart::kCollective);
  charge_share(cost, {{CostPart::kLinear, &linear}, {CostPart::kExperts, &experts}}, layers, model_.layers);
  charge_share(cost, {{CostPart::kCollective, &collectives}}, layers, model_.layers);
}

StepCost StepCostModel::step(const StepShape& shape) {
  const bool is_whole = shape.layers == 0;
  const std::int64_t layers = is_whole ? model_.layers : shape.layers;
  StepCost cost;
  check_work(shape);
  add_work(shape, layers, cost);
  const TokenEntry& entry = tokens_at(shape.tokens() + shape.padding_rows);
  if (is_whole) {
    entry.layers.charge_to(cost);
  } else {
    StepCost all;
    entry.layers.charge_to(all);
    charge_layers(cost, all, layers);
  }
  if (has_group_) add_experts(shape, layers, cost);
  add_attention(shape, layers, cost);
  if (!shape.ops.empty()) add_policy(shape.ops, cost);
  if (!is_whole) return cost;
  entry.once.charge_to(cost);
  for (int stage = 1; stage < parallel_.pp; ++stage) entry.send.charge_to(cost);
  const HeadEntry& head = head_at(shape.head_rows);
  head.price.charge_to(cost);
  add(cost, head.work);
  return cost;
}

// Bucket axes are monotone in steps: bisects, at most `limit`.
std::int64_t StepCostModel::steps_in_bucket(const StepShape& shape, int bucket, std::int64_t limit) const {
  const SkewRule& skew = *prices_->skew();
  const auto is_same = [&](std::int64_t i) {
    const DecodeBatch now = batch_of(shape);
    const std::int64_t squares = now.kv_squares + i * (2 * now.kv_tokens + i * now.rows);
    return skew.bucket({now.rows, now.kv_tokens + i * now.rows, now.kv_max + i, now.kv_min + i, squares}) == bucket;
  };
  if (is_same(limit - 1)) return limit;
  std::int64_t same = 0, other = limit - 1;
  while (other - same > 1) {
    const std::int64_t middle = same + (other - same) / 2;
    (is_same(middle) ? same : other) = middle;
  }
  return same + 1;
}

void StepCostModel::add_growth(const StepShape& shape, std::size_t at, DecodeSpan& span) const {
  const Attention& attention = attention_[at];
  const Decode& d = decodes_[at];
  const bool in_window = shows_window(model_, attention.layers);
  const std::int64_t growing = shape.decodes - (in_window ? shape.in_window.full : shape.decode_full);
  if (growing == 0) return;
  const Picoseconds slope = add_time(multiply_time(d.per_token, growing, kLongStep), d.per_max_token, kLongStep);
  charge(span.slope, CostPart::kAttention, slope, d.footing);
  add(span.slope, attention.work.decode_token(), attention.layers.count * growing);
  const auto end_with = [&](std::int64_t steps) { span.valid_steps = std::min(span.valid_steps, steps); };
  end_with(steps_below(kv_tokens_in(attention.layers, model_, shape), growing, d.tokens_end));
  if (attention.layers.window > 0) end_with(attention.layers.window - 1 - (in_window ? shape.in_window.open_max : shape.decode_open_max));
  if (d.bucket >= 0 && growing < shape.decodes) {  // axes assume that all rows grow
    span.valid_steps = 1;
  } else if (d.bucket >= 0) {
    end_with(steps_below(shape.decode_kv_max, 1, d.max_end));
    span.valid_steps = steps_in_bucket(shape, d.bucket, std::min(span.valid_steps, kLongestSpan));
  }
}

DecodeSpan StepCostModel::decode_span(const StepShape& shape) {
  assert(shape.prefills.empty());
  DecodeSpan span{step(shape), {}, kNoEnd};
  if (shape.decodes == 0) return span;
  if (shape.layers != 0) {  // shares of layers are rounded per step
    span.valid_steps = 1;
    return span;
  }
  for (std::size_t at = 0; at < attention_.size(); ++at) add_growth(shape, at, span);
  const bool hides = std::any_of(shape.ops.begin(), shape.ops.end(), [](const PolicyOp& op) { return op.beside != FetchBeside::kNothing; });
  if (hides && span.slope.total != Picoseconds{}) span.valid_steps = 1;  // growing layers hide more transfers
  return span;
}

// Stages sum to the step: the first has the embedding, the last the head and the rounding.
void StepCostModel::stage_times(const StepShape& shape, std::vector<Picoseconds>& stages) {
  const int pp = parallel_.pp;
  const StepCost whole = step(shape);
  stages.assign(static_cast<std::size_t>(pp), {});
  stages.back() = whole.total;
  if (pp == 1 || shape.layers != 0) return;
  const TokenEntry entry = tokens_at(shape.tokens() + shape.padding_rows);
  const Picoseconds policy = whole.of(CostPart::kPolicy);
  StepShape part = shape;
  part.ops = {};
  for (int s = 0; s + 1 < pp; ++s) {
    part.layers = static_cast<std::int32_t>(model_.layers * (s + 1) / pp - model_.layers * s / pp);
    StepCost cost = step(part);
    entry.send.charge_to(cost);
    if (s == 0) entry.once.charge_to(cost);
    const Picoseconds time = cost.total + policy * part.layers / model_.layers;
    stages[static_cast<std::size_t>(s)] = time;
    stages.back() -= time;
  }
}

}  // namespace kvlab
