#include "sim/kv_cost/recipe_footprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/ceil_div.h"
#include "base/error.h"
#include "policies/kv/forward_passes.h"
#include "policies/kv/runs_of.h"

namespace kvlab {

namespace {

constexpr std::int32_t kManyTokens = 8192, kSideStep = 16, kSideSteps = 160;
constexpr std::size_t kMostKnown = 1 << 16, kMostChunks = 1 << 15;

// In its prompt, with all of its first `tokens`.
ShapeRun::Result untouched(ShapeRun& shapes, std::int32_t tokens) {
  shapes.forget();
  const ShapeRun::Seq seq{tokens, 1, tokens + 2, {tokens}, {}};
  return shapes.step(std::span(&seq, 1));
}

RecipePages pages_of(ShapeRun& shapes, std::int32_t block_tokens, double least_token_bytes = 0) {
  const TierBytes twice = untouched(shapes, 2 * kManyTokens).before, once = untouched(shapes, kManyTokens).before;
  const auto per_token = [](std::int64_t more) { return static_cast<double>(std::max<std::int64_t>(0, more)) / kManyTokens; };
  const double gpu = std::max({1.0, per_token(twice.gpu - once.gpu), least_token_bytes});
  return {gpu, block_tokens, per_token(twice.host - once.host), per_token(twice.disk - once.disk)};
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
      decodes_(recipe, model, /*has_counts=*/false),
      pages_(pages_of(shapes_, block_tokens, least_token_bytes)),
      page_bytes_(pages_.token_bytes * block_tokens / (model.num_layers * model.kv_heads)),
      reads_(reads),
      unpacking_(reads == KvReads::kUnpacked ? std::make_unique<UnpackOps>(recipe, model, std::move(at_rest)) : nullptr),
      kinds_(shapes_.policy().layer_kinds(false)),
      times_(kinds_.first.size(), 0),
      shares_layers_(recipe.make_allocator()->scope() != Allocator::Scope::kLayer),
      merges_alone_(recipe.make_disposal()->acts_alone()),
      sums_by_shape_(recipe.only_drops || recipe.make_disposal()->keeps_no_state()),
      may_cut_(recipe.make_allocator()->depends_on_data()) {
  const Needs& needs = shapes_.policy().needs();
  if (needs.future_queries)
    throw InputError(fmt::format("recipe '{}' cannot serve: it asks for queries of the future, which only a recording has", recipe.name));
  if (!needs.pass.empty()) pass_shapes(needs.pass, 1, 1);
  for (const std::int32_t kind : kinds_.of_layer) ++times_[static_cast<std::size_t>(kind)];
}

void RecipeFootprint::use_layers(bool all) {
  if (all == uses_all_ || kinds_.run_together()) return;
  std::vector<std::int32_t> every;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) every.push_back(l);
  shapes_.run_only(all ? every : kinds_.first);
  uses_all_ = all;
}

void RecipeFootprint::expand(ShapeRun::Result& result) const {
  if (uses_all_) return;
  const auto heads = static_cast<std::ptrdiff_t>(model_.kv_heads);
  result.before.gpu = result.after.gpu = 0;
  for (std::size_t l = 0; l < result.layers.size(); ++l) {
    const std::int32_t first = kinds_.first[static_cast<std::size_t>(kinds_.of_layer[l])];
    result.layers[l] = result.layers[static_cast<std::size_t>(first)];
    if (static_cast<std::size_t>(first) != l)
      std::copy_n(result.held.begin() + first * heads, heads, result.held.begin() + static_cast<std::ptrdiff_t>(l) * heads);
    result.before.gpu += result.layers[l].before;
    result.after.gpu += result.layers[l].after;
  }
}

std::int32_t RecipeFootprint::target_of(const SeqState& seq) const {
  if (!trigger_->in_decode()) return ShapeRun::kNoCut;
  if (shapes_.policy().has_shares()) return shapes_.targets(shape_of(seq.taking(1))).common;
  return shapes_.policy().target({0, seq.seen_tokens, 1, seq.prompt_tokens, -1}, seq.held_tokens + 1).value_or(ShapeRun::kNoCut);
}

// Most beyond token_bytes for up to `tokens`: packed tokens may wait in full precision, parts have fixed amounts. Lazy.
std::int64_t RecipeFootprint::side_pages(std::int32_t tokens) {
  if (tokens == 0) return 0;
  const auto i = std::min<std::size_t>(static_cast<std::size_t>((tokens - 1) / kSideStep), kSideSteps - 1);
  while (side_bytes_.size() <= i) {
    std::int64_t most = side_bytes_.empty() ? 0 : side_bytes_.back();
    const auto end = static_cast<std::int32_t>(side_bytes_.size() + 1) * kSideStep;
    for (const std::int32_t n : {end - 1, end})
      most = std::max(most, untouched_bytes(n) - static_cast<std::int64_t>(pages_.token_bytes * n));
    side_bytes_.push_back(most);
  }
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(side_bytes_[i]) / page_bytes_));
}

