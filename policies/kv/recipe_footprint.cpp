#include "policies/kv/recipe_footprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "base/error.h"
#include "policies/kv/forward_passes.h"
#include "policies/kv/op_sums.h"

namespace kvlab {

namespace {

constexpr std::int32_t kProbeTokens = 8192, kSideStep = 16, kSideSteps = 160;
constexpr std::size_t kMostKnown = 1 << 16;

// Bytes of a sequence that holds all of its first `tokens` tokens, its prompt not complete.
TierBytes untouched_tiers(ShapeRun& shapes, std::int32_t tokens) {
  shapes.forget();
  const ShapeRun::Seq seq{tokens, 1, tokens + 2, {tokens}, {}};
  return shapes.step(std::span(&seq, 1)).before;
}

std::int64_t untouched_bytes(ShapeRun& shapes, std::int32_t tokens) { return untouched_tiers(shapes, tokens).gpu; }

RecipePages pages_of(ShapeRun& shapes, std::int32_t block_tokens, double least_token_bytes = 0) {
  const TierBytes twice = untouched_tiers(shapes, 2 * kProbeTokens), once = untouched_tiers(shapes, kProbeTokens);
  const auto per_token = [](std::int64_t more) { return static_cast<double>(std::max<std::int64_t>(0, more)) / kProbeTokens; };
  const double gpu = std::max({1.0, per_token(twice.gpu - once.gpu), least_token_bytes});
  return {gpu, block_tokens, per_token(twice.host - once.host), per_token(twice.disk - once.disk)};
}

SeqStep shape_step_of(const ShapeRun::Seq& seq) {
  return {0, seq.seen_tokens, seq.new_tokens, seq.prompt_tokens, seq.extras.question_begin};
}

// The sequence after its step.
SeqState after(SeqState seq, const FootprintStep& done) {
  seq.seen_tokens += seq.new_tokens;
  seq.left_hashed |= done.leaves_hashed;
  seq.held_tokens = seq.left_hashed ? done.held_tokens : seq.seen_tokens;
  seq.pattern = seq.left_hashed ? done.pattern : 0;
  return seq;
}

}  // namespace

RecipePages recipe_pages(const Recipe& recipe, const ModelShape& model, std::int32_t block_tokens) {
  ShapeRun shapes(recipe, model);
  return pages_of(shapes, block_tokens);
}

RecipeFootprint::RecipeFootprint(const Recipe& recipe, const ModelShape& model, std::int32_t block_tokens, KvReads reads,
                                 std::string at_rest, double least_token_bytes)
    : recipe_(recipe),
      model_(model),
      trigger_(recipe.make_trigger()),
      expected_(recipe, model),
      shapes_(expected_.shapes()),
      decodes_(recipe, model),
      pages_(pages_of(shapes_, block_tokens, least_token_bytes)),
      page_bytes_(pages_.token_bytes * block_tokens / (model.num_layers * model.kv_heads)),
      reads_(reads),
      unpacking_(reads == KvReads::kUnpacked ? std::make_unique<UnpackOps>(recipe, model, std::move(at_rest)) : nullptr),
      shares_layers_(recipe.make_allocator()->scope() != Allocator::Scope::kLayer),
      merges_alone_(recipe.make_disposal()->acts_alone()),
      may_cut_(recipe.make_allocator()->depends_on_data()) {
  const Needs& needs = shapes_.policy().needs();
  if (needs.future_queries)
    throw InputError(fmt::format("recipe '{}' cannot serve: it asks for queries of the future, which only a recording has", recipe.name));
  if (!needs.pass.empty()) pass_shapes(needs.pass, 1);
  find_side_bytes();
  history_ = find_history();
}

RecipeFootprint::History RecipeFootprint::find_history() {
  const std::int32_t budget = recipe_.budget.tokens > 0 ? recipe_.budget.tokens : 256;
  History history = History::kNone;
  std::map<std::array<std::int32_t, 4>, FootprintStep> first;  // by held tokens, target, whether something was lost, seen tokens or -1
  const auto try_one = [&](const SeqState& seq) {
    const std::int32_t target = target_of(seq);
    if (target == ShapeRun::kLayersDiffer) return;  // never taken for one another
    const FootprintStep done = run(seq);
    const auto differs_from_first = [&](std::int32_t seen) {
      const FootprintStep& k = first.try_emplace({seq.held_tokens, target, seq.left_hashed ? 1 : 0, seen}, done).first->second;
      return k.held_tokens != done.held_tokens || k.pattern != done.pattern || k.kept_tokens != done.kept_tokens;
    };
    if (differs_from_first(seq.seen_tokens)) history = History::kPrompt;
    if (differs_from_first(-1)) history = std::max(history, History::kSeen);
  };
  for (const std::int32_t held : {40, 200, budget - 1, budget, budget + 33, 2 * budget + 5})
    for (const std::int32_t prompt : {held / 2, held, 2 * held, 5 * held})
      for (const std::int32_t decoded : {1, 30, 100, 513}) {
        const std::int32_t seen = prompt + decoded;
        for (const std::int32_t of_prompt : {prompt, seen - seen / 3})
          if (held >= 2 && seen >= held) try_one({seen, of_prompt, held, 0, seen > held, false, false, 1});
      }
  return history;
}

std::int32_t RecipeFootprint::target_of(const SeqState& seq) const {
  if (shapes_.policy().has_shares() && trigger_->in_decode()) return shapes_.targets(shape_of(seq.taking(1))).common;
  return shapes_.policy().target({0, seq.seen_tokens, 1, seq.prompt_tokens, -1}, seq.held_tokens + 1).value_or(-1);
}

// Where packed tokens wait in full precision or parts keep a fixed amount, short sequences take more than token_bytes each.
void RecipeFootprint::find_side_bytes() {
  std::int64_t most = 0;
  for (std::int32_t i = 1; i <= kSideSteps; ++i) {
    for (const std::int32_t n : {i * kSideStep - 1, i * kSideStep})
      most = std::max(most, untouched_bytes(shapes_, n) - static_cast<std::int64_t>(pages_.token_bytes * n));
    side_bytes_.push_back(most);
  }
  shapes_.forget();
}

std::int64_t RecipeFootprint::side_pages(std::int32_t tokens) const {
  if (side_bytes_.back() <= 0 || tokens == 0) return 0;
  const auto i = std::min<std::size_t>(static_cast<std::size_t>((tokens - 1) / kSideStep), side_bytes_.size() - 1);
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(side_bytes_[i]) / page_bytes_));
}

