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

void ShapeObserver::clear() {
  for (auto* queries : {&step_, &window_, &pre_rope_queries_, &future_}) queries->clear();
  no_floats_.clear(), no_ints_.clear(), pass_.clear(), pass_spans_.clear();
}

void ShapeObserver::add(const SeqStep& seq, const InputSizes& inputs) {
  const auto range = [](std::int32_t begin, std::int32_t end) { return Queries{nullptr, std::max(0, end - begin), begin}; };
  const std::int32_t end = seq.end(), prompt_end = std::min(end, seq.prompt_tokens);
  if (needs_.step_queries) step_.push_back(range(seq.seen_tokens, end));
  if (needs_.window_queries > 0) window_.push_back(range(std::max(0, prompt_end - needs_.window_queries), prompt_end));
  if (needs_.pre_rope_queries) pre_rope_queries_.push_back(range(0, prompt_end));
  if (needs_.future_queries) future_.push_back(range(end, end + inputs.future_tokens));
  if (needs_.pre_rope_keys || needs_.hidden || needs_.guessed_query) no_floats_.push_back(nullptr);
  if (needs_.token_ids) no_ints_.push_back(nullptr);
  if (needs_.pass.empty()) return;
  std::vector<PassQueries>& chunks = pass_.emplace_back();
  for (const PassShape& c : inputs.pass) chunks.push_back({{nullptr, c.count, c.first_position}, nullptr, c.ctx_begin, c.ctx_end});
  pass_spans_.emplace_back(chunks);
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
      ops_(Ops::Backend::kShapes),
      bytes_(static_cast<std::size_t>(model.num_layers)) {
  if (!recipe.runs_in("cost"))
    throw InputError(fmt::format("recipe '{}' has no costs on shapes alone; it runs in: {}", recipe.name, fmt::join(recipe.hosts, ", ")));
  const auto trigger = recipe.make_trigger();
  acts_in_decode_ = trigger->in_decode();
  slack_tokens_ = trigger->slack_tokens();
  scope_ = recipe.make_allocator()->scope();
  keeps_state_ = keeps_state(recipe);
  for (int g = 0; g < 3; ++g) {
    Group& group = groups_.emplace_back(policy_.needs());
    for (std::int32_t l = 0; l < model.num_layers; ++l) group.layers.push_back(store_for(0));
  }
}

void ShapeRun::run_only(std::span<const std::int32_t> layers) {
  for (Group& group : groups_)
    for (std::int32_t l = 0; l < model_.num_layers; ++l)
      if (runs(l)) group.layers[static_cast<std::size_t>(l)] = store_for(0);
  runs_.assign(runs_.size(), false);
  bytes_.assign(bytes_.size(), {});
  sum_ = {};
  for (const std::int32_t l : layers) runs_[static_cast<std::size_t>(l)] = true;
  forget();
}

void ShapeRun::fill(Group& group, std::span<const Seq> batch, bool decoding) {
  group.place.clear(), group.seqs.clear();
  group.observer.clear();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Seq& s = batch[i];
    const SeqStep step = s.as_step(static_cast<std::int32_t>(i));
    if (step.decoding() != decoding) continue;
    if (s.held.size() > 1 && s.held.size() != num_rows())
      throw InternalError("tokens held are given for each layer and KV head, or once for all");
    if (!policy_.needs().pass.empty() && step.completes_prompt() && s.inputs.pass.empty())
      throw InputError(
          fmt::format("recipe '{}' observes the extra pass '{}': its chunks must be given", recipe_.name, policy_.needs().pass));
    group.place.push_back(i);
    group.seqs.push_back(step);
    group.observer.add(step, s.inputs);
  }
  for (std::int32_t l = 0; l < model_.num_layers && !group.seqs.empty(); ++l) {
    if (!runs(l)) continue;
    KvStore& store = group.layers[static_cast<std::size_t>(l)];
    store = store_for(group.seqs.size());
    std::int32_t row = 0;
    for (const std::size_t place : group.place)
      for (std::int32_t h = 0; h < model_.kv_heads; ++h) store.assume(row++, held_in(batch[place], l, h));
  }
}

