#include "engine/cache/policy_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/attend/attend.h"
#include "kernels/attention_prefill/attention_prefill.h"

namespace kvlab {

namespace {

ModelShape shape_of_model(const ModelConfig& c, std::int32_t kv_bytes) {
  return {c.layers, c.q_heads, c.kv_heads, c.head_dim, c.hidden_dim, kv_bytes, c.rope_base};
}

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

}  // namespace

// Sequences that take the step together.
struct PolicyCache::Group {
  std::vector<SeqStep> seqs;
  std::vector<EngineSequence*> sequences;
  std::vector<std::int64_t> first;  // of each sequence's tokens in the batch
  std::vector<std::size_t> unshared;
  std::vector<KvStore> layers;
  std::unique_ptr<EngineObserver> observer;
  bool is_prompt = false, defers = false;
  // Where the policy acts after the last layer alone: [layers], q and hidden of all sequences one after another.
  std::vector<LayerTensors> kept;
};

PolicyCache::PolicyCache(const Transformer& model, const Recipe& recipe, const Options& options)
    : model_(model),
      shape_(shape_of_model(model.config(), options.kv_bytes)),
      policy_(recipe, shape_),
      options_(options),
      shares_layers_(recipe.make_allocator()->scope() != Allocator::Scope::kLayer),
      ops_(Ops::Backend::kCpu),
      pages_(std::make_shared<KvPages>(shape_.head_dim, policy_.num_words(), options.page_tokens)) {
  if (!recipe.runs_in("engine"))
    throw InputError(fmt::format("recipe '{}' does not run in the engine; it runs in: {}", recipe.name, fmt::join(recipe.hosts, ", ")));
  ops_.keep_log(false);
  ops_.take_counts_from(options.counts);
}

PolicyCache::~PolicyCache() = default;

void PolicyCache::start(EngineSequence& sequence) {
  const std::int32_t prompt = sequence.prompt_tokens;
  if (policy_.needs().question && sequence.question_begin < 0)
    throw InputError(fmt::format("recipe '{}' needs to know where the question begins in the prompt", policy_.recipe().name));
  policy_.refuse_small_budget({0, 0, prompt, prompt, -1});
  policy_.refuse_small_budget({0, prompt, 1, prompt, -1});
  policy_.forget(sequence.index);
  const auto heads = at(shape_.kv_heads);
  sequence.seen_tokens = 0;
  sequence.pass = nullptr;
  sequence.memory.assign(at(shape_.num_layers), {});
  sequence.rows.assign(at(shape_.num_layers), {std::vector<std::int32_t>(heads, 0), std::vector<std::vector<std::int32_t>>(heads)});
}

void PolicyCache::release(EngineSequence& sequence) {
  for (KvStore::Sequence& layer : sequence.rows)
    for (const auto& pages : layer.pages)
      for (const std::int32_t page : pages) pages_->give_back(page);
  sequence.rows.clear();
  sequence.memory.clear();
  sequence.pass = nullptr;
  policy_.forget(sequence.index);
}

void PolicyCache::begin_step(std::span<const StepPiece> pieces) {
  if (options_.counts != nullptr) options_.counts->begin_step(steps_);
  ++steps_;
  groups_.clear();
  for (const bool is_prompt : {false, true}) {
    auto group = std::make_unique<Group>();
    std::int64_t first = 0;
    for (const StepPiece& piece : pieces) {
      EngineSequence& s = *piece.sequence;
      const SeqStep seq{s.index, s.seen_tokens, piece.new_tokens, s.prompt_tokens, s.question_begin};
      if (seq.decoding() != is_prompt) {
        if (piece.unshares) group->unshared.push_back(group->seqs.size());
        group->seqs.push_back(seq);
        group->sequences.push_back(&s);
        group->first.push_back(first);
      }
      first += piece.new_tokens;
    }
    if (group->seqs.empty()) continue;
    group->is_prompt = is_prompt;
    group->defers = is_prompt && (shares_layers_ || !policy_.needs().pass.empty());
    if (group->defers) group->kept.resize(at(shape_.num_layers));
    open(*group);
    groups_.push_back(std::move(group));
  }
}

// Takes the rows into a batch of each layer.
void PolicyCache::open(Group& g) {
  for (std::int32_t l = 0; l < shape_.num_layers; ++l) {
    KvStore& store = g.layers.emplace_back(shape_, pages_);
    for (EngineSequence* s : g.sequences) store.push(std::move(s->rows[at(l)]));
  }
  std::vector<const float*> w_o;
  if (policy_.needs().output_weights)
    for (const LayerWeights& w : model_.weights().layers) w_o.push_back(w.o.data());
  g.observer = std::make_unique<EngineObserver>(policy_.needs(), shape_, g.seqs, g.sequences);
  g.observer->set_output_weights(std::move(w_o));
}

void PolicyCache::close(Group& g) {
  for (std::int32_t l = 0; l < shape_.num_layers; ++l)
    for (std::size_t s = g.sequences.size(); s-- > 0;) g.sequences[s]->rows[at(l)] = g.layers[at(l)].pop();
  for (std::size_t s = 0; s < g.seqs.size(); ++s) g.sequences[s]->seen_tokens = g.seqs[s].end();
}

PolicyStep PolicyCache::step_of(Group& g) { return {ops_, shape_, g.seqs, g.layers, *g.observer, options_.seed}; }

void PolicyCache::before_rope(std::int32_t layer, const float* hidden, const float* q, const float* k) {
  const Needs& needs = policy_.needs();
  const std::int64_t q_width = std::int64_t{shape_.q_heads} * shape_.head_dim, kv_width = std::int64_t{shape_.kv_heads} * shape_.head_dim;
  for (const auto& g : groups_) {
    for (std::size_t s = 0; s < g->seqs.size(); ++s) {
      const SeqStep& seq = g->seqs[s];
      const std::int64_t first = g->first[s];
      EngineSequence::Memory& memory = g->sequences[s]->memory[at(layer)];
      g->observer->at(layer, s).hidden = hidden + first * shape_.hidden_dim;
      if (needs.pre_rope_keys) memory.pre_k.insert(memory.pre_k.end(), k + first * kv_width, k + (first + seq.new_tokens) * kv_width);
      if (!needs.pre_rope_queries || seq.decoding()) continue;
      if (memory.pre_q == nullptr) memory.pre_q = std::make_shared<std::vector<float>>();
      const std::int64_t in_prompt = std::min(seq.end(), seq.prompt_tokens) - seq.seen_tokens;
      memory.pre_q->insert(memory.pre_q->end(), q + first * q_width, q + (first + in_prompt) * q_width);
    }
  }
}

void PolicyCache::append(Group& g, std::int32_t layer, const float* k, const float* v) {
  const std::int64_t width = std::int64_t{shape_.kv_heads} * shape_.head_dim;
  for (std::size_t s = 0; s < g.seqs.size(); ++s)
    g.layers[at(layer)].append(static_cast<std::int32_t>(s), k + g.first[s] * width, v + g.first[s] * width, g.seqs[s].new_tokens,
                               g.seqs[s].seen_tokens);
}

// The prompt's last queries stay.
void PolicyCache::remember(Group& g, std::size_t s, std::int32_t layer, const float* q) {
  const std::int32_t wanted = policy_.needs().window_queries;
  const SeqStep& seq = g.seqs[s];
  if (wanted == 0 || seq.decoding()) return;
  const std::int64_t width = std::int64_t{shape_.q_heads} * shape_.head_dim;
  const std::int32_t in_prompt = std::min(seq.end(), seq.prompt_tokens) - seq.seen_tokens, added = std::min(in_prompt, wanted);
  std::vector<float>& window = g.sequences[s]->memory[at(layer)].window;
  const std::int64_t surplus = static_cast<std::int64_t>(window.size()) / width + added - wanted;
  if (surplus > 0) window.erase(window.begin(), window.begin() + surplus * width);
  window.insert(window.end(), q + (in_prompt - added) * width, q + in_prompt * width);
}

void PolicyCache::attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) {
  const std::int64_t q_width = std::int64_t{shape_.q_heads} * shape_.head_dim;
  for (const auto& g : groups_) append(*g, layer, k, v);
  for (const auto& group : groups_) {
    Group& g = *group;
    bool is_cut = false;
    for (std::size_t s = 0; s < g.seqs.size(); ++s) {
      const float* const own_q = q + g.first[s] * q_width;
      g.observer->at(layer, s).q = own_q;
      remember(g, s, layer, own_q);
      is_cut |= g.is_prompt && !is_whole(g, s, layer);
    }
    if (!g.is_prompt || is_cut)
      attend_segments(g, layer, q, out);
    else
      for (std::size_t s = 0; s < g.seqs.size(); ++s) attend_whole(g, s, layer, q, k, v, out);
    if (g.defers) {
      keep(g, layer);
    } else {
      unshare(g, layer);
      policy_.after_attention(step_of(g), layer);
    }
  }
}