// Each row has pages of its own; the layer's bytes are spread over its rows by their tokens.
std::int64_t RecipeFootprint::layer_pages(std::int64_t gpu_bytes, std::span<const std::int32_t> len) const {
  std::int64_t tokens = 0, pages = 0;
  for (const std::int32_t n : len) tokens += n;
  for (const std::int32_t n : len)
    if (n > 0)
      pages +=
          static_cast<std::int64_t>(std::ceil(static_cast<double>(gpu_bytes) * n / (static_cast<double>(tokens) * page_bytes_) - 1e-9));
  return pages;
}

// Of a sequence of `end` tokens.
void RecipeFootprint::note_held(std::span<const std::int32_t> held, std::int32_t end, FootprintStep& done) {
  const auto cut = std::find_if(held.begin(), held.end(), [end](std::int32_t h) { return h < end; });
  done.held_tokens = cut == held.end() ? end : *cut;
  done.pattern = 0;
  if (std::all_of(held.begin(), held.end(), [&](std::int32_t h) { return h == done.held_tokens; })) return;
  std::vector<std::int32_t> pattern;
  for (const std::int32_t h : held) pattern.push_back(h == end ? kWhole : h - done.held_tokens);
  const auto [at, is_new] = pattern_ids_.try_emplace(pattern, static_cast<std::int32_t>(patterns_.size()));
  if (is_new) {
    const bool has_whole = std::find(pattern.begin(), pattern.end(), kWhole) != pattern.end();
    patterns_.push_back({std::move(pattern), has_whole});
  }
  done.pattern = at->second;
}

