#include "policies/kv/step_ops.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace kvlab {

namespace {

template <class F>
OpCall combined(const OpCall& a, const OpCall& b, F&& f) {
  return {a.op, f(a.rows, b.rows), f(a.tokens, b.tokens), f(a.outputs, b.outputs), f(a.bytes, b.bytes), f(a.flops, b.flops)};
}

using PerLayer = std::vector<std::vector<OpCall>>;

bool same_operations(const PerLayer& a, const PerLayer& b) {
  const auto same_op = [](const OpCall& x, const OpCall& y) { return x.op == y.op; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const auto& x, const auto& y) { return std::equal(x.begin(), x.end(), y.begin(), y.end(), same_op); });
}

// a - b; both have the same operations.
PerLayer difference(PerLayer a, const PerLayer& b) {
  for (std::size_t l = 0; l < a.size(); ++l)
    for (std::size_t i = 0; i < a[l].size(); ++i) a[l][i] = combined(a[l][i], b[l][i], std::minus<>());
  return a;
}

StepOps::Read read_of(const PerLayer& calls) {
  StepOps::Read read;
  for (const auto& layer : calls)
    for (const OpCall& c : layer)
      if (c.op == "attend") read.bytes += c.bytes, read.flops += c.flops;
  return read;
}

// Layers with equal calls become one class.
LayerCalls classes(const PerLayer& calls) {
  LayerCalls found;
  for (const std::vector<OpCall>& layer : calls) {
    std::size_t c = 0;
    while (c < found.calls.size() && found.calls[c] != layer) ++c;
    if (c == found.calls.size()) found.calls.push_back(layer);
    found.class_of_layer.push_back(static_cast<std::int32_t>(c));
  }
  return found;
}

}  // namespace

