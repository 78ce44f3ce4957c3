#include "sim/kv_cost/step_ops.h"

#include <algorithm>

#include "policies/kv/runs_of.h"
#include "serving/op_sums.h"

namespace kvlab {

namespace {

using Calls = std::vector<OpCall>;

bool same_operations(const Calls& a, const Calls& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const OpCall& x, const OpCall& y) { return x.op == y.op; });
}

// a + times * b, of equal operations.
Calls plus(Calls a, const Calls& b, std::int64_t times) {
  CallRow sum(a);
  sum.add(CallRow(b), times);
  sum.write(a);
  return a;
}

}  // namespace

StepOps::Read StepOps::read_of(const Calls& calls) {
  StepOps::Read read;
  for (const OpCall& c : calls)
    if (is_attention(c)) read.bytes += c.bytes, read.flops += c.flops;
  return read;
}

CallRow::CallRow(std::span<const OpCall> calls) : num_calls_(calls.size()) {
  numbers_.reserve(num_calls_ * (kWork + kCounts));
  for (const OpCall& c : calls) numbers_.insert(numbers_.end(), {c.bytes - c.shared_bytes, c.flops});
  for (const OpCall& c : calls) numbers_.insert(numbers_.end(), {c.rows, c.tokens, c.outputs});
  if (std::all_of(calls.begin(), calls.end(), [](const OpCall& c) { return c.shared_bytes == 0; })) return;
  for (const OpCall& c : calls) shared_.push_back(c.shared_bytes);
}

void CallRow::clear(std::size_t num_calls, bool has_counts) {
  num_calls_ = num_calls;
  numbers_.assign(num_calls * (has_counts ? kWork + kCounts : kWork), 0);
  shared_.clear();
}

void CallRow::add(const CallRow& more, std::int64_t times) {
  std::int64_t* const to = numbers_.data();
  const std::int64_t* const from = more.numbers_.data();
  const std::size_t count = numbers_.size();
  if (times == 1)
    for (std::size_t i = 0; i < count; ++i) to[i] += from[i];
  else if (times == -1)
    for (std::size_t i = 0; i < count; ++i) to[i] -= from[i];
  else
    for (std::size_t i = 0; i < count; ++i) to[i] += times * from[i];
  if (!more.shares()) return;
  shared_.resize(num_calls());
  for (std::size_t i = 0; i < shared_.size(); ++i) shared_[i] = std::max(shared_[i], more.shared_[i]);
}

void CallRow::write(std::vector<OpCall>& calls) const {
  const bool has_counts = numbers_.size() > num_calls_ * kWork;
  for (std::size_t i = 0; i < num_calls_; ++i) {
    const std::int64_t shared = shares() ? shared_[i] : 0;
    const std::int64_t* const work = &numbers_[i * kWork];
    calls[i] = {calls[i].op, 0, 0, 0, work[0] + shared, work[1], shared};
    if (!has_counts) continue;
    const std::int64_t* const counts = &numbers_[num_calls_ * kWork + i * kCounts];
    calls[i].rows = counts[0], calls[i].tokens = counts[1], calls[i].outputs = counts[2];
  }
}

bool CallRow::adds_nothing() const {
  return !shares() && std::all_of(numbers_.begin(), numbers_.end(), [](std::int64_t n) { return n == 0; });
}

void add_calls(std::vector<PolicyOp>& ops, const OpCall& call, std::int64_t times, FetchBeside beside) {
  const bool fetches = is_fetch(call);
  if (is_attention(call) || (fetches && call.bytes == 0)) return;
  add_op(ops, {call.op, times, times * call.bytes, times * call.flops, call.op == kFetch, call.op == kReadDisk,
               fetches ? beside : FetchBeside::kNothing});
}

void add_fetches(const ShapeRun::Result& result, std::size_t layer, std::vector<OpCall>& calls) {
  calls.push_back({kFetch, 0, 0, 0, result.fetched[layer], 0});
  calls.push_back({kReadDisk, 0, 0, 0, result.disk[layer], 0});
}

StepOps::StepOps(const Recipe& recipe, const ModelShape& model, bool has_counts)
    : model_(model),
      has_counts_(has_counts),
      fetches_(!recipe.selects_all),
      acts_in_decode_(recipe.make_trigger()->in_decode()),
      shapes_(recipe, model) {
  const KvPolicy::LayerKinds kinds = shapes_.policy().layer_kinds(true);
  is_joint_ = kinds.run_together();
  units_.resize(is_joint_ ? 1 : kinds.first.size());
  for (std::int32_t l = 0; l < model.num_layers; ++l) {
    unit_of_layer_.push_back(is_joint_ ? 0 : kinds.of_layer[static_cast<std::size_t>(l)]);
    Unit& unit = units_[static_cast<std::size_t>(unit_of_layer_.back())];
    if (is_joint_ || unit.layers.empty())
      unit.layers.push_back(l);
    else
      ++unit.times;
  }
}