bool RecipeFootprint::has_whole_rows(const SeqState& seq) const { return patterns_[static_cast<std::size_t>(seq.pattern)].has_whole; }

// A sequence on its way back is cut after each chunk, as if its prompt ended there: it never takes more than the first cut did. Not by
// recipes whose extra pass runs over the whole prompt, nor where so short a prompt's share is less than what always stays.
bool RecipeFootprint::ends_prompt(const SeqState& seq) const {
  if (!seq.recomputes || trigger_->inside_prefill()) return false;
  const std::int32_t end = seq.seen_tokens + seq.new_tokens;
  if (!shapes_.policy().needs().pass.empty()) return seq.seen_tokens < seq.prompt_tokens && end >= seq.prompt_tokens;
  return end >= seq.prompt_tokens || shapes_.policy().keeps_what_stays({0, seq.seen_tokens, seq.new_tokens, end, -1});
}

ShapeRun::Seq RecipeFootprint::shape_of(const SeqState& seq) const {
  const std::int32_t prompt_tokens = ends_prompt(seq) ? seq.seen_tokens + seq.new_tokens : seq.prompt_tokens;
  ShapeRun::Seq shape{seq.seen_tokens, seq.new_tokens, prompt_tokens, {seq.held_tokens}, {}};
  if (seq.pattern > 0) {
    shape.held = patterns_[static_cast<std::size_t>(seq.pattern)].held;
    for (std::int32_t& h : shape.held) h = h == kWhole ? seq.seen_tokens : h + seq.held_tokens;
  }
  const bool completes = shape.seen_tokens < shape.prompt_tokens && shape.seen_tokens + shape.new_tokens >= shape.prompt_tokens;
  shape.extras = extras_of(shapes_.policy().needs(), shape.prompt_tokens, completes);
  return shape;
}

std::size_t RecipeFootprint::KeyHash::operator()(const Key& k) const {
  std::uint64_t h = 0;
  for (const std::int32_t x : k) h = (h ^ static_cast<std::uint32_t>(x)) * 0x9E3779B97F4A7C15ULL + (h >> 29);
  return h;
}

// Most decode steps depend on what is held and what the trigger wants alone.
RecipeFootprint::Key RecipeFootprint::key_of(const SeqState& seq) const {
  const bool decodes = seq.new_tokens == 1 && seq.seen_tokens >= seq.prompt_tokens;
  const std::int32_t target = decodes && history_ != History::kPrompt ? target_of(seq) : ShapeRun::kLayersDiffer;
  if (target == ShapeRun::kLayersDiffer)
    return {seq.seen_tokens,
            seq.new_tokens,
            seq.prompt_tokens,
            seq.held_tokens,
            seq.pattern * 4 + (seq.left_hashed ? 2 : 0) + (seq.recomputes ? 1 : 0),
            target};
  const bool seen_matters = history_ == History::kSeen || has_whole_rows(seq);
  return {seq.left_hashed ? 1 : 0, 1, seen_matters ? seq.seen_tokens : 0, seq.held_tokens, seq.pattern * 2, target};
}

FootprintStep RecipeFootprint::step(const SeqState& seq) {
  if (recipe_.prunes()) shapes_.policy().refuse_part_of_prompt(shape_step_of(shape_of(seq)));
  const Key key = key_of(seq);
  const auto at = known_.find(key);
  FootprintStep done = at != known_.end() ? at->second : run(seq);
  if (at == known_.end()) {
    if (known_.size() >= kMostKnown) known_.clear();
    known_.emplace(key, done);
  }
  if (seq.left_hashed) done.leaves_hashed = false;
  return done;
}