StepOps::StepOps(const Recipe& recipe, const ModelShape& model)
    : model_(model), fetches_(!recipe.selects_all), acts_in_decode_(recipe.make_trigger()->in_decode()), shapes_(recipe, model) {
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

StepOps::PerLayer StepOps::run(const Unit& unit, std::span<const Seq> batch) {
  ++runs_;
  if (running_ != &unit) shapes_.run_only(unit.layers);
  running_ = &unit;
  const ShapeRun::Result result = shapes_.step(batch);
  PerLayer calls;
  for (const std::int32_t l : unit.layers) {
    const auto at = [&](std::int32_t i) {
      return result.calls.begin() + static_cast<std::ptrdiff_t>(result.first_call[static_cast<std::size_t>(i)]);
    };
    calls.emplace_back(at(l), at(l + 1));
    if (fetches_) calls.back().push_back({kFetch, 0, 0, 0, result.fetched[static_cast<std::size_t>(l)], 0});
  }
  return calls;
}

// The sequence as ShapeRun takes it: layers that do not run hold what those that run do.
StepOps::Seq StepOps::seq_of(const Unit& unit, const Member& m) const {
  Seq seq{m.seq->seen_tokens, 1, m.seq->prompt_tokens, {m.rows.begin(), m.rows.end()}, m.seq->extras};
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
  at.is_first = seq.seen_tokens == seq.prompt_tokens;
  at.only_whole_grow = whole > 0 && whole < rows && is_cut;
  at.length = (at.only_whole_grow ? seq.seen_tokens : m.rows.front()) + 1;
  at.key = shapes_.policy().step_key(step, is_cut ? std::optional(target) : std::nullopt, at.length, whole == rows);
  if (!alike) {  // rows as they differ from the first, and whole ones as such
    std::vector<std::int32_t> pattern;
    const std::int32_t from = at.only_whole_grow ? 0 : m.rows.front();
    for (const std::int32_t h : m.rows) pattern.push_back(at.only_whole_grow && h == seq.seen_tokens ? -1 : h - from);
    pattern.push_back(whole > 0 && !at.only_whole_grow ? seq.seen_tokens - from : -1);
    at.key.add(patterns_.try_emplace(std::move(pattern), static_cast<std::int32_t>(patterns_.size())).first->second);
  }
  at.range = target == ShapeRun::kLayersDiffer ? Lengths::only(at.length) : shapes_.policy().affine_lengths(at.length, is_cut);
  if (target == ShapeRun::kLayersDiffer) at.key.add(seq.seen_tokens), at.key.add(seq.prompt_tokens);
  return at;
}

// The sequence at another length, if nothing else happens between; nothing where there is no such state or its key differs.
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

// Which operations the layers call. A kind met alone gets the sequence as its member.
std::int32_t StepOps::kind_of(Unit& unit, const PerLayer& calls, const Seq& seq, std::int32_t company) {
  std::vector<std::string_view> names;
  for (const auto& layer : calls) {
    names.emplace_back();
    for (const OpCall& c : layer) names.push_back(c.op);
  }
  const auto kind =
      static_cast<std::size_t>(unit.kinds.try_emplace(std::move(names), static_cast<std::int32_t>(unit.kinds.size())).first->second);
  if (kind == unit.member.size()) unit.member.emplace_back();
  if (company == 0 && !unit.member[kind]) unit.member[kind] = seq;
  return static_cast<std::int32_t>(kind);
}

// What the sequence adds to the calls of its company; nothing where it changes which operations are called.
std::optional<StepOps::PerLayer> StepOps::added(const Unit& unit, const Seq& seq, std::int32_t company) {
  const Unit::Company& with = unit.companies[static_cast<std::size_t>(company)];
  std::vector<Seq> batch = with.members;
  batch.push_back(seq);
  PerLayer calls = run(unit, batch);
  if (company == 0) return calls;
  if (!same_operations(calls, with.calls)) return std::nullopt;
  return difference(std::move(calls), with.calls);
}

// A line through this length and one beside it, or the one length of `calls`.
StepOps::Line StepOps::make(Unit& unit, const Member& m, const Standing& at, std::int32_t company, PerLayer calls) {
  Line line{at.length, kind_of(unit, calls, seq_of(unit, m), company), std::move(calls), {}, {}, {}};
  line.read = read_of(line.base);
  for (const std::int32_t by : {1, -1}) {
    if (at.length + by >= at.range.end || at.length + by < at.range.begin) continue;
    const std::optional<Seq> beside = moved(unit, m, at, at.length + by);
    std::optional<PerLayer> there = beside ? added(unit, *beside, company) : std::nullopt;
    if (!there || !same_operations(*there, line.base)) continue;
    line.slope = by > 0 ? difference(std::move(*there), line.base) : difference(line.base, *there);
    line.read_slope = read_of(line.slope);
    break;
  }
  return line;
}

StepOps::Place StepOps::place(const Line& line, const Standing& at) {
  on_lines_ = on_lines_ && (!line.slope.empty() || at.range.end - at.range.begin == 1);
  return {&line, at.length - line.begin};
}

StepOps::Place StepOps::find(Unit& unit, const Member& m, std::int32_t company) {
  const Standing at = standing(unit, m);
  StepKey key = at.key;
  key.add(company);
  key.add(at.range.begin);
  const auto known = unit.lines.find(key);
  if (known != unit.lines.end() && (!known->second.slope.empty() || known->second.begin == at.length)) return place(known->second, at);
  // Where no other length was found beside the first, every length is a point.
  StepKey point = key;
  point.add(at.length);
  const bool is_point = known != unit.lines.end();
  if (is_point)
    if (const auto found = unit.lines.find(point); found != unit.lines.end()) return place(found->second, at);
  std::optional<PerLayer> calls = added(unit, seq_of(unit, m), company);
  if (!calls) return {};
  Standing here = at;
  if (is_point) here.range = Lengths::only(at.length);
  Line line = make(unit, m, here, company, std::move(*calls));
  return place(unit.lines.emplace(is_point ? point : key, std::move(line)).first->second, at);
}

// The set of kinds in a batch.
std::int32_t StepOps::company_of(Unit& unit, std::span<const Place> places) {
  std::set<std::int32_t> kinds;
  for (const Place& p : places) kinds.insert(p.line->kind);
  if (kinds.size() == 1) return 0;
  const auto [at, is_new] =
      unit.company_ids.try_emplace(std::vector(kinds.begin(), kinds.end()), static_cast<std::int32_t>(unit.companies.size()));
  if (is_new) {
    Unit::Company company;
    for (const std::int32_t kind : kinds) company.members.push_back(*unit.member[static_cast<std::size_t>(kind)]);
    company.calls = run(unit, company.members);
    unit.companies.push_back(std::move(company));
  }
  return at->second;
}

StepOps::PerLayer StepOps::decode(Unit& unit, std::span<const Member> batch, std::int64_t times, std::span<Read> reads) {
  std::vector<Place> places;
  for (std::size_t s = 0; s < batch.size(); ++s) {
    const Place p = places.emplace_back(find(unit, batch[s], 0));
    if (!reads.empty()) {
      reads[s].bytes += times * (p.line->read.bytes + p.further * p.line->read_slope.bytes);
      reads[s].flops += times * (p.line->read.flops + p.further * p.line->read_slope.flops);
    }
  }
  if (const std::int32_t company = company_of(unit, places); company != 0) {
    for (std::size_t s = 0; s < batch.size(); ++s) {
      if (places[s] = find(unit, batch[s], company); places[s].line != nullptr) continue;
      std::vector<Seq> seqs;
      for (const Member& m : batch) seqs.push_back(seq_of(unit, m));
      on_lines_ = false;
      return run(unit, seqs);
    }
  }
  PerLayer total = places.front().line->base;
  for (std::size_t s = 0; s < places.size(); ++s) {
    const auto& [line, further] = places[s];
    for (std::size_t l = 0; l < total.size(); ++l)
      for (std::size_t i = 0; i < total[l].size(); ++i) {
        if (s > 0) total[l][i] = combined(total[l][i], line->base[l][i], std::plus<>());
        if (further != 0)
          total[l][i] = combined(total[l][i], line->slope[l][i], [&](std::int64_t a, std::int64_t b) { return a + b * further; });
      }
  }
  return total;
}

LayerCalls StepOps::decode(std::span<const Seq> batch, std::span<Read> reads, bool* on_lines) {
  on_lines_ = true;
  if (batch.empty()) return {std::vector<std::int32_t>(static_cast<std::size_t>(model_.num_layers), 0), {{}}};
  std::vector<Member> members;
  bool alike = true;
  for (const Seq& seq : batch) {
    if (seq.new_tokens != 1 || seq.seen_tokens < seq.prompt_tokens || seq.held.empty() || !seq.extras.pass.empty())
      throw InternalError(
          "a decode step has one new token per sequence, and "
          "tokens held before it");
    const bool is_even = std::all_of(seq.held.begin(), seq.held.end(), [&](std::int32_t h) { return h == seq.held.front(); });
    members.push_back({&seq, is_even ? std::span(seq.held).first(1) : std::span(seq.held)});
    alike = alike && is_even;
  }
  const auto noting = [&](LayerCalls calls) {
    if (on_lines != nullptr) *on_lines = *on_lines && on_lines_;
    return calls;
  };
  if (is_joint_) return noting(classes(decode(units_[0], members, 1, reads)));
  if (alike) {
    LayerCalls all{unit_of_layer_, {}};
    for (Unit& unit : units_) all.calls.push_back(decode(unit, members, unit.times, reads).front());
    return noting(std::move(all));
  }
  PerLayer layers;
  const auto heads = static_cast<std::size_t>(model_.kv_heads);
  for (std::size_t l = 0; l < unit_of_layer_.size(); ++l) {
    std::vector<Member> of_layer = members;
    for (Member& m : of_layer) {
      if (m.rows.size() == 1) continue;
      m.rows = m.rows.subspan(l * heads, heads);
      if (std::all_of(m.rows.begin(), m.rows.end(), [&](std::int32_t h) { return h == m.rows.front(); })) m.rows = m.rows.first(1);
    }
    layers.push_back(decode(units_[static_cast<std::size_t>(unit_of_layer_[l])], of_layer, 1, reads).front());
  }
  return noting(classes(layers));
}

}  // namespace kvlab
