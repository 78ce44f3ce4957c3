#include "sim/kv_cost/shape_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace kvlab {

namespace {

// False: calls follow from rows.
bool keeps_state(const Recipe& recipe) {
  if (!recipe.selects_all || recipe.selects_in_prompts() || recipe.rewrites() || !recipe.is_native) return true;
  const RecipeParts parts(recipe);
  return !parts.disposal->keeps_no_state() || !parts.allocator->keeps_no_state() || (parts.scorer && !parts.scorer->keeps_no_state());
}

SeqStep step_of(const ShapeRun::Seq& seq) { return {0, seq.seen_tokens, seq.new_tokens, seq.prompt_tokens, -1}; }

TierBytes sum_of(const std::vector<TierBytes>& layers) {
  TierBytes all;
  for (const TierBytes& b : layers) all += b;
  return all;
}

void raise(TierBytes& peak, const TierBytes& now) {
  peak = {std::max(peak.gpu, now.gpu), std::max(peak.host, now.host), std::max(peak.disk, now.disk)};
}

}  // namespace

InputSizes input_sizes(const Needs& needs, const SeqStep& seq) {
  InputSizes inputs;
  inputs.question_begin = needs.assumed_question(seq.prompt_tokens);
  const bool runs = runs_after_chunks(needs.pass) ? !seq.decoding() : seq.completes_prompt();
  if (runs && !needs.pass.empty()) inputs.pass = pass_shapes(needs.pass, seq.prompt_tokens, std::min(seq.end(), seq.prompt_tokens));
  return inputs;
}

ShapeObserver::ShapeObserver(const Needs& needs, std::span<const SeqStep> seqs, std::span<const InputSizes> inputs)
    : needs_(needs), no_floats_(seqs.size(), nullptr), no_ints_(seqs.size(), nullptr) {
  const auto range = [](std::int32_t begin, std::int32_t end) { return Queries{nullptr, std::max(0, end - begin), begin}; };
  for (std::size_t s = 0; s < seqs.size(); ++s) {
    const std::int32_t end = seqs[s].end(), prompt_end = std::min(end, seqs[s].prompt_tokens);
    step_.push_back(range(seqs[s].seen_tokens, end));
    window_.push_back(range(std::max(0, prompt_end - needs.window_queries), prompt_end));
    pre_rope_queries_.push_back(range(0, prompt_end));
    future_.push_back(range(end, end + inputs[s].future_tokens));
    pass_.emplace_back();
    for (const PassShape& c : inputs[s].pass)
      pass_.back().push_back({{nullptr, c.count, c.first_position}, nullptr, c.ctx_begin, c.ctx_end});
  }
  for (const auto& chunks : pass_) pass_spans_.emplace_back(chunks);
}

Observed ShapeObserver::observe(std::int32_t) {
  Observed in;
  if (needs_.step_queries) in.step = step_;
  if (needs_.window_queries > 0) in.window = window_;
  if (needs_.pre_rope_queries) in.pre_rope_queries = pre_rope_queries_;
  if (needs_.future_queries) in.future = future_;
  if (needs_.pre_rope_keys) in.pre_rope_keys = no_floats_;
  if (needs_.hidden) in.hidden = no_floats_;
  if (needs_.guessed_query) in.hidden_before = no_floats_;
  if (needs_.token_ids) in.ids = no_ints_;
  if (!needs_.pass.empty()) in.pass = pass_spans_;
  return in;
}

ShapeRun::ShapeRun(const Recipe& recipe, const ModelShape& model, CountSource* counts)
    : recipe_(recipe),
      model_(model),
      policy_(recipe, model),
      runs_(static_cast<std::size_t>(model.num_layers), true),
      counts_(counts),
      ops_(Ops::Backend::kShapes) {
  if (!recipe.runs_in("cost"))
    throw InputError(fmt::format("recipe '{}' has no costs on shapes alone; it runs in: {}", recipe.name, fmt::join(recipe.hosts, ", ")));
  const auto trigger = recipe.make_trigger();
  acts_in_decode_ = trigger->in_decode();
  slack_tokens_ = trigger->slack_tokens();
  scope_ = recipe.make_allocator()->scope();
  keeps_state_ = keeps_state(recipe);
}

void ShapeRun::run_only(std::span<const std::int32_t> layers) {
  runs_.assign(runs_.size(), false);
  for (const std::int32_t l : layers) runs_[static_cast<std::size_t>(l)] = true;
  forget();
}

std::vector<std::int32_t> ShapeRun::held_of(const Seq& seq) const {
  const auto rows = static_cast<std::size_t>(model_.num_layers) * static_cast<std::size_t>(model_.kv_heads);
  if (seq.held.size() == rows) return seq.held;
  if (seq.held.size() > 1) throw InternalError("tokens held are given for each layer and KV head, or once for all");
  return std::vector<std::int32_t>(rows, seq.held.empty() ? 0 : seq.held.front());
}