// Uncut; some may be merged or marked.
std::int64_t RecipeFootprint::untouched_bytes(std::int32_t tokens) {
  use_layers(false);
  if (!sums_by_shape_) {
    ShapeRun::Result result = untouched(shapes_, tokens);
    expand(result);
    return result.before.gpu;
  }
  const std::vector<std::int64_t> bytes = shapes_.gpu_bytes({tokens, 1, tokens + 2, {tokens}, {}});
  std::int64_t gpu = 0;
  for (std::size_t k = 0; k < times_.size(); ++k) gpu += times_[k] * bytes[static_cast<std::size_t>(kinds_.first[k])];
  return gpu;
}

// Bytes are spread over rows by tokens, in separate pages.
std::int64_t RecipeFootprint::layer_pages(std::int64_t gpu_bytes, std::span<const std::int32_t> len) const {
  std::int64_t tokens = 0, pages = 0;
  for (const std::int32_t n : len) tokens += n;
  std::int32_t length = 0;
  std::int64_t of_length = 0;
  for (const std::int32_t n : len) {
    if (n != length)
      of_length =
          static_cast<std::int64_t>(std::ceil(static_cast<double>(gpu_bytes) * n / (static_cast<double>(tokens) * page_bytes_) - 1e-9));
    length = n;
    if (n > 0) pages += of_length;
  }
  return pages;
}

RecipeFootprint::LayerPages RecipeFootprint::layer_pages(const ShapeRun::Seq& shape, const ShapeRun::Result& result,
                                                         std::size_t layer) const {
  const auto heads = static_cast<std::size_t>(model_.kv_heads);
  const ShapeRun::Result::LayerBytes& bytes = result.layers[layer];
  std::vector<std::int32_t> len(heads, shape.held.front());
  if (shape.held.size() > 1) std::copy_n(shape.held.begin() + static_cast<std::ptrdiff_t>(layer * heads), heads, len.begin());
  LayerPages pages;
  pages.now = layer_pages(bytes.before, len);
  for (std::int32_t& n : len) n += shape.new_tokens;
  pages.appended = layer_pages(bytes.appended, len);
  pages.after = layer_pages(bytes.after, std::span(result.held).subspan(layer * heads, heads));
  return pages;
}

// Recomputed sequences are cut after each chunk as if their prompt ended there, and never exceed the first cut. Not with an extra pass over
// the prompt, nor if the short prompt's share is less than what always stays.
bool RecipeFootprint::ends_prompt(const SeqState& seq) const {
  if (!seq.recomputes || trigger_->inside_prefill()) return false;
  const std::int32_t end = seq.seen_tokens + seq.new_tokens;
  if (!shapes_.policy().needs().pass.empty()) return seq.seen_tokens < seq.prompt_tokens && end >= seq.prompt_tokens;
  return end >= seq.prompt_tokens || shapes_.policy().keeps_what_stays({0, seq.seen_tokens, seq.new_tokens, end, -1});
}

ShapeRun::Seq RecipeFootprint::shape_of(const SeqState& seq) const {
  ShapeRun::Seq shape;
  fill_shape(seq, shape);
  return shape;
}

