#include "sim/cost/step_cost_model.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "base/ceil_div.h"
#include "base/checked_time.h"

namespace kvlab {

namespace {

constexpr std::int64_t kKeptTokens = 1 << 16;  // token counts above are priced anew: whole long prompts, rarely the same twice
constexpr std::int64_t kKeptRows = 1 << 14;
constexpr std::int64_t kNoEnd = std::int64_t{1} << 60;
constexpr std::int64_t kLongestSpan = 1 << 24;  // where skew buckets are searched; longer than any sequence
constexpr const char* kLongStep = "one step takes longer than that";

// The total is checked; no other sum is larger.
void charge(StepCost& cost, CostPart part, Picoseconds ps, Footing footing) {
  cost.total = add_time(cost.total, ps, kLongStep);
  cost.footing[static_cast<std::size_t>(footing)] += ps;
  cost.part[static_cast<std::size_t>(part)] += ps;
}

void charge(StepCost& cost, CostPart part, const std::array<Picoseconds, kFootings>& price, std::int64_t times = 1) {
  for (std::size_t f = 0; f < kFootings; ++f) charge(cost, part, multiply_time(price[f], times, kLongStep), static_cast<Footing>(f));
}

void add(StepCost& cost, const Work& work, std::int64_t times = 1) {
  cost.flops += work.flops * times;
  cost.bytes += work.bytes * times;
}

Work sum(const std::vector<OpWork>& ops) {
  Work all;
  for (const OpWork& op : ops) {
    const auto in_mean_layer = [&](std::int64_t n) {
      return op.share == 1 ? n * op.times : std::llround(static_cast<double>(n * op.times) * op.share);
    };
    all.flops += in_mean_layer(op.flops);
    all.bytes += in_mean_layer(op.bytes);
  }
  return all;
}

// Whose work is of use.
std::int64_t tokens_of(const StepShape& shape) {
  std::int64_t tokens = std::int64_t{shape.decodes} + shape.idle_rows;
  for (const PrefillPiece& piece : shape.prefills) tokens += piece.new_tokens;
  return tokens;
}

// How many steps of `gain` tokens each stay below `end`, the first of them at `at`.
std::int64_t steps_below(std::int64_t at, std::int64_t gain, std::int64_t end) { return gain == 0 ? kNoEnd : (end - 1 - at) / gain + 1; }

}  // namespace

StepCostModel::StepCostModel(std::shared_ptr<const StepPrices> prices, ModelSpec model, const HardwareSpec& hardware, Parallel parallel)
    : prices_(std::move(prices)),
      model_(std::move(model)),
      parallel_(parallel),
      has_group_(parallel.dp > 1 && model_.is_moe()),
      uncut_{.ep = parallel.dp, .dp = parallel.dp},
      work_(model_, uncut_),
      peak_flops_(hardware.peak_flops(compute_dtype(model_)) * parallel.gpus_of_rank()),
      peak_bytes_per_s_(hardware.memory_bytes_per_s * parallel.gpus_of_rank()),
      flops_per_token_(3.0 * static_cast<double>(total_parameters(model_))),
      flops_per_pair_(6.0 * static_cast<double>(model_.layers * model_.q_heads * model_.head_dim)),
      likely_cause_(likely_cause_of(hardware)) {}

// FLOPs and bytes are 64-bit integers too. A bound in floating point, with a margin, finds a step that has too many.
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

StepCostModel::Rounded StepCostModel::round(const Price& price) {
  Rounded rounded{};
  for (std::size_t f = 0; f < kFootings; ++f) rounded[f] = round_time(price.ps[f], kLongStep);
  return rounded;
}

StepCostModel::TokenEntry StepCostModel::make_tokens(std::int64_t tokens) const {
  TokenEntry entry;
  entry.is_filled = true;
  if (tokens == 0) return entry;
  const TokenPrice price = prices_->tokens(tokens);
  entry.layer = round(price.layer);
  entry.layer_collective = round(price.layer_collective);
  entry.once = round(price.once);
  entry.once_collective = round(price.once_collective);
  if (parallel_.pp > 1) entry.send = round(prices_->send(tokens));
  std::vector<OpWork> ops;
  layer_ops(model_, uncut_, tokens, ops);
  entry.layer_work = sum(ops);
  ops.clear();
  step_ops(model_, uncut_, tokens, ops);
  entry.once_work = sum(ops);
  return entry;
}

StepCostModel::HeadEntry StepCostModel::make_head(std::int64_t rows) const {
  HeadEntry entry;
  entry.is_filled = true;
  if (rows == 0) return entry;
  entry.price = round(prices_->head(rows));
  std::vector<OpWork> ops;
  head_ops(model_, uncut_, rows, ops);
  entry.work = sum(ops);
  return entry;
}

const StepCostModel::TokenEntry& StepCostModel::tokens_at(std::int64_t tokens) {
  if (tokens >= kKeptTokens) {
    if (large_tokens_count_ != tokens) large_tokens_ = make_tokens(tokens);
    large_tokens_count_ = tokens;
    return large_tokens_;
  }
  const auto at = static_cast<std::size_t>(tokens);
  if (at >= tokens_.size()) tokens_.resize(std::max(at + 1, tokens_.size() * 2));
  if (!tokens_[at].is_filled) tokens_[at] = make_tokens(tokens);
  return tokens_[at];
}

const StepCostModel::ExpertEntry& StepCostModel::experts_at(std::int64_t tokens) {
  const auto [at, is_new] = experts_.try_emplace(tokens);
  if (!is_new || tokens == 0) return at->second;
  OpWork share = experts_op(model_, uncut_, tokens);
  share.share = model_.expert_share();
  at->second = {round(prices_->experts(tokens)), sum({share})};
  return at->second;
}

const StepCostModel::HeadEntry& StepCostModel::head_at(std::int64_t rows) {
  if (rows >= kKeptRows) {
    if (large_head_count_ != rows) large_head_ = make_head(rows);
    large_head_count_ = rows;
    return large_head_;
  }
  const auto at = static_cast<std::size_t>(rows);
  if (at >= head_.size()) head_.resize(std::max(at + 1, head_.size() * 2));
  if (!head_[at].is_filled) head_[at] = make_head(rows);
  return head_[at];
}

// Knots rarely fall on whole tokens; a cell begins at the first whole one and takes its base from the line there.
std::vector<StepCostModel::Cell> StepCostModel::make_cells(std::int64_t rows) const {
  std::vector<Cell> cells;
  for (const DecodeCurve::Knot& knot : prices_->decode_attention(rows).knots) {
    const auto begin = static_cast<std::int64_t>(std::ceil(knot.kv_tokens));
    const double base = knot.ps + knot.ps_per_token * (static_cast<double>(begin) - knot.kv_tokens);
    if (!cells.empty() && cells.back().begin == begin) cells.pop_back();
    cells.push_back({begin, kNoEnd, round_time(base, kLongStep), round_time(knot.ps_per_token, kLongStep), knot.footing});
  }
  assert(!cells.empty() && cells.front().begin == 0);
  for (std::size_t i = 0; i + 1 < cells.size(); ++i) cells[i].end = cells[i + 1].begin;
  return cells;
}

const std::vector<StepCostModel::Cell>& StepCostModel::cells_of(std::int64_t rows) {
  const auto at = static_cast<std::size_t>(rows);
  if (at >= cells_.size()) cells_.resize(std::max(at + 1, cells_.size() * 2));
  if (cells_[at].empty()) cells_[at] = make_cells(rows);
  return cells_[at];
}

StepCostModel::Cell StepCostModel::cell_at(std::int64_t rows, std::int64_t kv_tokens) {
  const std::vector<Cell>& cells = cells_of(rows);
  std::size_t i = cells.size() - 1;
  while (cells[i].begin > kv_tokens) --i;
  return cells[i];
}

StepCostModel::Decode StepCostModel::decode_at(const DecodeBatch& batch) {
  const std::int64_t rows = batch.rows, kv_tokens = batch.kv_tokens, kv_max = batch.kv_max;
  const Cell mean = cell_at(rows, kv_tokens);
  const auto along = [](Picoseconds base, Picoseconds slope, std::int64_t n) {
    return add_time(base, multiply_time(slope, n, kLongStep), kLongStep);
  };
  Decode d{along(mean.base, mean.slope, kv_tokens - mean.begin), mean.slope, {}, mean.end, kNoEnd, -1, mean.footing};
  const SkewRule* skew = prices_->skew();
  if (skew == nullptr || rows < 2) return d;
  // t_mean + alpha * (t_max - t_mean); every coefficient depends on the two cells and the bucket only.
  d.bucket = skew->bucket(batch);
  const double alpha = skew->alpha(d.bucket);
  const Cell max = cell_at(rows, rows * kv_max);
  const std::int64_t max_begin = ceil_div(max.begin, rows);
  const auto blend = [&](double a, double b) { return round_ps((1 - alpha) * a + alpha * b); };
  const Picoseconds base = blend(mean.base.real(), along(max.base, max.slope, max_begin * rows - max.begin).real());
  d.per_token = blend(mean.slope.real(), 0);
  d.per_max_token = blend(0, multiply_time(max.slope, rows, kLongStep).real());
  d.time = along(along(base, d.per_token, kv_tokens - mean.begin), d.per_max_token, kv_max - max_begin);
  d.max_end = max.end == kNoEnd ? kNoEnd : ceil_div(max.end, rows);
  d.footing = std::max(mean.footing, max.footing);
  return d;
}

StepCostModel::Decode StepCostModel::add_attention(const StepShape& shape, std::int64_t layers, StepCost& cost) {
  // A part of the layers gets its share, rounded down per footing.
  const auto share = [&](Picoseconds ps) {
    return layers == model_.layers ? ps : Picoseconds(static_cast<std::int64_t>(Int128{ps.count()} * layers / model_.layers));
  };
  if (shape.prefills.empty()) {
    if (shape.decodes == 0) return {};
    const Decode d = decode_at(batch_of(shape));
    charge(cost, CostPart::kAttention, share(d.time), d.footing);
    return d;
  }
  Rounded price = round(prices_->mixed_attention(shape));
  for (Picoseconds& ps : price) ps = share(ps);
  charge(cost, CostPart::kAttention, price);
  return {};
}

void StepCostModel::add_work(const StepShape& shape, std::int64_t layers, StepCost& cost) {
  const TokenEntry& useful = tokens_at(tokens_of(shape));
  add(cost, useful.layer_work, layers);
  if (shape.layers == 0) add(cost, useful.once_work);
  for (const PrefillPiece& piece : shape.prefills) add(cost, work_.prefill(piece), layers);
  if (shape.decodes > 0) add(cost, work_.decode(shape.decodes, shape.decode_kv_tokens), layers);
  for (const PolicyOp& op : shape.ops)
    if (!op.over_host_link) add(cost, {op.flops, op.bytes});
}

// The ranks' tokens meet at the experts: every rank takes the same time there.
void StepCostModel::add_experts(const StepShape& shape, std::int64_t layers, StepCost& cost) {
  GroupTokens group;
  if (shape.group != nullptr) {
    group = *shape.group;
  } else {
    const std::int64_t own = tokens_of(shape);
    group.add(own, own + shape.padding_rows);
    for (int rank = 1; rank < parallel_.dp; ++rank) group.add(0, 1);
  }
  add(cost, experts_at(group.useful).work, layers);
  charge(cost, CostPart::kLinear, experts_at(group.computed).price, layers);
  charge(cost, CostPart::kCollective, round(prices_->exchange(group)), layers);
}

StepCost StepCostModel::step(const StepShape& shape) {
  Decode decode;
  return step(shape, decode);
}

StepCost StepCostModel::step(const StepShape& shape, Decode& decode) {
  const bool is_whole = shape.layers == 0;
  const std::int64_t layers = is_whole ? model_.layers : shape.layers;
  StepCost cost;
  check_work(shape);
  add_work(shape, layers, cost);
  const TokenEntry& entry = tokens_at(tokens_of(shape) + shape.padding_rows);
  charge(cost, CostPart::kLinear, entry.layer, layers);
  charge(cost, CostPart::kCollective, entry.layer_collective, layers);
  if (has_group_) add_experts(shape, layers, cost);
  decode = add_attention(shape, layers, cost);
  for (const PolicyOp& op : shape.ops) charge(cost, CostPart::kPolicy, round(prices_->policy(op)));
  if (!is_whole) return cost;
  const HeadEntry& head = head_at(shape.head_rows);
  charge(cost, CostPart::kLinear, entry.once);
  charge(cost, CostPart::kCollective, entry.once_collective);
  charge(cost, CostPart::kCollective, entry.send, parallel_.pp - 1);
  charge(cost, CostPart::kHead, head.price);
  add(cost, head.work);
  return cost;
}

// Every axis of a bucket is monotone in the step, so a bucket is left once and not entered again: at most `limit` steps lie
// in it, and the last is found by bisection.
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

DecodeSpan StepCostModel::decode_span(const StepShape& shape) {
  assert(shape.prefills.empty());
  DecodeSpan span;
  Decode d;
  span.base = step(shape, d);
  span.valid_steps = kNoEnd;
  if (shape.decodes == 0) return span;
  if (shape.layers != 0) {  // a share of the layers is rounded per step
    span.valid_steps = 1;
    return span;
  }
  const std::int64_t growing = shape.decodes - shape.decode_full;
  if (growing == 0) return span;
  const Picoseconds slope = add_time(multiply_time(d.per_token, growing, kLongStep), d.per_max_token, kLongStep);
  charge(span.slope, CostPart::kAttention, slope, d.footing);
  const Work none = work_.decode(shape.decodes, 0), one = work_.decode(shape.decodes, 1);
  add(span.slope, {one.flops - none.flops, one.bytes - none.bytes}, model_.layers * growing);
  span.valid_steps = steps_below(shape.decode_kv_tokens, growing, d.tokens_end);
  if (model_.sliding_window > 0) span.valid_steps = std::min(span.valid_steps, model_.sliding_window - 1 - shape.decode_open_max);
  if (d.bucket >= 0 && growing < shape.decodes) {  // a bucket's axes take rows to grow together
    span.valid_steps = 1;
  } else if (d.bucket >= 0) {
    span.valid_steps = std::min(span.valid_steps, steps_below(shape.decode_kv_max, 1, d.max_end));
    span.valid_steps = steps_in_bucket(shape, d.bucket, std::min(span.valid_steps, kLongestSpan));
  }
  return span;
}

// Stages hold layers as evenly as they divide; the embedding is on the first, the head on the last. The last stage takes what
// rounding left, so that the stages sum to the step.
void StepCostModel::stage_times(const StepShape& shape, std::vector<Picoseconds>& stages) {
  const int pp = parallel_.pp;
  const StepCost whole = step(shape);
  stages.assign(static_cast<std::size_t>(pp), {});
  stages.back() = whole.total;
  if (pp == 1 || shape.layers != 0) return;
  const TokenEntry entry = tokens_at(tokens_of(shape) + shape.padding_rows);
  const Picoseconds policy = whole.part[static_cast<std::size_t>(CostPart::kPolicy)];
  StepShape part = shape;
  part.ops = {};
  for (int s = 0; s + 1 < pp; ++s) {
    part.layers = static_cast<std::int32_t>(model_.layers * (s + 1) / pp - model_.layers * s / pp);
    StepCost cost = step(part);
    charge(cost, CostPart::kCollective, entry.send);
    if (s == 0) charge(cost, CostPart::kLinear, entry.once);
    if (s == 0) charge(cost, CostPart::kCollective, entry.once_collective);
    const Picoseconds time = cost.total + policy * part.layers / model_.layers;
    stages[static_cast<std::size_t>(s)] = time;
    stages.back() -= time;
  }
}

double StepCostModel::prefill_seconds(std::int32_t tokens, std::int32_t kv_before) {
  const PrefillPiece piece{tokens, kv_before};
  StepShape shape;
  shape.prefills = std::span(&piece, 1);
  return to_s(step(shape).total);
}

}  // namespace kvlab