// True where the step lost, merged or marked something, or may have: rows shorter than what was seen, merged layers that take less than
// whole tokens, a trigger that acted without shortening, or one that acted where data decides how many tokens stay.
bool RecipeFootprint::is_cut(const ShapeRun::Seq& seq, const ShapeRun::Result& done) const {
  const std::int32_t end = seq.seen_tokens + seq.new_tokens;
  if (std::any_of(done.held.begin(), done.held.end(), [end](std::int32_t h) { return h < end; })) return true;
  if (merges_alone_ && static_cast<double>(done.after.gpu) < pages_.token_bytes * end) return true;
  const SeqStep step{0, seq.seen_tokens, seq.new_tokens, seq.prompt_tokens, -1};
  const auto target = shapes_.policy().target(step, end);
  return target && (may_cut_ || (*target < end && !recipe_.only_drops));
}

// A decode step in which nothing is cut: each row has one token more.
FootprintStep RecipeFootprint::grow(const SeqState& seq) {
  ShapeRun::Seq shape = shape_of(seq);
  for (std::int32_t& h : shape.held) ++h;
  const auto heads = static_cast<std::size_t>(model_.kv_heads);
  const std::vector<std::int64_t> bytes = shapes_.gpu_bytes(shape);
  std::vector<std::int32_t> rows(heads, shape.held.front());
  FootprintStep done;
  done.held_tokens = seq.held_tokens + 1;
  done.pattern = seq.pattern;
  std::int64_t gpu = 0;
  for (std::size_t l = 0; l < bytes.size(); ++l) {
    if (shape.held.size() > 1) std::copy_n(shape.held.begin() + static_cast<std::ptrdiff_t>(l * heads), heads, rows.begin());
    done.kept_pages += layer_pages(bytes[l], rows);
    gpu += bytes[l];
  }
  done.peak_pages = done.kept_pages;
  finish(seq, gpu, done);
  return done;
}

// What holds for any step; `gpu` bytes lie on the GPU after it.
void RecipeFootprint::finish(const SeqState& seq, std::int64_t gpu, FootprintStep& done) const {
  done.kept_tokens = static_cast<std::int32_t>(static_cast<double>(gpu) / pages_.token_bytes);
  done.peak_pages = std::max(done.peak_pages, done.kept_pages);
  if (seq.left_hashed) return;
  // Its tokens still lie in blocks; what they do not cover stands beside them.
  const std::int32_t end = seq.seen_tokens + seq.new_tokens;
  const double beside = static_cast<double>(gpu) - pages_.token_bytes * end;
  const std::int64_t side = std::max(side_pages(end), static_cast<std::int64_t>(std::ceil(beside / page_bytes_ - 1e-9)));
  if (!done.leaves_hashed) done.kept_pages = side;
  done.peak_pages = std::max(merges_alone_ && done.leaves_hashed ? 0 : done.kept_pages, side_pages(end));
}

