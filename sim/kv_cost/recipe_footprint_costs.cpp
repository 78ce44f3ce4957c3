#include <algorithm>
#include <cstdint>
#include <numeric>

#include "policies/kv/footprint.h"
#include "policies/kv/forward_passes.h"
#include "policies/kv/policy/policy.h"
#include "serving/op_sums.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "sim/kv_cost/shape_run.h"
#include "sim/kv_cost/step_ops.h"

namespace kvlab {

namespace {

// A prompt's scan and choice (PromptRewriter): per chunk a forward pass through the scan's layers and its operations, then choose(). The
// last layer counts as whole, a bound. Nothing if the prompt stays whole.
void add_scan(PromptRewriter& rewriter, const ModelShape& model, const SeqStep& prompt, PolicyWork& work) {
  const std::int32_t n = prompt.end();
  const std::int32_t question_tokens = prompt.question_begin < 0 ? 0 : n - prompt.question_begin;
  if (rewriter.kept(n, question_tokens) >= n) return;
  const PromptRewriter::Scan scan = rewriter.scan(model);
  Params p = Params::from_text(scan.policy, "the scan's kv_policy");
  ModelShape scanning = model;
  scanning.num_layers = std::max(1, scan.layers - 1);
  ShapeRun run(read_recipe(p), scanning);
  ShapeRun::Seq chunk{0, 0, n, {}, {prompt.question_begin, 0, {}}};
  for (std::int32_t seen = 0; seen < n; seen += chunk.new_tokens) {
    chunk.seen_tokens = seen, chunk.new_tokens = std::min(scan.chunk_tokens, n - seen);
    work.passes.push_back({chunk.new_tokens, chunk.held.empty() ? 0 : chunk.held.front(), scan.layers});
    const ShapeRun::Result done = run.step({&chunk, 1});
    for (const OpCall& call : done.calls) add_calls(work.ops, call, 1);
    chunk.held = done.held;
  }
  Ops ops(Ops::Backend::kShapes);
  const std::vector<const float*> vectors(rewriter.reads(model).size(), nullptr);
  rewriter.choose({ops, model, prompt, vectors});
  for (const OpCall& call : ops.log()) add_calls(work.ops, call, 1);
}

}  // namespace

// Read by a decode step, without the new token: from bytes, or from FLOPs if stored decoded.
std::int32_t RecipeFootprint::attended(const StepOps::Read& all) const {
  const std::int64_t q_heads = model_.q_heads, d = model_.head_dim;
  const bool lies_decoded = reads_ != KvReads::kStored;
  const std::int64_t read = lies_decoded ? all.flops : all.bytes - 4 * q_heads * d * model_.num_layers;  // without queries and outputs
  const std::int64_t token = model_.num_layers * (lies_decoded ? 4 * q_heads * d : 2LL * model_.kv_heads * d * model_.kv_bytes);
  return std::max(0, static_cast<std::int32_t>((read + token / 2) / token) - 1);
}

void RecipeFootprint::fill_shape(const SeqState& seq, ShapeRun::Seq& shape) const {
  shape.seen_tokens = seq.seen_tokens, shape.new_tokens = seq.new_tokens;
  shape.prompt_tokens = ends_prompt(seq) ? seq.seen_tokens + seq.new_tokens : seq.prompt_tokens;
  if (seq.pattern == RowPatterns::kAlike)
    shape.held.assign(1, seq.held_tokens);
  else
    shape.held = patterns_.lengths({seq.held_tokens, seq.pattern}, seq.seen_tokens);
  shape.inputs = input_sizes(shapes_.policy().needs(), shape.as_step());
}

// A decode step. Of a walk with the prompt, only lengths change.
void RecipeFootprint::fill_walk(const SeqState& seq, StepOps::Walk& walk) const {
  if (seq.pattern != RowPatterns::kAlike || walk.seq.prompt_tokens != seq.prompt_tokens) return fill_shape(seq, walk.seq);
  walk.seq.seen_tokens = seq.seen_tokens;
  if (walk.seq.held.size() != 1) walk.seq.held.resize(1);
  walk.seq.held.front() = seq.held_tokens;
}

void RecipeFootprint::charge(std::span<SeqState> batch, PolicyWork& work) {
  charge_decodes(batch, work);
  charge_prompts(batch, work);
}

void RecipeFootprint::charge_decodes(std::span<SeqState> batch, PolicyWork& work) {
  std::size_t rows = 0;
  for (const SeqState& s : batch) {
    if (!decodes(s)) continue;
    if (rows == walks_.size()) walks_.emplace_back();
    StepOps::Walk& walk = walks_[rows++];
    fill_walk(s, walk);
    walk.grown.clear();
    if (unpacking_ && (!s.is_named || s.left_hashed)) unpack(s, walk.seq);
  }
  if (rows == 0) return;
  of_walks_.assign(rows, {});
  add_decodes(decodes_.decode(std::span(walks_).first(rows), 1, of_walks_).front(), work.ops);
  auto read = of_walks_.begin();
  for (SeqState& s : batch)
    if (decodes(s)) s.attended_tokens = attended(*read++);
  if (unpacking_) unpacking_->take(work.ops);
}

void RecipeFootprint::add_decodes(const LayerCalls& calls, std::vector<PolicyOp>& ops) const {
  for (std::size_t c = 0; c < calls.calls.size(); ++c) {
    const auto layers = std::count(calls.class_of_layer.begin(), calls.class_of_layer.end(), static_cast<std::int32_t>(c));
    for (const OpCall& call : calls.calls[c])
      if (!is_fetch(call) || !unpacking_ || !unpacking_->has_fetches()) add_calls(ops, call, layers, shapes_.policy().fetches_beside());
  }
}

// After losses, held tokens are the rest of the prompt and all decoded ones; triggers in decode drop encoded tokens.
void RecipeFootprint::unpack(const SeqState& seq, const ShapeRun::Seq& shape) {
  std::int64_t held = std::accumulate(shape.held.begin(), shape.held.end(), std::int64_t{0});
  if (shape.held.size() == 1) held *= std::int64_t{model_.num_layers} * model_.kv_heads;
  const bool lost = std::any_of(shape.held.begin(), shape.held.end(), [&](std::int32_t h) { return h < shape.seen_tokens; });
  if (!lost || !trigger_->in_decode()) unpacking_->add(lost ? seq.prompt_tokens : seq.held_tokens, held);
}

// Each token decoded ahead is a pass. Backward to activations has the forward's dense products and 5 per query-key pair (q k, d_out v, ds
// k, ds q, p d_out) instead of 2: a forward pass over 2.5 times the tokens.
void RecipeFootprint::add_passes(std::span<const PassShape> chunks, std::int32_t kv_tokens, PolicyWork& work) const {
  const std::string& name = shapes_.policy().needs().pass;
  const bool decodes = name == passes::kLookahead, is_differentiated = has_backward(name);
  for (const PassShape& chunk : chunks) {
    if (!decodes) work.passes.push_back({chunk.count, kv_tokens});
    if (is_differentiated) work.passes.push_back({chunk.count, static_cast<std::int32_t>(std::int64_t{kv_tokens} * 5 / 2)});
    for (std::int32_t i = 0; decodes && i < chunk.count; ++i) work.passes.push_back({1, kv_tokens + i});
  }
}

// If layers compute fewer and fewer.
void RecipeFootprint::add_pruned(const ShapeRun::Seq& shape, std::size_t place, PolicyWork& work) const {
  PrunedPrompt prompt{place, {}};
  for (std::int32_t l = 0; l < model_.num_layers; ++l) prompt.tokens.push_back(shapes_.policy().step_tokens(shape.as_step(), l));
  if (prompt.tokens.back() < shape.new_tokens) work.pruned.push_back(std::move(prompt));
}

void RecipeFootprint::charge_prompts(std::span<SeqState> batch, PolicyWork& work) {
  std::vector<ShapeRun::Seq> rows;
  bool differ = false;
  for (SeqState& s : batch) {
    if (decodes(s)) continue;
    rows.push_back(shape_of(s));
    differ = differ || s.pattern > 0;
    const std::vector<std::int32_t>& of_rows = rows.back().held;
    s.attended_tokens = static_cast<std::int32_t>(std::accumulate(of_rows.begin(), of_rows.end(), std::int64_t{0}) / std::ssize(of_rows));
    add_passes(rows.back().inputs.pass, s.attended_tokens + s.new_tokens, work);
    if (recipe_.prunes()) add_pruned(rows.back(), static_cast<std::size_t>(&s - batch.data()), work);
    const SeqStep step = rows.back().as_step();
    if (recipe_.rewrites() && step.completes_prompt()) add_scan(*shapes_.policy().rewriter(), model_, step, work);
  }
  if (rows.empty()) return;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) work.sparse_layers += shapes_.policy().selects_in_prompts(l) ? 1 : 0;
  use_layers(differ);
  shapes_.forget();
  const ShapeRun::Result result = expected_.step_at_bounds(rows);
  for (std::size_t l = 0; l + 1 < result.first_call.size(); ++l)
    for (std::size_t c = result.first_call[l]; c < result.first_call[l + 1]; ++c)
      add_calls(work.ops, result.calls[c], uses_all_ ? 1 : times_[static_cast<std::size_t>(kinds_.of_layer[l])]);
}

