#include <algorithm>
#include <utility>

#include "base/error.h"
#include "sim/kv_cost/step_ops.h"

namespace kvlab {

namespace {

constexpr std::size_t kMostLines = 1 << 16, kMostCalls = 1 << 19;

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
  c.cut = step + 1 < c.walk->grown.size() ? c.walk->grown[step + 1] - c.walk->grown[step] : 1;
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

bool StepOps::join(Unit& unit, std::span<Cursor> cursors, std::size_t step) {
  const std::int32_t company = company_ = company_of(unit, cursors);
  for (Cursor& c : cursors) {
    if (company == 0) c.joint = c.alone, c.company = 0;
    if (c.company == company) continue;
    if (c.at != step) put(unit, c, step);
    if (!join(unit, c, company)) return false;
    c.stay(step);
  }
  return true;
}

// To the lines of the grown row.
bool StepOps::move_on(Cursor& c, std::size_t step) const {
  if (step >= c.lasts || c.grows != 1 || c.num_rows > 1 || !c.gains_as_before(step)) return false;
  c.alone.further += 1, c.joint.further += 1;
  if (!c.alone.follow() || (c.company != 0 && !c.joint.follow())) return false;
  c.at = step;
  return true;
}

// Collects sequences with other lines, with former places.
void StepOps::advance(Unit& unit, std::span<Cursor> cursors, std::size_t step) {
  changed_.clear();
  for (Cursor& c : cursors) {
    if (step > 0 && step < c.until && c.gains_as_before(step)) {
      c.alone.further += c.grows, c.joint.further += c.grows;
      continue;
    }
    changed_.push_back({&c, {c.joint.line, c.joint.further + c.grows}, c.grows});
    if (step == 0 || !move_on(c, step)) put(unit, c, step);
    c.stay(step);
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

std::vector<StepOps::Calls> StepOps::decode(Unit& unit, std::span<Cursor> cursors, std::size_t steps, std::int64_t times,
                                            std::span<Read> reads) {
  std::vector<Calls> totals(steps);
  bool is_sum = false, is_flat = false;
  for (std::size_t i = 0; i < steps; ++i) {
    advance(unit, cursors, i);
    if (!reads.empty()) add_reads(unit, cursors, times, reads.subspan(i * cursors.size(), cursors.size()));
    const bool follows = is_sum && !shapes_.policy().reads_shares();
    if (follows && is_flat && changed_.empty()) {
      totals[i] = totals[i - 1];
      continue;
    }
    if (follows) total_.add(slope_, 1);
    if (!follows || (!changed_.empty() && !exchange_lines(unit, cursors))) {
      is_sum = join(unit, cursors, i);
      if (!is_sum) {
        totals[i] = run_all(unit, cursors, i);
        continue;
      }
      sum(unit, cursors, i + 1 < steps);
      is_flat = slope_.adds_nothing();
    } else if (!changed_.empty()) {
      is_flat = false;
    }
    totals[i] = unit.names[static_cast<std::size_t>(cursors.front().joint.line->kind)];
    total_.write(totals[i]);
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
bool StepOps::exchange_lines(Unit& unit, std::span<Cursor> cursors) {
  if (2 * changed_.size() > cursors.size() || total_.shares() || slope_.shares()) return false;
  if (company_of(unit, cursors) != company_) return false;
  for (const Changed& change : changed_) {
    Cursor& c = *change.cursor;
    if (company_ == 0)
      c.joint = c.alone;
    else if (!join(unit, c, company_))
      return false;
    c.stay(c.at);
    add_line(change.before, change.grows, -1);
    add_line(c.joint, c.grows, 1);
  }
  return true;
}

void StepOps::add_line(const Place& at, std::int32_t grows, std::int64_t sign) {
  total_.add(at.line->base, sign);
  if (at.line->slope.empty()) return;
  total_.add(at.line->slope, sign * at.further);
  if (grows != 0) slope_.add(at.line->slope, sign * grows);
}

// And the increment per step, if one follows.
void StepOps::sum(const Unit& unit, std::span<const Cursor> cursors, bool goes_on) {
  const std::size_t num_calls = cursors.front().joint.line->base.num_calls();
  total_.clear(num_calls), slope_.clear(num_calls);
  if (!shapes_.policy().reads_shares()) return sum_lines(cursors, goes_on);
  for (const Cursor& c : cursors) total_.add(CallRow(calls_of(unit, c.joint)), 1);
}

void StepOps::sum_lines(std::span<const Cursor> cursors, bool goes_on) {
  summed_.clear();
  for (const Cursor& c : cursors) {
    Line& line = *c.joint.line;
    if (line.count++ == 0) {
      summed_.push_back(&line);
      line.further = line.gains = 0, line.is_further = line.grows = false;
    }
    line.further += c.joint.further, line.is_further |= c.joint.further != 0;
    line.gains += c.grows, line.grows |= c.grows != 0;
  }
  for (Line* line : summed_) {
    total_.add(line->base, std::exchange(line->count, 0));
    if (line->slope.empty()) continue;
    if (line->is_further) total_.add(line->slope, line->further);
    if (line->grows && goes_on) slope_.add(line->slope, line->gains);
  }
}

LayerCalls StepOps::decode(std::span<const Seq> batch) {
  std::vector<Walk> walks;
  for (const Seq& seq : batch) walks.push_back({seq});
  return std::move(decode(walks, 1).front());
}

std::vector<LayerCalls> StepOps::decode(std::span<const Walk> batch, std::size_t steps, std::span<Read> reads) {
  for (Unit& unit : units_)
    if (unit.lines.size() > std::min(kMostLines, kMostCalls / std::max<std::size_t>(1, unit.calls_per_line))) unit.forget();
  std::vector<LayerCalls> all(steps, {unit_of_layer_, {}});
  if (batch.empty()) return std::vector<LayerCalls>(steps, {std::vector<std::int32_t>(unit_of_layer_.size(), 0), {{}}});
  const auto is_even = [](std::span<const std::int32_t> rows) {
    return std::all_of(rows.begin(), rows.end(), [&](std::int32_t h) { return h == rows.front(); });
  };
  std::vector<Cursor>& cursors = cursors_;
  cursors.clear();
  bool alike = true;
  for (const Walk& walk : batch) {
    const Seq& seq = walk.seq;
    if (seq.new_tokens != 1 || seq.seen_tokens < seq.prompt_tokens || seq.held.empty() || !seq.inputs.pass.empty())
      throw InternalError("a decode step has one new token per sequence, and tokens held before it");
    Cursor& c = cursors.emplace_back();
    c.walk = &walk;
    c.num_rows = is_even(seq.held) ? 1 : seq.held.size();
    alike = alike && c.num_rows == 1;
  }
  if (is_joint_) {
    const std::vector<Calls> calls = decode(units_[0], cursors, steps, 1, reads);
    for (std::size_t i = 0; i < steps; ++i) all[i] = i > 0 && calls[i] == calls[i - 1] ? all[i - 1] : classes(split(calls[i]));
    return all;
  }
  if (alike) {
    for (Unit& unit : units_) {
      std::vector<Calls> calls = decode(unit, cursors, steps, unit.times, reads);
      for (std::size_t i = 0; i < steps; ++i) {
        calls[i].erase(calls[i].begin());  // of its only layer
        all[i].calls.push_back(std::move(calls[i]));
      }
    }
    return all;
  }
  std::vector<std::vector<Calls>> layers(steps);
  const auto heads = static_cast<std::size_t>(model_.kv_heads);
  for (std::size_t l = 0; l < unit_of_layer_.size(); ++l) {
    std::vector<Cursor> of_layer = cursors;
    for (Cursor& c : of_layer) {
      if (c.num_rows == 1) continue;
      c.first_row = l * heads;
      c.num_rows = is_even(std::span(c.walk->seq.held).subspan(c.first_row, heads)) ? 1 : heads;
    }
    const std::vector<Calls> calls = decode(units_[static_cast<std::size_t>(unit_of_layer_[l])], of_layer, steps, 1, reads);
    for (std::size_t i = 0; i < steps; ++i) layers[i].push_back(std::move(split(calls[i]).front()));
  }
  for (std::size_t i = 0; i < steps; ++i) all[i] = classes(layers[i]);
  return all;
}

}  // namespace kvlab