ShapeRun::Group ShapeRun::group_of(std::span<const Seq> batch, bool decoding) const {
  Group group;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Seq& s = batch[i];
    const SeqStep step = s.as_step(static_cast<std::int32_t>(i));
    if (step.decoding() != decoding) continue;
    if (!policy_.needs().pass.empty() && step.completes_prompt() && s.inputs.pass.empty())
      throw InputError(
          fmt::format("recipe '{}' observes the extra pass '{}': its chunks must be given", recipe_.name, policy_.needs().pass));
    group.place.push_back(i);
    group.seqs.push_back(step);
    group.inputs.push_back(s.inputs);
  }
  if (group.seqs.empty()) return group;
  group.observer = std::make_unique<ShapeObserver>(policy_.needs(), group.seqs, group.inputs);
  group.layers.reserve(static_cast<std::size_t>(model_.num_layers));
  for (std::int32_t l = 0; l < model_.num_layers; ++l)
    group.layers.emplace_back(model_, runs(l) ? static_cast<std::int32_t>(group.seqs.size()) : 0, policy_.num_words(), false);
  for (std::size_t g = 0; g < group.seqs.size(); ++g) {
    const std::vector<std::int32_t> held = held_of(batch[group.place[g]]);
    for (std::int32_t l = 0; l < model_.num_layers; ++l)
      for (std::int32_t h = 0; h < model_.kv_heads && runs(l); ++h)
        group.layers[static_cast<std::size_t>(l)].assume(static_cast<std::int32_t>(g) * model_.kv_heads + h,
                                                         held[static_cast<std::size_t>(l * model_.kv_heads + h)]);
  }
  return group;
}

void ShapeRun::run_layer(Group& group, std::int32_t layer, KvKeeper* keeper, Result& result) {
  const PolicyStep step{ops_, model_, group.seqs, group.layers, *group.observer, 0, keeper};
  const bool decoding = group.seqs.front().decoding();
  if (decoding) {
    const Ops::Frame frame(ops_);
    policy_.before_attention(step, layer, segments_);
    std::vector<Queries> queries;
    for (const SeqStep& seq : group.seqs) queries.push_back({nullptr, seq.new_tokens, seq.seen_tokens});
    ops_(Attend{segments_.data(), static_cast<std::int32_t>(segments_.size()), queries.data()});
    for (const Segment& s : segments_)
      for (std::int32_t r = 0; r < s.kv.num_rows; ++r) result.attended_tokens += static_cast<double>(s.tokens(r));
  }
  for (std::size_t s = 0; !decoding && s < group.seqs.size() && policy_.selects_in_prompts(layer); ++s)
    if (group.seqs[s].new_tokens > 1) policy_.attend_prompt({ops_, model_, layer, group.seqs[s]});
  policy_.after_attention(step, layer);
}

TierBytes ShapeRun::layer_bytes(std::span<Group> groups, std::int32_t layer) const {
  TierBytes all;
  if (!runs(layer)) return all;
  for (Group& g : groups)
    if (!g.seqs.empty()) all += policy_.resident(layer, g.seqs, g.layers[static_cast<std::size_t>(layer)].rows());
  return all;
}

ShapeRun::Result ShapeRun::step(std::span<const Seq> batch, KvKeeper* keeper) {
  ops_.take_counts_from(nullptr);
  put_before(batch);
  ops_.take_counts_from(counts_);
  if (counts_ != nullptr) counts_->begin_step(steps_);
  ++steps_;
  Group groups[] = {group_of(batch, true), group_of(batch, false)};
  Result result;
  ops_.clear_log();
  policy_.take_traffic();
  std::vector<TierBytes> bytes;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) bytes.push_back(layer_bytes(groups, l));
  result.before = result.peak = sum_of(bytes);
  for (const TierBytes& b : bytes) result.layers.push_back({b.gpu, 0, 0});
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    result.first_call.push_back(ops_.log().size());
    result.fetched.push_back(0);
    result.disk.push_back(0);
    if (!runs(l)) continue;
    for (Group& g : groups)
      for (std::size_t s = 0; s < g.seqs.size(); ++s)
        g.layers[static_cast<std::size_t>(l)].append(static_cast<std::int32_t>(s), nullptr, nullptr, policy_.step_tokens(g.seqs[s], l),
                                                     g.seqs[s].seen_tokens);
    bytes[static_cast<std::size_t>(l)] = layer_bytes(groups, l);
    result.layers[static_cast<std::size_t>(l)].appended = bytes[static_cast<std::size_t>(l)].gpu;
    raise(result.peak, sum_of(bytes));
    for (Group& g : groups)
      if (!g.seqs.empty()) run_layer(g, l, keeper, result);
    const Traffic traffic = policy_.take_traffic();
    result.fetched.back() = traffic.fetched_bytes - traffic.in_place_bytes;
    result.disk.back() = traffic.disk_bytes;
    result.traffic += traffic;
    const bool cuts_others = scope_ == Allocator::Scope::kCascade || (scope_ == Allocator::Scope::kModel && l == model_.num_layers - 1);
    for (std::int32_t e = cuts_others ? 0 : l; e <= l; ++e) bytes[static_cast<std::size_t>(e)] = layer_bytes(groups, e);
  }
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    bytes[static_cast<std::size_t>(l)] = layer_bytes(groups, l);
    result.layers[static_cast<std::size_t>(l)].after = bytes[static_cast<std::size_t>(l)].gpu;
  }
  result.after = sum_of(bytes);
  raise(result.peak, result.after);
  finish(groups, result);
  return result;
}