StepKey RecipeFootprint::key_of(const SeqState& seq) const {
  const std::int32_t target = decodes(seq) ? target_of(seq) : ShapeRun::kLayersDiffer;
  const bool is_whole = seq.pattern == 0 && seq.held_tokens == seq.seen_tokens, is_cut = target != ShapeRun::kNoCut;
  StepKey key;
  if (!is_cut && recipe_.only_drops)
    key.add(-4, trigger_->in_decode() ? 1 : StepKey::kForEver);
  else if (target != ShapeRun::kLayersDiffer)
    key = shapes_.policy().step_key({0, seq.seen_tokens, 1, seq.prompt_tokens, -1}, is_cut ? std::optional(target) : std::nullopt,
                                    seq.held_tokens + 1, is_whole);
  else
    key.add(-3), key.add(seq.new_tokens), key.add(seq.prompt_tokens);
  key.add(seq.pattern * 4 + (seq.left_hashed ? 2 : 0) + (seq.recomputes ? 1 : 0), StepKey::kForEver);
  if (target == ShapeRun::kLayersDiffer || patterns_.has_whole(seq.pattern)) key.add(seq.seen_tokens);
  key.add(seq.held_tokens, StepKey::kForEver);  // decode_run() increments it
  return key;
}

FootprintStep RecipeFootprint::step(const SeqState& seq) {
  if (decodes(seq)) {
    if (recipe_.prunes()) shapes_.policy().refuse_part_of_prompt(shape_of(seq).as_step());
    FootprintStep done = known_on(trail_of(seq), seq);
    if (seq.left_hashed) done.leaves_hashed = false;
    return done;
  }
  const std::array<std::int32_t, 6> state{seq.seen_tokens, seq.new_tokens, seq.prompt_tokens,
                                          seq.held_tokens, seq.pattern,    (seq.left_hashed ? 1 : 0) + (seq.recomputes ? 2 : 0)};
  std::uint32_t hash = 0;
  for (const std::int32_t n : state) hash = (hash ^ static_cast<std::uint32_t>(n)) * 0x9E3779B1U;
  Recent& recent = recent_[(hash >> 16) % recent_.size()];
  if (recent.state == state) return recent.done;
  if (recipe_.prunes()) shapes_.policy().refuse_part_of_prompt(shape_of(seq).as_step());
  const StepKey key = key_of(seq);
  const auto at = known_.find(key);
  FootprintStep done = at != known_.end() ? at->second : run(seq);
  if (at == known_.end()) {
    if (known_.size() >= kMostKnown) known_.clear();
    known_.emplace(key, done);
  }
  if (seq.left_hashed) done.leaves_hashed = false;
  recent = {state, done};
  return done;
}

RecipeFootprint::Trail& RecipeFootprint::trail_of(const SeqState& seq) {
  const std::int32_t state = seq.pattern * 4 + (seq.left_hashed ? 2 : 0) + (seq.recomputes ? 1 : 0);
  const auto at = [&](std::int32_t number) -> Trail& {
    const std::uint32_t hash =
        (static_cast<std::uint32_t>(seq.prompt_tokens) * 0x9E3779B1U ^ static_cast<std::uint32_t>(number)) * 0x85EBCA77U;
    return trails_[(hash >> 16) % kTrails];
  };
  Trail &gains = at(seq.held_tokens - seq.seen_tokens), &is_cut = at(seq.held_tokens);
  if (gains.holds(seq, state)) return gains;
  if (is_cut.holds(seq, state)) return is_cut;
  Trail& trail = trigger_->in_decode() && seq.held_tokens < seq.seen_tokens ? is_cut : gains;
  trail = {seq.prompt_tokens, state, seq.seen_tokens, seq.held_tokens, 0, key_of(seq)};
  trail.until = seq.seen_tokens + trail.key.lasts();
  return trail;
}

