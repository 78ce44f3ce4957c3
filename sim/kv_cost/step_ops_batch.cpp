#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "sim/kv_cost/step_ops.h"

namespace kvlab {

namespace {

constexpr std::size_t kMostLines = 1 << 16, kMostCalls = 1 << 19, kMostLeft = 8;

bool is_even(std::span<const std::int32_t> rows) {
  return rows.size() == 1 || std::all_of(rows.begin(), rows.end(), [&](std::int32_t h) { return h == rows.front(); });
}

// Without the calls that begin layers.
std::vector<std::vector<OpCall>> split(const std::vector<OpCall>& calls) {
  std::vector<std::vector<OpCall>> layers;
  for (const OpCall& c : calls)
    if (c.op.empty())
      layers.emplace_back();
    else
      layers.back().push_back(c);
  return layers;
}

LayerCalls classes(const std::vector<std::vector<OpCall>>& calls) {
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

std::int32_t StepOps::Cursor::held(std::size_t row) const {
  const std::int32_t h = walk->seq.held[row];
  return h + (h == walk->seq.seen_tokens ? static_cast<std::int32_t>(at) : walk->grown_by(at));
}

StepOps::Seq StepOps::Cursor::seq() const {
  Seq seq = walk->seq;
  seq.seen_tokens = this->seen();
  for (std::size_t row = 0; row < seq.held.size(); ++row) seq.held[row] = held(row);
  return seq;
}

StepOps::Trail& StepOps::trail_at(Unit& unit, std::int32_t prompt, std::int32_t number) {
  const std::uint32_t hash = (static_cast<std::uint32_t>(prompt) * 0x9E3779B1U ^ static_cast<std::uint32_t>(number)) * 0x85EBCA77U;
  return unit.trails[(hash >> 16) % kTrails];
}

// Places are known until then.
void StepOps::Cursor::stay(std::size_t step) {
  until = lasts;
  if (grows == 0) return;
  std::int64_t on = grows == 1 ? alone.left() : 1;
  if (company != 0) on = std::min(on, joint.left());
  until = std::min(until, step + static_cast<std::size_t>(on));
}

void StepOps::look_up(Unit& unit, Cursor& c, std::size_t step, Line* before) {
  const Seq seq = c.seq();
  const Member member = c.member(seq);
  const Standing at = standing(unit, member);
  c.alone = find(unit, member, at, 0, before);
  c.grows = at.only_whole_grow ? 1 : c.cut;
  c.lasts = step + static_cast<std::size_t>(at.key.lasts());
  if (c.num_rows > 1 || step > 0) return;
  const std::int32_t held = member.rows.front();
  c.trail = &trail_at(unit, seq.prompt_tokens, at.is_cut && held < seq.seen_tokens ? held : held - seq.seen_tokens);
  *c.trail = {seq.prompt_tokens, seq.seen_tokens, held, at.key.lasts(), c.alone, {}, 0};
}

void StepOps::put(Unit& unit, Cursor& c, std::size_t step) {
  c.at = step;
  c.company = 0;
  c.trail = nullptr;
  c.cut = step + 1 < c.walk->grown.size() ? c.walk->grown[step + 1] - c.walk->grown[step] : c.usual;
  const std::int32_t prompt = c.walk->seq.prompt_tokens, seen = c.seen(), held = c.held(c.first_row);
  Line* before = nullptr;
  for (const std::int32_t number : {held - seen, held}) {
    if (c.num_rows > 1) break;
    Trail& trail = trail_at(unit, prompt, number);
    if (!trail.holds(prompt, seen, held)) continue;
    c.alone = {trail.alone.line, trail.alone.further + held - trail.held};
    const bool is_known = held == trail.held || c.alone.follow();
    if (!is_known) {
      before = c.alone.line;
      break;
    }
    c.grows = c.cut;
    c.lasts = step + static_cast<std::size_t>(trail.lasts - (seen - trail.seen));
    if (step > 0) return;
    trail.move(seen, held);
    trail.alone = c.alone;
    c.trail = &trail;
    return;
  }
  look_up(unit, c, step, before);
}

// False: no sum.
bool StepOps::join(Unit& unit, Cursor& c, std::int32_t company) {
  if (c.company == company) return true;
  c.company = 0;
  const std::int32_t held = c.held(c.first_row);
  // Another sequence may have taken the trail.
  Trail* const trail =
      c.trail != nullptr && c.trail->prompt == c.walk->seq.prompt_tokens && c.trail->seen == c.seen() && c.trail->held == held ? c.trail
                                                                                                                               : nullptr;
  const bool has_joint = trail != nullptr && trail->company == company;
  if (has_joint) c.joint = trail->joint;
  if (!has_joint || !c.joint.follow()) {
    const Seq seq = c.seq();
    const Member member = c.member(seq);
    c.joint = find(unit, member, standing(unit, member), company, has_joint ? c.joint.line : nullptr);
    if (c.joint.line == nullptr) return false;
  }
  if (trail != nullptr) trail->joint = c.joint, trail->company = company;
  c.company = company;
  return true;
}

bool StepOps::join(Unit& unit, Batch& batch, std::size_t step) {
  batch.company = company_of(unit, batch.cursors);
  for (Cursor& c : batch.cursors) {
    if (batch.company == 0) c.joint = c.alone, c.company = 0;
    if (c.company == batch.company) continue;
    if (c.at != step) put(unit, c, step);
    if (!join(unit, c, batch.company)) return false;
    c.stay(step);
  }
  return true;
}

// To the lines of the grown row.
bool StepOps::move_on(Cursor& c, std::size_t step) {
  if (step >= c.lasts || c.grows != 1 || c.num_rows > 1 || (step > 0 && !c.gains_as_before(step))) return false;
  c.alone.further += 1, c.joint.further += 1;
  if (!c.alone.follow() || (c.company != 0 && !c.joint.follow())) return false;
  c.at = step;
  return true;
}

// Collects sequences with other lines, with former places.
void StepOps::advance(Unit& unit, std::span<Cursor> cursors, std::size_t step) {
  if (step > 0) changed_.clear();
  for (Cursor& c : cursors) {
    if (step < c.until && (step == 0 || c.gains_as_before(step))) {
      c.alone.further += c.grows, c.joint.further += c.grows;
      continue;
    }
    changed_.push_back({&c, {c.joint.line, c.joint.further + c.grows}, c.grows});
    if (!move_on(c, step)) put(unit, c, step);
    c.stay(step);
  }
}

bool StepOps::Cursor::goes_on_to(const Walk& next) const {
  return leads_to(next) && is_even(next.seq.held) && next.seq.held.front() - held_before == grows;
}

void StepOps::Cursor::pass_to(const Walk& next) {
  walk = &next;
  at = SIZE_MAX;  // not put in this step
  until -= 1, lasts -= 1;
  trail = nullptr;
  seen_before = next.seq.seen_tokens, held_before = next.seq.held.front();
}

// Sequences that are a token further keep their places, though some before them left.
void StepOps::take(Batch& batch, std::span<const Walk> walks) {
  changed_.clear();
  std::vector<Cursor>&cursors = batch.cursors, &before = batch.before;
  std::size_t same = 0;
  while (same < std::min(cursors.size(), walks.size()) && cursors[same].goes_on_to(walks[same])) cursors[same].pass_to(walks[same]), ++same;
  before.assign(cursors.begin() + static_cast<std::ptrdiff_t>(same), cursors.end());
  cursors.resize(same);
  std::size_t from = 0;
  const auto leave = [&](const Cursor& c) { changed_.push_back({nullptr, {c.joint.line, c.joint.further + c.grows}, c.grows}); };
  for (const Walk& walk : walks.subspan(same)) {
    const std::vector<std::int32_t>& held = walk.seq.held;
    const std::size_t num_rows = is_even(held) ? 1 : held.size();
    std::size_t at = from;
    const std::size_t end = num_rows > 1 ? from : std::min(before.size(), from + kMostLeft);
    while (at < end && !before[at].leads_to(walk)) ++at;
    Cursor& c = cursors.emplace_back();
    if (at < end) {
      for (; from < at; ++from) leave(before[from]);
      ++from;
      if (before[at].goes_on_to(walk)) {
        c = before[at];
        c.pass_to(walk);
        continue;
      }
      leave(before[at]);
      c.usual = held.front() == before[at].held_before ? 0 : 1;
    }
    c.walk = &walk;
    c.num_rows = num_rows;
    c.prompt = walk.seq.prompt_tokens, c.seen_before = walk.seq.seen_tokens, c.held_before = held.front();
  }
  for (; from < before.size(); ++from) leave(before[from]);
}

void StepOps::take_layer(Batch& batch, std::span<const Walk> walks, std::size_t layer) {
  changed_.clear();
  batch.cursors.clear();
  const auto heads = static_cast<std::size_t>(model_.kv_heads);
  for (const Walk& walk : walks) {
    Cursor& c = batch.cursors.emplace_back();
    c.walk = &walk;
    c.num_rows = 1;
    if (is_even(walk.seq.held)) continue;
    c.first_row = layer * heads;
    c.num_rows = is_even(std::span(walk.seq.held).subspan(c.first_row, heads)) ? 1 : heads;
  }
}

void StepOps::add_reads(const Unit& unit, std::span<const Cursor> cursors, std::int64_t times, std::span<Read> reads) const {
  const bool reads_shares = shapes_.policy().reads_shares();
  for (std::size_t s = 0; s < reads.size(); ++s) {
    const auto& [line, further] = cursors[s].alone;
    const std::int64_t bytes =
        reads_shares ? read_of(calls_of(unit, cursors[s].alone)).bytes : line->read.bytes + further * line->read_slope.bytes;
    reads[s].bytes += times * bytes;
    reads[s].flops += times * (line->read.flops + further * line->read_slope.flops);
  }
}

std::vector<StepOps::Calls> StepOps::decode(Unit& unit, Batch& batch, std::size_t steps, std::int64_t times, std::span<Read> reads) {
  std::vector<Calls> totals(steps);
  const std::span<Cursor> cursors = batch.cursors;
  for (std::size_t i = 0; i < steps; ++i) {
    advance(unit, cursors, i);
    if (!reads.empty()) add_reads(unit, cursors, times, reads.subspan(i * cursors.size(), cursors.size()));
    const bool follows = batch.is_sum && !shapes_.policy().reads_shares();
    if (follows && batch.is_flat && changed_.empty() && i > 0) {
      totals[i] = totals[i - 1];
      continue;
    }
    if (follows && !batch.is_flat) batch.total.add(batch.slope, 1);
    if (!follows || (!changed_.empty() && !exchange_lines(unit, batch))) {
      batch.is_sum = join(unit, batch, i);
      if (!batch.is_sum) {
        totals[i] = run_all(unit, cursors, i);
        continue;
      }
      sum(unit, batch);
    }
    if (!follows || !changed_.empty()) batch.is_flat = batch.slope.adds_nothing();
    totals[i] = unit.names[static_cast<std::size_t>(cursors.front().joint.line->kind)];
    batch.total.write(totals[i]);
  }
  return totals;
}

StepOps::Calls StepOps::run_all(Unit& unit, std::span<Cursor> cursors, std::size_t step) {
  std::vector<Seq> seqs;
  for (Cursor& c : cursors) {
    if (c.at != step) put(unit, c, step), c.stay(step);
    const Seq seq = c.seq();
    seqs.push_back(seq_of(unit, c.member(seq)));
  }
  return run(unit, seqs);
}

// For few changes. False: sum all again, as the company changed or calls share bytes.
bool StepOps::exchange_lines(Unit& unit, Batch& batch) {
  if (2 * changed_.size() > batch.cursors.size() || batch.total.shares() || batch.slope.shares()) return false;
  if (company_of(unit, batch.cursors) != batch.company) return false;
  for (const Changed& change : changed_) {
    if (change.before.line != nullptr) add_line(batch, change.before, change.grows, -1);
    if (change.cursor == nullptr) continue;
    Cursor& c = *change.cursor;
    if (batch.company == 0)
      c.joint = c.alone;
    else if (!join(unit, c, batch.company))
      return false;
    c.stay(c.at);
    add_line(batch, c.joint, c.grows, 1);
  }
  return true;
}

void StepOps::add_line(Batch& batch, const Place& at, std::int32_t grows, std::int64_t sign) {
  batch.total.add(at.line->base, sign);
  if (at.line->slope.empty()) return;
  batch.total.add(at.line->slope, sign * at.further);
  if (grows != 0) batch.slope.add(at.line->slope, sign * grows);
}

// And the increment per step.
void StepOps::sum(const Unit& unit, Batch& batch) {
  const std::size_t num_calls = batch.cursors.front().joint.line->base.num_calls();
  batch.total.clear(num_calls, has_counts_), batch.slope.clear(num_calls, has_counts_);
  if (!shapes_.policy().reads_shares()) return sum_lines(batch);
  for (const Cursor& c : batch.cursors) batch.total.add(CallRow(calls_of(unit, c.joint)), 1);
}

void StepOps::sum_lines(Batch& batch) {
  summed_.clear();
  for (const Cursor& c : batch.cursors) {
    Line& line = *c.joint.line;
    if (line.count++ == 0) {
      summed_.push_back(&line);
      line.further = line.gains = 0, line.is_further = line.grows = false;
    }
    line.further += c.joint.further, line.is_further |= c.joint.further != 0;
    line.gains += c.grows, line.grows |= c.grows != 0;
  }
  for (Line* line : summed_) {
    batch.total.add(line->base, std::exchange(line->count, 0));
    if (line->slope.empty()) continue;
    if (line->is_further) batch.total.add(line->slope, line->further);
    if (line->grows) batch.slope.add(line->slope, line->gains);
  }
}

LayerCalls StepOps::decode(std::span<const Seq> batch) {
  std::vector<Walk> walks;
  for (const Seq& seq : batch) walks.push_back({seq});
  return std::move(decode(walks, 1).front());
}

// True: each sequence has equal rows.
bool StepOps::check(std::span<const Walk> batch) const {
  bool alike = true;
  for (const Walk& walk : batch) {
    const Seq& seq = walk.seq;
    if (seq.new_tokens != 1 || seq.seen_tokens < seq.prompt_tokens || seq.held.empty() || !seq.inputs.pass.empty())
      throw InternalError("a decode step has one new token per sequence, and tokens held before it");
    alike = alike && is_even(seq.held);
  }
  return alike;
}

std::vector<LayerCalls> StepOps::decode(std::span<const Walk> batch, std::size_t steps, std::span<Read> reads) {
  for (Unit& unit : units_)
    if (unit.lines.size() > std::min(kMostLines, kMostCalls / std::max<std::size_t>(1, unit.calls_per_line))) unit.forget();
  std::vector<LayerCalls> all(steps, {unit_of_layer_, {}});
  if (batch.empty()) return std::vector<LayerCalls>(steps, {std::vector<std::int32_t>(unit_of_layer_.size(), 0), {{}}});
  const bool alike = check(batch);
  const auto run_unit = [&](Unit& unit) {
    Batch& of = steps == 1 ? unit.batch : passing_;
    if (steps > 1) of.cursors.clear(), of.is_sum = false;
    take(of, batch);
    return decode(unit, of, steps, unit.times, reads);
  };
  if (is_joint_) {
    const std::vector<Calls> calls = run_unit(units_[0]);
    for (std::size_t i = 0; i < steps; ++i) all[i] = i > 0 && calls[i] == calls[i - 1] ? all[i - 1] : classes(split(calls[i]));
    return all;
  }
  if (alike) {
    for (Unit& unit : units_) {
      std::vector<Calls> calls = run_unit(unit);
      for (std::size_t i = 0; i < steps; ++i) {
        calls[i].erase(calls[i].begin());  // of its only layer
        all[i].calls.push_back(std::move(calls[i]));
      }
    }
    return all;
  }
  std::vector<std::vector<Calls>> layers(steps);
  for (std::size_t l = 0; l < unit_of_layer_.size(); ++l) {
    passing_.is_sum = false;
    take_layer(passing_, batch, l);
    const std::vector<Calls> calls = decode(units_[static_cast<std::size_t>(unit_of_layer_[l])], passing_, steps, 1, reads);
    for (std::size_t i = 0; i < steps; ++i) layers[i].push_back(std::move(split(calls[i]).front()));
  }
  for (std::size_t i = 0; i < steps; ++i) all[i] = classes(layers[i]);
  return all;
}

}  // namespace kvlab
