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
  return unit.trails[hash >> 23];
}

void StepOps::look_up(Unit& unit, Cursor& c, std::size_t step) {
  const Seq seq = c.seq();
  const Member member = c.member(seq);
  const Standing at = standing(unit, member);
  c.alone = find(unit, member, at, 0);
  const std::int64_t on_line = c.alone.line->slope.empty() ? 1 : at.range.end - at.length;
  c.grows = at.only_whole_grow ? 1 : c.cut;
  const std::int64_t holds = c.grows == 0 ? StepKey::kForEver : c.grows == 1 ? on_line : 1;
  c.until = step + static_cast<std::size_t>(std::min(at.key.lasts(), holds));
  if (c.num_rows > 1) return;
  const std::int32_t held = member.rows.front();
  c.trail = &trail_at(unit, seq.prompt_tokens, at.is_cut && held < seq.seen_tokens ? held : held - seq.seen_tokens);
  *c.trail = {seq.prompt_tokens, seq.seen_tokens, held, at.key.lasts(), on_line, c.alone, {}, 0};
}

void StepOps::put(Unit& unit, Cursor& c, std::size_t step) {
  c.at = step;
  c.company = 0;
  c.trail = nullptr;
  c.cut = step + 1 < c.walk->grown.size() ? c.walk->grown[step + 1] - c.walk->grown[step] : 1;
  const std::int32_t prompt = c.walk->seq.prompt_tokens, seen = c.seen(), held = c.held(c.first_row);
  for (const std::int32_t number : {held - seen, held}) {
    if (c.num_rows > 1) break;
    Trail& trail = trail_at(unit, prompt, number);
    if (!trail.holds(prompt, seen, held)) continue;
    c.trail = &trail;
    const std::int32_t more = held - trail.held;
    c.alone = {trail.alone.line, trail.alone.further + more};
    c.grows = c.cut;
    const std::int64_t holds = c.grows == 0 ? StepKey::kForEver : c.grows == 1 ? trail.on_line - more : 1;
    c.until = step + static_cast<std::size_t>(std::min(trail.lasts - (seen - trail.seen), holds));
    return;
  }
  look_up(unit, c, step);
}

// False: no sum. Its trail may have been reused.
bool StepOps::join(Unit& unit, Cursor& c, std::int32_t company) {
  const std::int32_t held = c.held(c.first_row);
  Trail* const trail = c.trail != nullptr && c.trail->holds(c.walk->seq.prompt_tokens, c.seen(), held) ? c.trail : nullptr;
  const std::int32_t more = trail != nullptr ? held - trail->held : 0;
  if (trail != nullptr && trail->company == company && (more == 0 || !trail->joint.line->slope.empty())) {
    c.joint = {trail->joint.line, trail->joint.further + more};
  } else {
    const Seq seq = c.seq();
    const Member member = c.member(seq);
    c.joint = find(unit, member, standing(unit, member), company);
    if (c.joint.line == nullptr) return false;
    if (trail != nullptr && (more == 0 || !c.joint.line->slope.empty()))
      trail->joint = {c.joint.line, c.joint.further - more}, trail->company = company;
  }
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
    if (c.joint.line->slope.empty() && c.grows != 0) c.until = step + 1;
  }
  return true;
}

// Appends sequences looked up again, with former places.
void StepOps::advance(Unit& unit, std::span<Cursor> cursors, std::size_t step) {
  changed_.clear();
  for (Cursor& c : cursors) {
    if (step > 0 && step < c.until && c.walk->grown[step] - c.walk->grown[step - 1] == c.cut) {
      c.alone.further += c.grows, c.joint.further += c.grows;
      continue;
    }
    changed_.push_back({&c, {c.joint.line, c.joint.further + c.grows}, c.grows});
    put(unit, c, step);
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
  Calls slope;
  bool is_sum = false, is_flat = false;
  const auto adds_nothing = [](const OpCall& c) { return (c.rows | c.tokens | c.outputs | c.bytes | c.flops | c.shared_bytes) == 0; };
  for (std::size_t i = 0; i < steps; ++i) {
    advance(unit, cursors, i);
    if (!reads.empty()) add_reads(unit, cursors, times, reads.subspan(i * cursors.size(), cursors.size()));
    if (is_sum && !shapes_.policy().reads_shares()) {
      totals[i] = totals[i - 1];
      if (!is_flat) add_times(totals[i], slope, 1);
      if (changed_.empty()) continue;
      is_flat = false;
      if (exchange_lines(unit, cursors, i, totals[i], slope)) continue;
    }
    is_sum = join(unit, cursors, i);
    if (is_sum) {
      sum(unit, cursors, totals[i], slope);
      is_flat = std::all_of(slope.begin(), slope.end(), adds_nothing);
      continue;
    }
    std::vector<Seq> seqs;
    for (Cursor& c : cursors) {
      if (c.at != i) put(unit, c, i);
      const Seq seq = c.seq();
      seqs.push_back(seq_of(unit, c.member(seq)));
    }
    totals[i] = run(unit, seqs);
  }
  return totals;
}

// For few changes. False: sum all again, as the company changed or calls share bytes.
bool StepOps::exchange_lines(Unit& unit, std::span<Cursor> cursors, std::size_t step, Calls& total, Calls& slope) {
  const auto shares = [](const OpCall& c) { return c.shared_bytes != 0; };
  if (2 * changed_.size() > cursors.size() || std::any_of(total.begin(), total.end(), shares)) return false;
  if (std::any_of(slope.begin(), slope.end(), shares) || company_of(unit, cursors) != company_) return false;
  for (const Changed& change : changed_) {
    Cursor& c = *change.cursor;
    if (company_ == 0)
      c.joint = c.alone;
    else if (!join(unit, c, company_))
      return false;
    if (c.joint.line->slope.empty() && c.grows != 0) c.until = step + 1;
    add_line(change.before, change.grows, -1, total, slope);
    add_line(c.joint, c.grows, 1, total, slope);
  }
  return true;
}

void StepOps::add_line(const Place& at, std::int32_t grows, std::int64_t sign, Calls& total, Calls& slope) {
  add_times(total, at.line->base, sign);
  if (at.line->slope.empty()) return;
  add_times(total, at.line->slope, sign * at.further);
  add_times(slope, at.line->slope, sign * grows);
}

// And the increment per step.
void StepOps::sum(const Unit& unit, std::span<const Cursor> cursors, Calls& total, Calls& slope) {
  total.clear();
  for (const OpCall& c : cursors.front().joint.line->base) total.push_back({c.op});
  slope = total;
  if (!shapes_.policy().reads_shares()) return sum_lines(cursors, total, slope);
  for (const Cursor& c : cursors) add_times(total, calls_of(unit, c.joint), 1);
}

void StepOps::sum_lines(std::span<const Cursor> cursors, Calls& total, Calls& slope) {
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
    add_times(total, line->base, std::exchange(line->count, 0));
    if (line->slope.empty()) continue;
    if (line->is_further) add_times(total, line->slope, line->further);
    if (line->grows) add_times(slope, line->slope, line->gains);
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