void RecipeFootprint::charge_ahead(std::span<const SeqState> batch, std::span<const std::span<const FootprintStep>> runs,
                                   std::int64_t steps, DecodeAhead& ahead) {
  const auto count = static_cast<std::size_t>(steps);
  if (walks_.size() < batch.size()) walks_.resize(batch.size());
  for (std::size_t s = 0; s < batch.size(); ++s) {
    StepOps::Walk& walk = walks_[s];
    fill_walk(batch[s], walk);
    walk.grown.resize(count);
    walk.grown.front() = 0;
    for (std::size_t i = 1; i < count; ++i) walk.grown[i] = runs[s][i - 1].held_tokens - batch[s].held_tokens;
  }
  of_walks_.assign(count * batch.size(), {});
  const std::vector<LayerCalls> calls = decodes_.decode(std::span(walks_).first(batch.size()), count, of_walks_);
  ahead.ops.assign(count, {}), ahead.attended.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0 && calls[i] == calls[i - 1])
      ahead.ops[i] = ahead.ops[i - 1];
    else
      add_decodes(calls[i], ahead.ops[i]);
    ahead.attended[i].resize(batch.size());
    const std::span<const StepOps::Read> reads = std::span(of_walks_).subspan(i * batch.size(), batch.size());
    for (std::size_t s = 0; s < batch.size(); ++s) ahead.attended[i][s] = attended(reads[s]);
  }
}

}  // namespace kvlab