void PolicyCache::unshare(Group& g, std::int32_t layer) {
  for (const std::size_t s : g.unshared)
    for (std::int32_t h = 0; h < shape_.kv_heads; ++h) g.layers[at(layer)].unshare(static_cast<std::int32_t>(s) * shape_.kv_heads + h);
}

bool PolicyCache::is_whole(Group& g, std::size_t s, std::int32_t layer) const {
  for (std::int32_t h = 0; h < shape_.kv_heads; ++h)
    if (g.layers[at(layer)].len(static_cast<std::int32_t>(s) * shape_.kv_heads + h) != g.seqs[s].end()) return false;
  return true;
}

// Over what the policy lets be attended to. Prompts are the model's own attention and not logged.
void PolicyCache::attend_segments(Group& g, std::int32_t layer, const float* q, float* out) {
  const Ops::Frame frame(ops_);
  policy_.before_attention(step_of(g), layer, segments_);
  std::vector<Queries> queries;
  std::vector<float*> outs;
  const std::int64_t width = std::int64_t{shape_.q_heads} * shape_.head_dim;
  for (std::size_t s = 0; s < g.seqs.size(); ++s) {
    queries.push_back({q + g.first[s] * width, g.seqs[s].new_tokens, g.seqs[s].seen_tokens});
    outs.push_back(out + g.first[s] * width);
  }
  Attend op{segments_.data(), static_cast<std::int32_t>(segments_.size()), queries.data(), outs.data()};
  op.window = model_.config().window(layer);
  if (g.is_prompt)
    run_cpu(op);
  else
    ops_(op);
}