void ShapeRun::run_layer(Group& group, std::int32_t layer, KvKeeper* keeper, double& attended_tokens) {
  const PolicyStep step{ops_, model_, group.seqs, group.layers, group.observer, 0, keeper};
  const bool decoding = group.seqs.front().decoding();
  if (decoding) {
    const Ops::Frame frame(ops_);
    policy_.before_attention(step, layer, segments_);
    group.queries.clear();
    for (const SeqStep& seq : group.seqs) group.queries.push_back({nullptr, seq.new_tokens, seq.seen_tokens});
    ops_(Attend{segments_.data(), static_cast<std::int32_t>(segments_.size()), group.queries.data()});
    for (const Segment& s : segments_)
      for (std::int32_t r = 0; r < s.kv.num_rows; ++r) attended_tokens += static_cast<double>(s.tokens(r));
  }
  for (std::size_t s = 0; !decoding && s < group.seqs.size() && policy_.selects_in_prompts(layer); ++s)
    if (group.seqs[s].new_tokens > 1) policy_.attend_prompt({ops_, model_, layer, group.seqs[s]});
  policy_.after_attention(step, layer);
}

void ShapeRun::renew_bytes(std::int32_t layer) {
  TierBytes& now = bytes_[static_cast<std::size_t>(layer)];
  sum_ = {sum_.gpu - now.gpu, sum_.host - now.host, sum_.disk - now.disk};
  now = {};
  for (Group& g : std::span(groups_).first(2))
    if (!g.seqs.empty()) now += policy_.resident(layer, g.seqs, g.layers[static_cast<std::size_t>(layer)].rows());
  sum_ += now;
}

ShapeRun::Result ShapeRun::step(std::span<const Seq> batch, KvKeeper* keeper) {
  ops_.take_counts_from(nullptr);
  put_before(batch);
  ops_.take_counts_from(counts_);
  if (counts_ != nullptr) counts_->begin_step(steps_);
  ++steps_;
  for (std::size_t g = 0; g < 2; ++g) fill(groups_[g], batch, g == 0);
  ops_.clear_log();
  policy_.take_traffic();
  const auto num_layers = static_cast<std::size_t>(model_.num_layers);
  Result result;
  result.layers.resize(num_layers), result.fetched.resize(num_layers), result.disk.resize(num_layers);
  result.first_call.reserve(num_layers + 1);
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    if (runs(l)) renew_bytes(l);
    result.layers[static_cast<std::size_t>(l)].before = bytes_[static_cast<std::size_t>(l)].gpu;
  }
  result.before = result.peak = sum_;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    result.first_call.push_back(ops_.log().size());
    if (runs(l)) step_layer(l, keeper, result);
  }
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    if (!runs(l)) continue;
    renew_bytes(l);
    result.layers[static_cast<std::size_t>(l)].after = bytes_[static_cast<std::size_t>(l)].gpu;
  }
  result.after = sum_;
  raise(result.peak, result.after);
  finish(result);
  return result;
}