const FootprintStep& RecipeFootprint::find_on(Trail& trail, const SeqState& seq) {
  if (const std::int32_t index = seq.held_tokens / kChunk; index != trail.chunk_index) {
    if (chunks_.size() >= kMostChunks) {
      chunks_.clear();
      for (Trail& other : trails_) other.chunk_index = -1;
    }
    trail.key.replace_last(index);
    std::unique_ptr<Chunk>& chunk = chunks_[trail.key];
    if (chunk == nullptr) chunk = std::make_unique<Chunk>();
    trail.chunk_index = index, trail.chunk = chunk.get();
  }
  Chunk& chunk = *trail.chunk;
  const auto i = static_cast<std::size_t>(seq.held_tokens % kChunk);
  if ((chunk.known >> i & 1U) == 0) {
    chunk.steps[i] = run(seq);
    chunk.known |= 1U << i;
  }
  return chunk.steps[i];
}

// Lost, merged or marked: shorter rows, merged layers, a trigger that acted without shortening, or data-dependent counts.
bool RecipeFootprint::is_cut(const ShapeRun::Seq& seq, const ShapeRun::Result& done) const {
  const std::int32_t end = seq.seen_tokens + seq.new_tokens;
  if (std::any_of(done.held.begin(), done.held.end(), [end](std::int32_t h) { return h < end; })) return true;
  if (merges_alone_ && static_cast<double>(done.after.gpu) < pages_.token_bytes * end) return true;
  const SeqStep step{0, seq.seen_tokens, seq.new_tokens, seq.prompt_tokens, -1};
  const auto target = shapes_.policy().target(step, end);
  return target && (may_cut_ || (*target < end && !recipe_.only_drops));
}

FootprintStep RecipeFootprint::grow(const SeqState& seq) {
  use_layers(seq.pattern > 0);
  ShapeRun::Seq shape = shape_of(seq);
  for (std::int32_t& h : shape.held) ++h;
  const auto heads = static_cast<std::size_t>(model_.kv_heads);
  const std::vector<std::int64_t> bytes = shapes_.gpu_bytes(shape);
  std::vector<std::int32_t> rows(heads, shape.held.front());
  FootprintStep done;
  done.held_tokens = seq.held_tokens + 1;
  done.pattern = seq.pattern;
  std::int64_t gpu = 0;
  for (std::size_t i = 0; i < (uses_all_ ? bytes.size() : times_.size()); ++i) {
    const auto l = uses_all_ ? i : static_cast<std::size_t>(kinds_.first[i]);
    const std::int64_t times = uses_all_ ? 1 : times_[i];
    if (shape.held.size() > 1) std::copy_n(shape.held.begin() + static_cast<std::ptrdiff_t>(l * heads), heads, rows.begin());
    done.kept_pages += times * layer_pages(bytes[l], rows);
    gpu += times * bytes[l];
  }
  done.peak_pages = done.kept_pages;
  finish(seq, gpu, done);
  return done;
}

void RecipeFootprint::finish(const SeqState& seq, std::int64_t gpu, FootprintStep& done) {
  done.kept_tokens = static_cast<std::int32_t>(static_cast<double>(gpu) / pages_.token_bytes);
  done.peak_pages = std::max(done.peak_pages, done.kept_pages);
  if (seq.left_hashed) return;
  // Tokens are still in blocks; other bytes have separate pages.
  const std::int32_t end = seq.seen_tokens + seq.new_tokens;
  const double beside = static_cast<double>(gpu) - pages_.token_bytes * end;
  const std::int64_t side = std::max(side_pages(end), static_cast<std::int64_t>(std::ceil(beside / page_bytes_ - 1e-9)));
  if (!done.leaves_hashed) done.kept_pages = side;
  done.peak_pages = std::max(merges_alone_ && done.leaves_hashed ? 0 : done.kept_pages, side_pages(end));
}