// A prompt of which nothing is cut.
void PolicyCache::attend_whole(Group& g, std::size_t s, std::int32_t layer, const float* q, const float* k, const float* v, float* out) {
  const SeqStep& seq = g.seqs[s];
  const std::int64_t d = shape_.head_dim, q_width = shape_.q_heads * d, kv_width = shape_.kv_heads * d;
  AttentionPrefill op{q + g.first[s] * q_width,
                      k + g.first[s] * kv_width,
                      v + g.first[s] * kv_width,
                      out + g.first[s] * q_width,
                      nullptr,
                      seq.new_tokens,
                      seq.seen_tokens,
                      shape_.q_heads,
                      shape_.kv_heads,
                      d,
                      1.0F / std::sqrt(static_cast<float>(d)),
                      model_.config().window(layer)};
  if (seq.seen_tokens > 0) {
    gather(g, s, layer);
    op.k = whole_k_.data(), op.v = whole_v_.data();
  }
  scratch_.resize(std::max(scratch_.size(), static_cast<std::size_t>(scratch_floats(op))));
  op.scratch = scratch_.data();
  run_cpu(op);
}

// Pages of a sequence's rows to [tokens, kv_heads, head_dim].
void PolicyCache::gather(Group& g, std::size_t s, std::int32_t layer) {
  const KvRows kv = g.layers[at(layer)].rows();
  const std::int64_t d = shape_.head_dim, width = shape_.kv_heads * d, n = g.seqs[s].end();
  if (static_cast<std::int64_t>(whole_k_.size()) < n * width)
    whole_k_.resize(at(static_cast<std::int32_t>(n * width))), whole_v_.resize(whole_k_.size());
  constexpr std::int64_t kPart = 256;
  for_each_in_parallel((n + kPart - 1) / kPart, [&](std::int64_t part) {
    for (std::int32_t h = 0; h < shape_.kv_heads; ++h) {
      const std::int32_t row = static_cast<std::int32_t>(s) * shape_.kv_heads + h;
      for (std::int64_t i = part * kPart; i < std::min(n, (part + 1) * kPart); ++i) {
        const std::int64_t slot = kv.slot(row, static_cast<std::int32_t>(i)), to = i * width + h * d;
        std::copy_n(kv.k + slot * d, d, whole_k_.data() + to);
        std::copy_n(kv.v + slot * d, d, whole_v_.data() + to);
      }
    }
  });
}

// Queries and inputs of the layer stay until the policy acts behind the last layer.
void PolicyCache::keep(Group& g, std::int32_t layer) {
  LayerTensors& kept = g.kept[at(layer)];
  const std::int64_t q_width = std::int64_t{shape_.q_heads} * shape_.head_dim;
  std::int64_t tokens = 0;
  for (const SeqStep& seq : g.seqs) tokens += seq.new_tokens;
  const Needs& needs = policy_.needs();
  if (needs.step_queries) kept.q.reserve(static_cast<std::size_t>(tokens * q_width));
  if (needs.hidden) kept.hidden.reserve(static_cast<std::size_t>(tokens * shape_.hidden_dim));
  for (std::size_t s = 0; s < g.seqs.size(); ++s) {
    LayerTensorsOfStep& tensors = g.observer->at(layer, s);
    const std::int64_t n = g.seqs[s].new_tokens;
    const auto copy = [&](const float*& from, std::vector<float>& to, bool needed, std::int64_t width) {
      if (!needed) return;
      to.insert(to.end(), from, from + n * width);
      from = to.data() + to.size() - n * width;
    };
    copy(tensors.q, kept.q, needs.step_queries, q_width);
    copy(tensors.hidden, kept.hidden, needs.hidden, shape_.hidden_dim);
  }
}