ShapeRun::Targets ShapeRun::targets(const Seq& seq) const {
  const SeqStep step = seq.as_step();
  const bool alike = seq.held.size() == 1;
  const auto heads = static_cast<std::size_t>(model_.kv_heads);
  std::vector<std::int32_t> len(heads, seq.held.front() + seq.new_tokens);
  Targets all;
  for (std::int32_t l = 0; l < (alike && !policy_.has_shares() ? 1 : model_.num_layers); ++l) {
    for (std::size_t h = 0; !alike && h < heads; ++h) len[h] = seq.held[static_cast<std::size_t>(l) * heads + h] + seq.new_tokens;
    const std::int32_t target = policy_.target(step, l, len).value_or(kNoCut);
    all.common = l == 0 || target == all.common ? target : kLayersDiffer;
    all.most = std::max(all.most, target);
  }
  return all;
}

std::vector<std::int64_t> ShapeRun::gpu_bytes(const Seq& seq) const {
  Group groups[] = {group_of(std::span(&seq, 1), seq.seen_tokens >= seq.prompt_tokens)};
  std::vector<std::int64_t> bytes;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) bytes.push_back(layer_bytes(groups, l).gpu);
  return bytes;
}

void ShapeRun::finish(std::span<Group> groups, Result& result) {
  result.first_call.push_back(ops_.log().size());
  result.calls = ops_.log();
  result.attended_tokens /= static_cast<double>(model_.num_layers) * model_.kv_heads;
  const auto rows = static_cast<std::size_t>(model_.num_layers) * static_cast<std::size_t>(model_.kv_heads);
  result.held.resize(progress_.size() * rows);
  for (const Group& g : groups) {
    for (std::size_t s = 0; s < g.seqs.size(); ++s) {
      const std::vector<std::int32_t> held = lengths(g, s);
      std::copy(held.begin(), held.end(), result.held.begin() + static_cast<std::ptrdiff_t>(g.place[s] * rows));
      progress_[g.place[s]] = {g.seqs[s].end(), held};
    }
  }
}

std::vector<std::int32_t> ShapeRun::lengths(const Group& group, std::size_t s) const {
  std::vector<std::int32_t> held;
  for (const KvStore& store : group.layers)
    for (std::int32_t h = 0; h < model_.kv_heads; ++h)
      held.push_back(store.num_rows() == 0 ? 0 : store.len(static_cast<std::int32_t>(s) * model_.kv_heads + h));
  return held;
}

// For sequences that do not continue.
void ShapeRun::put_before(std::span<const Seq> batch) {
  for (std::size_t i = batch.size(); i < progress_.size(); ++i) policy_.forget(static_cast<std::int32_t>(i));
  progress_.resize(batch.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Seq& s = batch[i];
    const auto index = static_cast<std::int32_t>(i);
    if (s.seen_tokens > 0 && progress_[i].end == s.seen_tokens && progress_[i].held == held_of(s)) continue;
    policy_.forget(index);
    if (s.seen_tokens == 0 || !keeps_state_) continue;
    if (s.seen_tokens <= s.prompt_tokens) {
      precede(s, index, 0, 0);
      continue;
    }
    const bool is_whole = std::all_of(s.held.begin(), s.held.end(), [&](std::int32_t h) { return h == s.seen_tokens; });
    // Whole rows only grew. Others: one token in, one out, or a trigger's slack used up, or only grown.
    if (acts_in_decode_ && !is_whole &&
        (precede(s, index, s.seen_tokens - 1, 0) || (slack_tokens_ > 0 && precede(s, index, s.seen_tokens - 1, slack_tokens_))))
      continue;
    precede(s, index, s.seen_tokens - 1, -1);
  }
  policy_.take_traffic();
}