FootprintStep RecipeFootprint::run(const SeqState& seq) {
  const bool decodes = seq.new_tokens == 1 && seq.seen_tokens >= seq.prompt_tokens && !seq.recomputes;
  if (decodes && recipe_.only_drops && !trigger_->in_decode()) return grow(seq);
  const ShapeRun::Seq shape = shape_of(seq);
  shapes_.forget();
  const ShapeRun::Result result = expected_.step(shape);
  const auto heads = static_cast<std::size_t>(model_.kv_heads);
  FootprintStep done;
  note_held(result.held, shape.seen_tokens + seq.new_tokens, done);
  done.leaves_hashed = is_cut(shape, result);
  done.ends_prompt = ends_prompt(seq);
  // Layers append and cut one after the other.
  std::vector<std::int64_t> now, appended, after;
  std::vector<std::int32_t> rows(heads);
  for (std::size_t l = 0; l < result.layers.size(); ++l) {
    const ShapeRun::Result::LayerBytes& bytes = result.layers[l];
    const auto held = [&](std::size_t h) { return shape.held.size() > 1 ? shape.held[l * heads + h] : shape.held.front(); };
    for (std::size_t h = 0; h < heads; ++h) rows[h] = held(h);
    now.push_back(layer_pages(bytes.before, rows));
    for (std::size_t h = 0; h < heads; ++h) rows[h] = held(h) + seq.new_tokens;
    appended.push_back(layer_pages(bytes.appended, rows));
    after.push_back(layer_pages(bytes.after, std::span(result.held).subspan(l * heads, heads)));
  }
  std::int64_t sum = 0;
  for (const std::int64_t n : now) sum += n;
  done.peak_pages = sum;
  for (std::size_t l = 0; l < now.size(); ++l) {
    sum += appended[l] - now[l];
    done.peak_pages = std::max(done.peak_pages, sum);
    if (!shares_layers_) sum += after[l] - appended[l];
  }
  for (const std::int64_t n : after) done.kept_pages += n;
  finish(seq, result.after.gpu, done);
  return done;
}

std::int64_t RecipeFootprint::pages_at_end(std::int32_t prompt_tokens, std::int32_t seen_tokens) {
  const SeqState seq = SeqState{0, prompt_tokens}.taking(prompt_tokens);
  const FootprintStep prompt = step(seq);
  if (!prompt.leaves_hashed) return side_pages(seen_tokens);
  const std::int64_t grown =
      trigger_->in_decode() ? std::min(trigger_->slack_tokens() + 1, seen_tokens - prompt_tokens) : seen_tokens - prompt_tokens;
  const std::int64_t blocks = ceil_div(grown, pages_.block_tokens);
  const std::int64_t pages = prompt.kept_pages + blocks * model_.num_layers * model_.kv_heads;
  if (!trigger_->in_decode()) return pages;
  return std::max(pages, most_pages(after(seq, prompt).taking(1), seen_tokens));
}

// The most that decode steps keep until the sequence has `seen_tokens`: rows with large shares of the budget fill up for long.
std::int64_t RecipeFootprint::most_pages(SeqState seq, std::int32_t seen_tokens) {
  std::int64_t most = 0;
  while (seq.seen_tokens < seen_tokens) {
    // With later steps that find the same.
    const bool is_alike = history_ == History::kNone && target_of(seq) != ShapeRun::kLayersDiffer && !has_whole_rows(seq);
    const FootprintStep done = step(seq);
    most = std::max(most, done.kept_pages);
    const SeqState next = after(seq, done);
    if (is_alike && next.held_tokens == seq.held_tokens && next.pattern == seq.pattern && target_of(next) == target_of(seq)) break;
    seq = next;
  }
  return most;
}

// Tokens of the model's own type that a decode step of one sequence reads, over its new one: by their bytes, or where they lie decoded by
// their products.
std::int32_t RecipeFootprint::attended(const LayerCalls& calls) const {
  const std::int64_t q_heads = model_.q_heads, d = model_.head_dim;
  const bool lies_decoded = reads_ != KvReads::kStored;
  std::int64_t read = 0;
  for (std::int32_t l = 0; l < model_.num_layers; ++l)
    for (const OpCall& c : calls.of_layer(l))
      if (c.op == "attend") read += lies_decoded ? c.flops : c.bytes - 4 * q_heads * d;  // queries and outputs are not cache
  const std::int64_t token = model_.num_layers * (lies_decoded ? 4 * q_heads * d : 2LL * model_.kv_heads * d * model_.kv_bytes);
  return std::max(0, static_cast<std::int32_t>((read + token / 2) / token) - 1);
}

void RecipeFootprint::charge(std::span<SeqState> batch, PolicyWork& work) {
  charge_decodes(batch, work);
  charge_prompts(batch, work);
}