StepOps::Calls StepOps::run(const Unit& unit, std::span<const Seq> batch) {
  ++runs_;
  if (running_ != &unit)
    shapes_.run_only(unit.layers);
  else
    shapes_.forget();  // another prompt: no continuation
  running_ = &unit;
  const ShapeRun::Result result = shapes_.step(batch);
  Calls calls;
  for (const std::int32_t l : unit.layers) {
    const auto at = [&](std::int32_t i) {
      return result.calls.begin() + static_cast<std::ptrdiff_t>(result.first_call[static_cast<std::size_t>(i)]);
    };
    calls.push_back({});
    calls.insert(calls.end(), at(l), at(l + 1));
    if (fetches_) add_fetches(result, static_cast<std::size_t>(l), calls);
  }
  return calls;
}

// Other layers hold as many tokens.
StepOps::Seq StepOps::seq_of(const Unit& unit, const Member& m) const {
  Seq seq{m.seq->seen_tokens, 1, m.seq->prompt_tokens, {m.rows.begin(), m.rows.end()}, m.seq->inputs};
  if (m.rows.size() == 1 || unit.layers.size() == static_cast<std::size_t>(model_.num_layers)) return seq;
  for (std::int32_t l = 1; l < model_.num_layers; ++l) seq.held.insert(seq.held.end(), m.rows.begin(), m.rows.end());
  return seq;
}

StepOps::Standing StepOps::standing(const Unit& unit, const Member& m) {
  const Seq& seq = *m.seq;
  const SeqStep step{0, seq.seen_tokens, 1, seq.prompt_tokens, -1};
  const bool alike = m.rows.size() == 1;
  std::int32_t target = ShapeRun::kNoCut;
  if (acts_in_decode_ && alike && !shapes_.policy().has_shares())
    target = shapes_.policy().target(step, m.rows.front() + 1).value_or(ShapeRun::kNoCut);
  else if (acts_in_decode_)
    target = shapes_.targets(seq_of(unit, m)).common;
  const bool is_cut = target != ShapeRun::kNoCut;
  const auto whole = std::count(m.rows.begin(), m.rows.end(), seq.seen_tokens), rows = std::ssize(m.rows);
  Standing at;
  at.is_cut = is_cut;
  at.is_first = seq.seen_tokens == seq.prompt_tokens;
  at.only_whole_grow = whole > 0 && whole < rows && is_cut;
  at.length = (at.only_whole_grow ? seq.seen_tokens : m.rows.front()) + 1;
  at.key = shapes_.policy().step_key(step, is_cut ? std::optional(target) : std::nullopt, at.length, whole == rows);
  if (!alike) {  // from the first row; -1: whole
    std::vector<std::int32_t> pattern;
    const std::int32_t from = at.only_whole_grow ? 0 : m.rows.front();
    for (const std::int32_t h : m.rows) pattern.push_back(at.only_whole_grow && h == seq.seen_tokens ? -1 : h - from);
    pattern.push_back(whole > 0 && !at.only_whole_grow ? seq.seen_tokens - from : -1);
    at.key.add(patterns_.try_emplace(runs_of(pattern), static_cast<std::int32_t>(patterns_.size())).first->second);
  }
  const KvPolicy& policy = shapes_.policy();
  const bool has_lines = target != ShapeRun::kLayersDiffer && (whole == rows || !fetches_) && (alike || !policy.reads_shares());
  at.range = has_lines ? policy.affine_lengths(at.length, is_cut ? std::optional(target) : std::nullopt, at.only_whole_grow)
                       : Lengths::only(at.length);
  if (target == ShapeRun::kLayersDiffer) at.key.add(seq.seen_tokens), at.key.add(seq.prompt_tokens);
  return at;
}

// None without such a state or with another key.
std::optional<StepOps::Seq> StepOps::moved(const Unit& unit, const Member& m, const Standing& at, std::int32_t length) {
  const std::int32_t by = length - at.length;
  Seq other = *m.seq;
  other.seen_tokens += by;
  if (other.seen_tokens < 2) return std::nullopt;
  other.prompt_tokens = at.is_first ? other.seen_tokens : std::min(other.prompt_tokens, other.seen_tokens - 1);
  std::vector<std::int32_t> rows(m.rows.begin(), m.rows.end());
  for (std::int32_t& h : rows)
    if (!at.only_whole_grow || h == m.seq->seen_tokens)
      if ((h += by) < 1) return std::nullopt;
  const Member there{&other, rows};
  if (standing(unit, there).key != at.key) return std::nullopt;
  return seq_of(unit, there);
}

// Numbers a set of operations; a sequence that calls only it becomes a member.
std::int32_t StepOps::kind_of(Unit& unit, const Calls& calls, const Seq& seq, std::int32_t company) {
  std::vector<std::string_view> names;
  Calls bare;
  for (const OpCall& c : calls) names.push_back(c.op), bare.push_back({c.op});
  const auto kind =
      static_cast<std::size_t>(unit.kinds.try_emplace(std::move(names), static_cast<std::int32_t>(unit.kinds.size())).first->second);
  if (kind == unit.member.size()) unit.member.emplace_back(), unit.names.push_back(std::move(bare));
  if (company == 0 && !unit.member[kind]) unit.member[kind] = seq;
  return static_cast<std::int32_t>(kind);
}