FootprintStep RecipeFootprint::run(const SeqState& seq) {
  if (decodes(seq) && recipe_.only_drops && target_of(seq) == ShapeRun::kNoCut) return grow(seq);  // rows determine the kept tokens
  const ShapeRun::Seq shape = shape_of(seq);
  use_layers(seq.pattern > 0);
  shapes_.forget();
  ShapeRun::Result result = expected_.step(shape);
  expand(result);
  FootprintStep done;
  const RowPatterns::Rows rows = patterns_.note(result.held, shape.seen_tokens + seq.new_tokens);
  done.held_tokens = rows.tokens, done.pattern = rows.pattern;
  done.leaves_hashed = is_cut(shape, result);
  done.ends_prompt = ends_prompt(seq);
  std::vector<LayerPages> pages;
  pages.reserve(result.layers.size());
  std::int64_t sum = 0;
  for (std::size_t l = 0; l < result.layers.size(); ++l) {
    const auto first = uses_all_ ? l : static_cast<std::size_t>(kinds_.first[static_cast<std::size_t>(kinds_.of_layer[l])]);
    pages.push_back(first < l ? pages[first] : layer_pages(shape, result, l));
    sum += pages.back().now;
    done.kept_pages += pages.back().after;
  }
  done.peak_pages = sum;
  for (const LayerPages& layer : pages) {
    sum += layer.appended - layer.now;
    done.peak_pages = std::max(done.peak_pages, sum);
    if (!shares_layers_) sum += layer.after - layer.appended;
  }
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
  return std::max(pages, most_pages(prompt.after(seq).taking(1), seen_tokens));
}

// Until `seen_tokens`: rows with large budget shares fill late.
std::int64_t RecipeFootprint::most_pages(SeqState seq, std::int32_t seen_tokens) {
  std::int64_t most = 0;
  while (seq.seen_tokens < seen_tokens) {
    const FootprintStep done = step(seq);
    most = std::max(most, done.kept_pages);
    const SeqState next = done.after(seq);
    if (key_of(next) == key_of(seq)) break;
    seq = next;
  }
  return most;
}

std::int64_t RecipeFootprint::decode_run(const SeqState& seq, std::int64_t most, std::vector<FootprintStep>& steps) {
  if (!decodes(seq)) return 0;
  SeqState now = seq;
  Trail trail;  // a copy: the next step begins where this one does
  std::int64_t kept = steps.empty() ? 0 : steps.back().kept_pages;
  for (std::int64_t i = 0, key_until = 0; i < most; ++i) {
    if (i >= key_until) {
      trail = trail_of(now);
      key_until = i + trail.until - now.seen_tokens;
    }
    const FootprintStep& done = known_on(trail, now);
    if ((done.leaves_hashed && !now.left_hashed) || done.ends_prompt || done.pattern != now.pattern) return i;
    if (now.left_hashed && done.kept_pages < kept) return i;  // until then separate pages stay
    const std::int32_t gains = done.held_tokens - now.held_tokens;
    if (gains != 0 && gains != 1) key_until = i + 1;
    steps.push_back(done);
    steps.back().leaves_hashed = false;
    kept = done.kept_pages;
    ++now.seen_tokens;
    now.held_tokens = now.left_hashed ? done.held_tokens : now.seen_tokens;
  }
  return most;
}

RowPatterns::Rows RowPatterns::note(std::span<const std::int32_t> held, std::int32_t end) {
  const auto cut = std::find_if(held.begin(), held.end(), [end](std::int32_t h) { return h < end; });
  const std::int32_t tokens = cut == held.end() ? end : *cut;
  if (std::all_of(held.begin(), held.end(), [&](std::int32_t h) { return h == tokens; })) return {tokens, kAlike};
  std::vector<std::int32_t> pattern;
  for (const std::int32_t h : held) pattern.push_back(h == end ? kWhole : h - tokens);
  return {tokens, number_of(runs_of(pattern))};
}

std::int32_t RowPatterns::number_of(const std::vector<std::int32_t>& runs) {
  if (runs.empty()) return kAlike;
  const auto [at, is_new] = numbers_.try_emplace(runs, static_cast<std::int32_t>(patterns_.size()));
  if (is_new) {
    Pattern pattern{runs};
    for (std::size_t i = 0; i < runs.size(); i += 2) pattern.has_whole |= runs[i] == kWhole;
    patterns_.push_back(std::move(pattern));
  }
  return at->second;
}

std::vector<std::int32_t> RowPatterns::lengths(const Rows& rows, std::int32_t seen) const {
  if (rows.pattern == kAlike) return {rows.tokens};
  std::vector<std::int32_t> held = from_runs(runs(rows.pattern));
  for (std::int32_t& h : held) h = h == kWhole ? seen : h + rows.tokens;
  return held;
}

}  // namespace kvlab