void RecipeFootprint::charge_decodes(std::span<SeqState> batch, PolicyWork& work) {
  std::vector<ShapeRun::Seq> rows;
  for (SeqState& s : batch) {
    if (s.new_tokens != 1 || s.seen_tokens < s.prompt_tokens || s.recomputes) continue;
    rows.push_back(shape_of(s));
    s.attended_tokens = attended(decodes_.decode(std::span(&rows.back(), 1)));
    if (unpacking_ && (!s.is_named || s.left_hashed)) unpack(s, rows.back());
  }
  if (rows.empty()) return;
  const LayerCalls calls = decodes_.decode(rows);
  for (std::size_t c = 0; c < calls.calls.size(); ++c) {
    const auto layers = std::count(calls.class_of_layer.begin(), calls.class_of_layer.end(), static_cast<std::int32_t>(c));
    for (const OpCall& call : calls.calls[c])
      if (!is_fetch(call) || !unpacking_ || !unpacking_->has_fetches())
        add_calls(work.ops, call, layers, shapes_.policy().fetches_beside());
  }
  if (unpacking_) unpacking_->take(work.ops);
}

// Of a sequence that rested. One that lost tokens is what is left of its prompt and has grown since; where decode goes on cutting, it lost
// encoded ones and stays decoded.
void RecipeFootprint::unpack(const SeqState& seq, const ShapeRun::Seq& shape) {
  std::int64_t held = 0;
  for (const std::int32_t h : shape.held) held += h;
  if (shape.held.size() == 1) held *= std::int64_t{model_.num_layers} * model_.kv_heads;
  const bool lost = std::any_of(shape.held.begin(), shape.held.end(), [&](std::int32_t h) { return h < shape.seen_tokens; });
  if (!lost || !trigger_->in_decode()) unpacking_->add(lost ? seq.prompt_tokens : seq.held_tokens, held);
}

// Tokens decoded ahead come one after the other, each in a pass of its own.
void RecipeFootprint::add_passes(std::span<const PassShape> chunks, std::int32_t kv_tokens, PolicyWork& work) const {
  const bool decodes = shapes_.policy().needs().pass == "lookahead";
  for (const PassShape& chunk : chunks) {
    if (!decodes) work.passes.push_back({chunk.count, kv_tokens});
    for (std::int32_t i = 0; decodes && i < chunk.count; ++i) work.passes.push_back({1, kv_tokens + i});
  }
}

// The sequence at this place of the batch, if its layers compute fewer and fewer tokens.
void RecipeFootprint::add_pruned(const ShapeRun::Seq& shape, std::size_t place, PolicyWork& work) const {
  PrunedPrompt prompt{place, {}};
  for (std::int32_t l = 0; l < model_.num_layers; ++l) prompt.tokens.push_back(shapes_.policy().step_tokens(shape_step_of(shape), l));
  if (prompt.tokens.back() < shape.new_tokens) work.pruned.push_back(std::move(prompt));
}

void RecipeFootprint::charge_prompts(std::span<SeqState> batch, PolicyWork& work) {
  std::vector<ShapeRun::Seq> rows;
  for (SeqState& s : batch) {
    if (s.new_tokens == 1 && s.seen_tokens >= s.prompt_tokens && !s.recomputes) continue;
    rows.push_back(shape_of(s));
    std::int64_t held = 0;
    for (const std::int32_t h : rows.back().held) held += h;
    s.attended_tokens = static_cast<std::int32_t>(held / static_cast<std::int64_t>(rows.back().held.size()));
    add_passes(rows.back().extras.pass, s.attended_tokens + s.new_tokens, work);
    if (recipe_.prunes()) add_pruned(rows.back(), static_cast<std::size_t>(&s - batch.data()), work);
  }
  if (rows.empty()) return;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) work.sparse_layers += shapes_.policy().selects_in_prompts(l) ? 1 : 0;
  shapes_.forget();
  for (const OpCall& call : expected_.step_at_bounds(rows).calls) add_calls(work.ops, call, 1);
}

}  // namespace kvlab