// None for other operations.
std::optional<StepOps::Calls> StepOps::added(const Unit& unit, const Seq& seq, std::int32_t company) {
  const Unit::Company& with = unit.companies[static_cast<std::size_t>(company)];
  std::vector<Seq> batch = with.members;
  batch.push_back(seq);
  Calls calls = run(unit, batch);
  if (company == 0) return calls;
  if (!same_operations(calls, with.calls)) return std::nullopt;
  return plus(std::move(calls), with.calls, -1);
}

// Through this length and a neighbor, or only this length.
StepOps::Line StepOps::make(Unit& unit, const Member& m, const Standing& at, std::int32_t company, Calls calls) {
  Line line{at.length, at.length + 1, kind_of(unit, calls, seq_of(unit, m), company), {}, {}, read_of(calls), {}};
  for (const std::int32_t by : {1, -1}) {
    if (at.length + by >= at.range.end || at.length + by < at.range.begin) continue;
    const std::optional<Seq> beside = moved(unit, m, at, at.length + by);
    std::optional<Calls> there = beside ? added(unit, *beside, company) : std::nullopt;
    if (!there || !same_operations(*there, calls)) continue;
    calls = add_stored(unit, std::move(calls), at.length, -1);
    Calls slope = plus(add_stored(unit, std::move(*there), at.length + by, -1), calls, -1);
    if (by < 0) slope = plus(Calls(slope), slope, -2);
    line.end = at.range.end;
    line.slope = CallRow(slope);
    line.read = read_of(calls), line.read_slope = read_of(slope);
    break;
  }
  line.base = CallRow(calls);
  return line;
}

StepOps::Place StepOps::find(Unit& unit, const Member& m, const Standing& at, std::int32_t company, Line* before) {
  StepKey key = at.key;
  key.add(company);
  key.add(at.range.begin);
  auto known = unit.lines.find(key);
  const bool is_point = known != unit.lines.end() && known->second.slope.empty() && known->second.begin != at.length;
  if (is_point) {  // each length is a point
    key.add(at.length);
    known = unit.lines.find(key);
  }
  if (known == unit.lines.end()) {
    std::optional<Calls> calls = added(unit, seq_of(unit, m), company);
    if (!calls) return {};
    Standing here = at;
    if (is_point) here.range = Lengths::only(at.length);
    known = unit.lines.emplace(key, make(unit, m, here, company, std::move(*calls))).first;
    unit.calls_per_line = std::max(unit.calls_per_line, known->second.base.num_calls() + known->second.slope.num_calls());
  }
  Line& line = known->second;
  if (before != nullptr && before->end == at.length) before->next = &line;
  return {&line, at.length - line.begin};
}

bool StepOps::Place::follow() {
  while (left() <= 0) {
    if (line->next == nullptr) return false;
    further += line->begin - line->next->begin;
    line = line->next;
  }
  return true;
}

// Encoded rows that attention reads.
StepOps::Calls StepOps::add_stored(const Unit& unit, Calls calls, std::int32_t len, std::int64_t times) const {
  if (!shapes_.policy().reads_shares()) return calls;
  auto layer = unit.layers.begin();
  for (OpCall& c : calls) {
    if (c.op.empty() && &c != &calls.front()) ++layer;
    if (is_attention(c)) c.bytes += times * model_.kv_heads * shapes_.policy().stored_bytes(*layer, len, c.tokens / model_.kv_heads);
  }
  return calls;
}

StepOps::Calls StepOps::calls_of(const Unit& unit, const Place& at) const {
  Calls calls = unit.names[static_cast<std::size_t>(at.line->kind)];
  CallRow row = at.line->base;
  if (!at.line->slope.empty()) row.add(at.line->slope, at.further);
  row.write(calls);
  if (at.line->slope.empty()) return calls;
  return add_stored(unit, std::move(calls), at.line->begin + static_cast<std::int32_t>(at.further), 1);
}

std::int32_t StepOps::company_of(Unit& unit, std::span<const Cursor> cursors) {
  kinds_.clear();
  for (const Cursor& c : cursors)
    if (const std::int32_t kind = c.alone.line->kind; kinds_.empty() || kind != kinds_.back())
      if (std::find(kinds_.begin(), kinds_.end(), kind) == kinds_.end()) kinds_.push_back(kind);
  if (kinds_.size() == 1) return 0;
  std::sort(kinds_.begin(), kinds_.end());
  const auto [at, is_new] = unit.company_ids.try_emplace(kinds_, static_cast<std::int32_t>(unit.companies.size()));
  if (is_new) {
    Unit::Company company;
    for (const std::int32_t kind : kinds_) company.members.push_back(*unit.member[static_cast<std::size_t>(kind)]);
    company.calls = run(unit, company.members);
    unit.companies.push_back(std::move(company));
  }
  return at->second;
}

}  // namespace kvlab