// Appends and evicts.
void ShapeRun::step_layer(std::int32_t l, KvKeeper* keeper, Result& result) {
  const auto at = static_cast<std::size_t>(l);
  const std::span<Group> groups = std::span(groups_).first(2);
  for (Group& g : groups)
    for (std::size_t s = 0; s < g.seqs.size(); ++s)
      g.layers[at].append(static_cast<std::int32_t>(s), nullptr, nullptr, policy_.step_tokens(g.seqs[s], l), g.seqs[s].seen_tokens);
  renew_bytes(l);
  result.layers[at].appended = bytes_[at].gpu;
  raise(result.peak, sum_);
  for (Group& g : groups)
    if (!g.seqs.empty()) run_layer(g, l, keeper, result.attended_tokens);
  const Traffic traffic = policy_.take_traffic();
  result.fetched[at] = traffic.fetched_bytes - traffic.in_place_bytes;
  result.disk[at] = traffic.disk_bytes;
  result.traffic += traffic;
  const bool cuts_others = scope_ == Allocator::Scope::kCascade || (scope_ == Allocator::Scope::kModel && l == model_.num_layers - 1);
  for (std::int32_t e = cuts_others ? 0 : l; e <= l; ++e)
    if (runs(e)) renew_bytes(e);
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

std::vector<std::int64_t> ShapeRun::gpu_bytes(const Seq& seq) {
  const bool decoding = seq.seen_tokens >= seq.prompt_tokens;
  for (std::size_t g = 0; g < 2; ++g) fill(groups_[g], {&seq, (g == 0) == decoding ? 1U : 0U}, decoding);
  std::vector<std::int64_t> bytes;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    if (runs(l)) renew_bytes(l);
    bytes.push_back(bytes_[static_cast<std::size_t>(l)].gpu);
  }
  return bytes;
}

void ShapeRun::finish(Result& result) {
  result.first_call.push_back(ops_.log().size());
  result.calls = ops_.log();
  result.attended_tokens /= static_cast<double>(model_.num_layers) * model_.kv_heads;
  result.held.resize(ends_.size() * num_rows());
  for (const Group& g : std::span(groups_).first(2)) {
    for (std::size_t s = 0; s < g.seqs.size(); ++s) {
      ends_[g.place[s]] = g.seqs[s].end();
      for (std::int32_t l = 0; l < model_.num_layers; ++l)
        for (std::int32_t h = 0, end = runs(l) ? model_.kv_heads : 0; h < end; ++h)
          result.held[g.place[s] * num_rows() + static_cast<std::size_t>(l * model_.kv_heads + h)] =
              g.layers[static_cast<std::size_t>(l)].len(static_cast<std::int32_t>(s) * model_.kv_heads + h);
    }
  }
  held_ = result.held;
}

bool ShapeRun::continues(const Seq& seq, std::size_t place) const {
  if (seq.seen_tokens == 0 || ends_[place] != seq.seen_tokens || (seq.held.size() > 1 && seq.held.size() != num_rows())) return false;
  const std::int32_t* held = held_.data() + place * num_rows();
  for (std::int32_t l = 0; l < model_.num_layers; ++l)
    for (std::int32_t h = 0; h < model_.kv_heads; ++h)
      if (*held++ != held_in(seq, l, h)) return false;
  return true;
}

// For sequences that do not continue.
void ShapeRun::put_before(std::span<const Seq> batch) {
  for (std::size_t i = batch.size(); i < ends_.size(); ++i) policy_.forget(static_cast<std::int32_t>(i));
  ends_.resize(batch.size(), -1);
  held_.resize(batch.size() * num_rows());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Seq& s = batch[i];
    const auto index = static_cast<std::int32_t>(i);
    if (continues(s, i)) continue;
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
  for (std::int32_t& h : earlier.held) h = seen == 0 ? 0 : std::max(0, h + delta);
  if (!policy_.needs().pass.empty() && earlier.inputs.pass.empty())
    earlier.inputs.pass = {{1, 0, 0, earlier.prompt_tokens}};  // any size: calls are not used
  Group& group = groups_[2];
  fill(group, std::span(&earlier, 1), earlier.seen_tokens >= earlier.prompt_tokens);
  group.seqs.front().index = index;
  double unused = 0;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    if (!runs(l)) continue;
    group.layers[static_cast<std::size_t>(l)].append(0, nullptr, nullptr, policy_.step_tokens(group.seqs.front(), l), seen);
    run_layer(group, l, nullptr, unused);
  }
  bool leads_here = true;
  for (std::int32_t l = 0; l < model_.num_layers; ++l)
    for (std::int32_t h = 0, end = runs(l) ? model_.kv_heads : 0; h < end; ++h)
      leads_here &= group.layers[static_cast<std::size_t>(l)].len(h) == held_in(seq, l, h);
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