void PolicyCache::end_step(std::span<const float> hidden) {
  for (const auto& group : groups_) {
    Group& g = *group;
    if (g.defers) {
      for (std::size_t s = 0; s < g.seqs.size(); ++s)
        if (!policy_.needs().pass.empty() && g.seqs[s].completes_prompt()) run_pass(g, s, hidden);
      for (std::int32_t l = 0; l < shape_.num_layers; ++l) unshare(g, l);
      for (std::int32_t l = 0; l < shape_.num_layers; ++l) policy_.after_attention(step_of(g), l);
    }
    close(g);
  }
  groups_.clear();
}

// Over the whole prompt, which is still uncut.
void PolicyCache::run_pass(Group& g, std::size_t s, std::span<const float> hidden) {
  const SeqStep& seq = g.seqs[s];
  KvState kv(model_.config());
  kv.tokens = seq.end();
  for (std::int32_t l = 0; l < shape_.num_layers; ++l) {
    if (!is_whole(g, s, l))
      throw InputError(
          fmt::format("recipe '{}' cuts the cache before its pass '{}' has run over it", policy_.recipe().name, policy_.needs().pass));
    gather(g, s, l);
    const std::int64_t floats = kv.tokens * kv.token_floats;
    kv.k[at(l)].assign(whole_k_.begin(), whole_k_.begin() + floats);
    kv.v[at(l)].assign(whole_v_.begin(), whole_v_.begin() + floats);
  }
  const std::int64_t width = shape_.hidden_dim, last = g.first[s] + seq.new_tokens - 1;
  const std::vector<float> logits = model_.logits(hidden.subspan(static_cast<std::size_t>(last * width), static_cast<std::size_t>(width)));
  RecordOptions options = options_.passes;
  options.hidden = policy_.needs().pass_hidden;
  EngineSequence& sequence = *g.sequences[s];
  sequence.pass = std::make_shared<ExtraPass>(
      run_extra_pass(policy_.needs().pass, model_, std::span(sequence.ids).first(at(seq.end())), kv, logits, options));
}

void PolicyCache::adopt(EngineSequence& sequence, const PromptTensors& prompt) {
  if (sequence.seen_tokens != 0 || prompt.tokens() != sequence.prompt_tokens)
    throw InternalError("a sequence that adopts a prompt is fresh and has a prompt of that length");
  const Needs& needs = policy_.needs();
  if (!needs.pass.empty()) sequence.pass = prompt.passes.at(needs.pass);
  const StepPiece piece{&sequence, prompt.tokens()};
  begin_step({&piece, 1});
  Group& g = *groups_.front();
  for (std::int32_t l = 0; l < shape_.num_layers; ++l) {
    const LayerTensors& layer = prompt.layers[at(l)];
    append(g, l, layer.k.data(), layer.v.data());
    g.observer->at(l, 0) = {layer.q.data(), layer.hidden.data()};
    remember(g, 0, l, layer.q.data());
    EngineSequence::Memory& memory = sequence.memory[at(l)];
    if (needs.pre_rope_queries) memory.pre_q = std::make_shared<std::vector<float>>(layer.pre_q);
    if (needs.pre_rope_keys) memory.pre_k = layer.pre_k;
    policy_.after_attention(step_of(g), l);
  }
  close(g);
  groups_.clear();
}

TierBytes PolicyCache::resident(EngineSequence& sequence) {
  const SeqStep seq{sequence.index, sequence.seen_tokens, 0, sequence.prompt_tokens, sequence.question_begin};
  TierBytes all;
  for (std::int32_t l = 0; l < shape_.num_layers; ++l) {
    KvStore store(shape_, pages_);
    store.push(std::move(sequence.rows[at(l)]));
    all += policy_.resident(l, {&seq, 1}, store.rows());
    sequence.rows[at(l)] = store.pop();
  }
  return all;
}

std::vector<std::vector<std::int32_t>> PolicyCache::positions(EngineSequence& sequence) {
  std::vector<std::vector<std::int32_t>> all;
  for (KvStore::Sequence& rows : sequence.rows) {
    KvStore store(shape_, pages_);
    store.push(std::move(rows));
    const KvRows kv = store.rows();
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      all.emplace_back();
      for (std::int32_t i = 0; i < kv.len[r]; ++i) all.back().push_back(kv.position[kv.slot(r, i)]);
    }
    rows = store.pop();
  }
  return all;
}

}  // namespace kvlab