// One step from `seen` to seq.seen_tokens, from `delta` more tokens. True if seq.held results; else the parts forget it, unless rows only
// grew.
bool ShapeRun::precede(const Seq& seq, std::int32_t index, std::int32_t seen, std::int32_t delta) {
  Seq earlier = seq;
  earlier.seen_tokens = seen;
  earlier.new_tokens = seq.seen_tokens - seen;
  earlier.held = held_of(seq);
  for (std::int32_t& h : earlier.held) h = seen == 0 ? 0 : std::max(0, h + delta);
  if (earlier.inputs.pass.empty()) earlier.inputs.pass = {{1, 0, 0, earlier.prompt_tokens}};  // any size: calls are not used
  Group group = group_of(std::span(&earlier, 1), earlier.seen_tokens >= earlier.prompt_tokens);
  group.seqs.front().index = index;
  Result unused;
  const std::vector<std::int32_t> held = held_of(seq);
  bool leads_here = true;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    if (!runs(l)) continue;
    group.layers[static_cast<std::size_t>(l)].append(0, nullptr, nullptr, policy_.step_tokens(group.seqs.front(), l), seen);
    run_layer(group, l, nullptr, unused);
  }
  for (std::int32_t l = 0; l < model_.num_layers; ++l)
    for (std::int32_t h = 0; h < model_.kv_heads && runs(l); ++h)
      leads_here &= group.layers[static_cast<std::size_t>(l)].len(h) == held[static_cast<std::size_t>(l * model_.kv_heads + h)];
  ops_.clear_log();
  if (!leads_here && delta >= 0 && seen > 0) policy_.forget(index);
  return leads_here;
}

std::vector<SummedCall> summed(std::span<const OpCall> calls) {
  std::vector<SummedCall> sums;
  for (const OpCall& c : calls) {
    auto at = std::find_if(sums.begin(), sums.end(), [&](const SummedCall& s) { return s.call.op == c.op; });
    if (at == sums.end()) at = sums.insert(sums.end(), {{c.op}, 0});
    at->call.rows += c.rows;
    at->call.tokens += c.tokens;
    at->call.outputs += c.outputs;
    at->call.bytes += c.bytes;
    at->call.flops += c.flops;
    ++at->launches;
  }
  return sums;
}

ExpectedRun::ExpectedRun(const Recipe& recipe, const ModelShape& model)
    : budget_(recipe.budget), trigger_(recipe.make_trigger()), counts_(recipe, model), shapes_(recipe, model, &counts_) {}

// Mean tokens kept by layers cut in this step; <= 0: none is cut.
std::int32_t ExpectedRun::cut_target(const ShapeRun::Seq& seq) const {
  if (shapes_.policy().has_shares()) return shapes_.targets(seq).most;
  return shapes_.policy().target(step_of(seq), seq.held.front() + seq.new_tokens).value_or(0);
}

ShapeRun::Result ExpectedRun::step(const ShapeRun::Seq& seq) {
  counts_.set_target(cut_target(seq), trigger_->full(step_of(seq), budget_), seq.seen_tokens + seq.new_tokens);
  return shapes_.step(std::span(&seq, 1));
}

ShapeRun::Result ExpectedRun::step_at_bounds(std::span<const ShapeRun::Seq> batch) {
  counts_.set_target(0, 0, 0);
  return shapes_.step(batch);
}

void RecordedCounts::fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
  entries_.push_back({std::string(purpose), layer, step_, {counts.begin(), counts.end()}});
}

void ScriptedCounts::fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
  const std::string asked = fmt::format("{} counts of '{}' in layer {}, step {}", counts.size(), purpose, layer, step_);
  if (used_up())
    throw InputError(fmt::format("scripted counts: the run asks for {}, but the {} recorded entries are used up", asked, next_));
  const RecordedCounts::Entry& e = entries_[next_];
  if (e.purpose != purpose || e.layer != layer || e.counts.size() != counts.size())
    throw InputError(fmt::format("scripted counts: the run asks for {}, but entry {} has {} counts of '{}' in layer {}, step {}", asked,
                                 next_, e.counts.size(), e.purpose, e.layer, e.step));
  std::copy(e.counts.begin(), e.counts.end(), counts.begin());
  ++next_;
}

void ExpectedCounts::fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) {
  if (purpose != name_ || target_ <= 0) return;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    const std::int32_t head = static_cast<std::int32_t>(r) % model_.kv_heads;
    counts[r] = std::min(counts[r], allocator_->expected_part(model_, layer, head, target_, full_, sequence_tokens_));
  }
}

}  // namespace kvlab
