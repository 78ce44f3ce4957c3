#include "engine/cache/policy_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/ceil_div.h"
#include "base/error.h"
#include "engine/cache/policy_cache_group.h"
#include "kernels/attention/attend/attend.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/storage/stored/rows_view.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/cache/kv_keeper.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

namespace {

ModelShape shape_of_model(const ModelConfig& c, std::int32_t kv_bytes) {
  return {c.layers, c.q_heads, c.kv_heads, c.head_dim, c.hidden_dim, kv_bytes, {c.rope_base, c.rope_scaling}};
}

class CpuCacheModel final : public CacheModel {
 public:
  explicit CpuCacheModel(const Transformer& model) : model_(model) {}
  [[nodiscard]] const ModelConfig& config() const override { return model_.config(); }
  [[nodiscard]] const float* output_weights(std::int32_t layer) const override { return model_.weights().layers[place(layer)].o.data(); }
  [[nodiscard]] QueryWeights query_weights(std::int32_t layer) const override {
    const LayerWeights& w = model_.weights().layers[place(layer)];
    const auto or_null = [](Weight x) { return x.empty() ? nullptr : x.data(); };
    return {w.q.data(), or_null(w.q_bias), or_null(w.q_norm), model_.config().norm_epsilon};
  }
  [[nodiscard]] const Transformer* transformer() const override { return &model_; }

 private:
  const Transformer& model_;
};

Ops ops_in(const TensorMemory& memory) { return memory.on_host() ? Ops(Ops::Backend::kCpu) : Ops(*memory.cuda()); }

}  // namespace

PolicyCache::PolicyCache(const Transformer& model, const Recipe& recipe, const Options& options)
    : PolicyCache(std::make_unique<CpuCacheModel>(model), recipe, options) {}

PolicyCache::PolicyCache(std::unique_ptr<const CacheModel> model, const Recipe& recipe, const Options& options)
    : model_(std::move(model)),
      shape_(shape_of_model(model_->config(), options.kv_bytes)),
      policy_(recipe, shape_),
      options_(options),
      shares_layers_(recipe.make_allocator()->scope() != Allocator::Scope::kLayer),
      ops_(ops_in(model_->memory())),
      pages_(std::make_shared<KvPages>(shape_.head_dim, policy_.num_words(), options.page_tokens, model_->memory(), model_->kv_type())),
      q_(model_->memory()),
      k_(model_->memory()),
      hidden_(model_->memory()),
      out_(model_->memory()) {
  if (!recipe.runs_in("engine"))
    throw InputError(fmt::format("recipe '{}' does not run in the engine; it runs in: {}", recipe.name, fmt::join(recipe.hosts, ", ")));
  if (!model_->memory().on_host()) {
    refuse_cpu_only(recipe, policy_.needs());
    if (recipe.selects_in_prompts() && !has_prefill_kernel())
      throw InputError(fmt::format(
          "recipe '{}' selects in prompts; on a GPU this needs keys of 16 bits, head_dim 64, 128 or 256, and at most 16 query heads per KV "
          "head",
          recipe.name));
  }
  refuse_renumbering(recipe, model_->config());
  refuse_pruning(recipe, model_->config());
  keeper_ = std::make_unique<Keeper>(groups_, options.packs && policy_.encodes());
  pages_->reserve(options.reserved_pages);
  ops_.keep_log(false);
  ops_.take_counts_from(options.counts);
}

PolicyCache::~PolicyCache() = default;

void refuse_renumbering(const Recipe& recipe, const ModelConfig& model) {
  for (std::int32_t l = 0; recipe.renumbers() && l < model.layers; ++l)
    if (model.window(l) > 0)
      throw InputError(
          fmt::format("recipe '{}' cannot run: keys cannot be renumbered, because layer {} of the model attends to a window of its own; "
                      "write 'positions: original'",
                      recipe.name, l));
}

void refuse_cpu_only(const Recipe& recipe, const Needs& needs) {
  if (!needs.cpu_only.empty()) throw InputError(fmt::format("recipe '{}' {}; it runs only with backend cpu", recipe.name, needs.cpu_only));
}

// Views of several layers must not move.
void PolicyCache::make_room(std::span<const StepPiece> pieces) {
  std::int64_t pages = 0;
  const std::int32_t each = pages_->page_tokens();
  for (const StepPiece& piece : pieces) {
    std::int64_t most_awake = 0;  // one packed layer has pages at a time
    for (std::size_t l = 0; l < piece.sequence->rows.size(); ++l) {
      const KvStore::Sequence& layer = piece.sequence->rows[l];
      std::int64_t of_layer = 0;
      for (std::size_t h = 0; h < layer.pages.size(); ++h) {
        const auto held = static_cast<std::int64_t>(layer.pages[h].size());
        of_layer += std::max<std::int64_t>(0, ceil_div(layer.len[h] + piece.new_tokens, each) - held);
        if (piece.unshares) of_layer += held;
      }
      if (is_resting(*piece.sequence, l) || is_lowered(*piece.sequence, l))
        most_awake = std::max(most_awake, of_layer);
      else
        pages += of_layer;
    }
    pages += most_awake;
  }
  pages_->make_free(pages);
}

void PolicyCache::begin_step(std::span<const StepPiece> pieces) {
  if (options_.counts != nullptr) options_.counts->begin_step(steps_);
  ++steps_;
  groups_.clear();
  make_room(pieces);
  for (const bool is_prompt : {false, true}) {
    auto group = std::make_unique<Group>();
    std::int64_t first = 0;
    for (const StepPiece& piece : pieces) {
      EngineSequence& s = *piece.sequence;
      const SeqStep seq{s.index, s.seen_tokens, piece.new_tokens, s.prompt_tokens, s.question_begin, s.draws};
      policy_.refuse_part_of_prompt(seq);
      if (seq.decoding() != is_prompt) {
        if (piece.unshares) group->unshared.push_back(group->seqs.size());
        group->seqs.push_back(seq);
        group->sequences.push_back(&s);
        group->first.push_back(first);
        group->rows.push_back(piece.new_tokens);
      }
      first += piece.new_tokens;
    }
    if (group->seqs.empty()) continue;
    group->positions.resize(group->seqs.size());
    group->is_prompt = is_prompt;
    group->defers = is_prompt && (shares_layers_ || !policy_.needs().pass.empty());
    if (group->defers) group->kept.resize(place(shape_.num_layers));
    open(*group);
    groups_.push_back(std::move(group));
  }
}

void PolicyCache::open(Group& g) {
  for (std::int32_t l = 0; l < shape_.num_layers; ++l) {
    KvStore& store = g.layers.emplace_back(shape_, pages_);
    for (EngineSequence* s : g.sequences) store.push(std::move(s->rows[place(l)]));
  }
  g.observer = std::make_unique<EngineObserver>(policy_.needs(), shape_, model_->memory(), g.seqs, g.sequences);
  for (std::int32_t l = 0; l < shape_.num_layers; ++l) {
    if (policy_.needs().output_weights) g.observer->add_output_weights(model_->output_weights(l));
    if (policy_.needs().guessed_query) g.observer->add_query_weights(model_->query_weights(l));
  }
}

void PolicyCache::close(Group& g) {
  for (std::int32_t l = 0; l < shape_.num_layers; ++l)
    for (std::size_t s = g.sequences.size(); s-- > 0;) g.sequences[s]->rows[place(l)] = g.layers[place(l)].pop();
  for (std::size_t s = 0; s < g.seqs.size(); ++s) g.sequences[s]->seen_tokens = g.seqs[s].end();
}

PolicyStep PolicyCache::step_of(Group& g) { return {ops_, shape_, g.seqs, g.layers, *g.observer, options_.seed, keeper_.get()}; }

// Keeps the previous layer's inputs, which the model overwrites, for guessed queries.
void PolicyCache::keep_inputs(const float* hidden) {
  std::int64_t tokens = 0;
  for (const auto& g : groups_)
    for (const SeqStep& seq : g->seqs) tokens += seq.new_tokens;
  hidden_before_.swap(hidden_now_);
  hidden_now_.assign(hidden, hidden + tokens * shape_.hidden_dim);
}

void PolicyCache::before_rope(std::int32_t layer, const float* hidden, const float* q, const float* k) {
  const Needs& needs = policy_.needs();
  const std::int64_t q_width = std::int64_t{shape_.q_heads} * shape_.head_dim, kv_width = std::int64_t{shape_.kv_heads} * shape_.head_dim;
  if (needs.guessed_query) keep_inputs(hidden);
  for (const auto& g : groups_) {
    for (std::size_t s = 0; s < g->seqs.size(); ++s) {
      const SeqStep& seq = g->seqs[s];
      const std::int64_t first = g->first[s];
      EngineSequence::Memory& memory = g->sequences[s]->memory[place(layer)];
      g->observer->at(layer, s).hidden = hidden + first * shape_.hidden_dim;
      if (needs.guessed_query && layer > 0) g->observer->at(layer, s).hidden_before = hidden_before_.data() + first * shape_.hidden_dim;
      if (needs.pre_rope_keys) memory.pre_k.append(k + first * kv_width, seq.new_tokens * kv_width);
      if (!needs.pre_rope_queries || seq.decoding()) continue;
      if (memory.pre_q == nullptr) memory.pre_q = std::make_shared<TensorArray<float>>(model_->memory());
      const std::int64_t in_prompt = std::min(seq.end(), seq.prompt_tokens) - seq.seen_tokens;
      memory.pre_q->append(q + first * q_width, in_prompt * q_width);
    }
  }
}

void PolicyCache::append(Group& g, std::int32_t layer, const LayerInput& in) {
  const std::int64_t stride = in.kv_stride != 0 ? in.kv_stride : std::int64_t{shape_.kv_heads} * shape_.head_dim;
  const auto from = [&](const void* data, std::size_t s) {
    return static_cast<const char*>(data) + g.first[s] * stride * element_bytes(in.kv_type);
  };
  std::vector<AppendedTokens> news;
  for (std::size_t s = 0; s < g.seqs.size(); ++s)
    news.push_back({static_cast<std::int32_t>(s), g.rows[s], g.seqs[s].end() - g.rows[s], from(in.k, s), from(in.v, s)});
  g.layers[place(layer)].append(news, in.kv_type, in.kv_stride);
  for (std::size_t s = 0; s < g.seqs.size(); ++s)
    if (!g.positions[s].empty()) place_pruned(g, s, layer);
  ops_.timed({kAtRest}, [&] { wake(g, layer), raise(g, layer); });
}

void PolicyCache::remember(Group& g, std::size_t s, std::int32_t layer, const float* q) {
  const std::int32_t wanted = policy_.needs().window_queries;
  const SeqStep& seq = g.seqs[s];
  if (wanted == 0 || seq.decoding()) return;
  const std::int64_t width = std::int64_t{shape_.q_heads} * shape_.head_dim;
  const std::int32_t in_prompt = std::min(seq.end(), seq.prompt_tokens) - seq.seen_tokens, added = std::min(in_prompt, wanted);
  TensorArray<float>& window = g.sequences[s]->memory[place(layer)].window;
  const std::int64_t surplus = window.size() / width + added - wanted;
  if (surplus > 0) window.drop_front(surplus * width);
  window.append(q + (in_prompt - added) * width, added * width);
}

void PolicyCache::attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) {
  attend_layer(layer, {q, k, v, ElementType::kF32, 0, out});
}

void PolicyCache::attend_layer(std::int32_t layer, LayerInput in) {
  const std::int64_t q_width = std::int64_t{shape_.q_heads} * shape_.head_dim;
  for (const auto& g : groups_) append(*g, layer, in);
  for (const auto& group : groups_) {
    Group& g = *group;
    bool is_cut = false;
    for (std::size_t s = 0; s < g.seqs.size(); ++s) {
      const float* const own_q = in.q == nullptr ? nullptr : in.q + g.first[s] * q_width;
      g.observer->at(layer, s).q = own_q;
      g.observer->at(layer, s).rows = g.rows[s];
      remember(g, s, layer, own_q);
      is_cut |= g.is_prompt && !is_whole(g, s, layer);
    }
    if (!g.is_prompt || is_cut || (in.native != nullptr && !has_prefill_kernel()))
      attend_segments(g, layer, in);
    else if (in.native != nullptr)
      attend_prompts(g, layer, in);
    else
      for (std::size_t s = 0; s < g.seqs.size(); ++s) attend_whole(g, s, layer, in);
    if (g.defers) {
      keep(g, layer);
    } else {
      unshare(g, layer);
      policy_.after_attention(step_of(g), layer);
      if (policy_.prunes()) g.going_on.assign(policy_.going_on().begin(), policy_.going_on().end());
      rest(g, layer);
      lower(g, layer);
    }
  }
}

void PolicyCache::unshare(Group& g, std::int32_t layer) {
  for (const std::size_t s : g.unshared) g.layers[place(layer)].unshare(static_cast<std::int32_t>(s) * shape_.kv_heads, shape_.kv_heads);
}

bool PolicyCache::is_whole(Group& g, std::size_t s, std::int32_t layer) const {
  for (std::int32_t h = 0; h < shape_.kv_heads; ++h)
    if (g.layers[place(layer)].len(static_cast<std::int32_t>(s) * shape_.kv_heads + h) != g.seqs[s].seen_tokens + g.rows[s]) return false;
  return true;
}

// Prompts are not logged.
void PolicyCache::attend_segments(Group& g, std::int32_t layer, LayerInput& in) {
  const Ops::Frame frame(ops_);
  policy_.before_attention(step_of(g), layer, segments_);
  if (in.native != nullptr) {
    if (attend_decoding(g, layer, in)) return;
    make_floats(in);
  }
  std::vector<Queries> queries;
  std::vector<float*> outs;
  const std::int64_t width = std::int64_t{shape_.q_heads} * shape_.head_dim;
  for (std::size_t s = 0; s < g.seqs.size(); ++s) {
    queries.push_back({in.q + g.first[s] * width, g.seqs[s].new_tokens, g.seqs[s].seen_tokens});
    outs.push_back(in.out + g.first[s] * width);
  }
  Attend op{segments_.data(), static_cast<std::int32_t>(segments_.size()), queries.data(), outs.data()};
  op.window = model_->config().window(layer);
  if (!g.is_prompt)
    ops_(op);
  else
    run_in(model_->memory(), op);
  if (in.native != nullptr) return_outputs(g, in);
}

// In order of remaining tokens.
void PolicyCache::attend_whole(Group& g, std::size_t s, std::int32_t layer, const LayerInput& in) {
  const SeqStep& seq = g.seqs[s];
  const std::int64_t d = shape_.head_dim, q_width = shape_.q_heads * d, kv_width = shape_.kv_heads * d;
  AttentionPrefill op{in.q + g.first[s] * q_width,
                      static_cast<const float*>(in.k) + g.first[s] * kv_width,
                      static_cast<const float*>(in.v) + g.first[s] * kv_width,
                      in.out + g.first[s] * q_width,
                      nullptr,
                      g.rows[s],
                      seq.seen_tokens,
                      shape_.q_heads,
                      shape_.kv_heads,
                      d,
                      1.0F / std::sqrt(static_cast<float>(d)),
                      model_->config().window(layer)};
  if (seq.seen_tokens > 0) {
    const std::size_t floats = place(seq.end()) * place(shape_.kv_heads) * place(shape_.head_dim);
    float *const k = room_in(whole_k_, floats), *const v = room_in(whole_v_, floats);
    gather(g, s, layer, k, v);
    op.k = k, op.v = v;
  }
  if (policy_.selects_in_prompts(layer) && seq.new_tokens > 1) {
    policy_.attend_prompt({ops_, shape_, layer, seq, op.q, op.k, op.v, op.out, nullptr, op.window});
    return;
  }
  op.scratch = room_in(scratch_, static_cast<std::size_t>(scratch_floats(op)));
  run_cpu(op);
}

void PolicyCache::touch_memory(const Transformer& model, std::int32_t tokens) {
  const auto touch = [](float* memory, std::size_t n) { std::fill_n(memory, n, 0.0F); };
  const std::size_t pass = model.pass_floats(tokens), whole = place(tokens) * place(shape_.kv_heads) * place(shape_.head_dim);
  touch(pass_memory(pass).data(), pass);
  AttentionPrefill op;
  op.new_tokens = tokens, op.q_heads = shape_.q_heads, op.kv_heads = shape_.kv_heads, op.head_dim = shape_.head_dim;
  const auto scratch = static_cast<std::size_t>(scratch_floats(op));
  touch(room_in(scratch_, scratch), scratch);
  for (BigArray<float>* array : {&whole_k_, &whole_v_}) touch(room_in(*array, whole), whole);
  pages_->touch();
}

// Pages to [tokens, kv_heads, head_dim].
void PolicyCache::gather(Group& g, std::size_t s, std::int32_t layer, float* k, float* v) {
  const RowsView rows(g.layers[place(layer)].rows(), static_cast<std::int32_t>(s) * shape_.kv_heads, shape_.kv_heads);
  run_in(model_->memory(), TokenCopy{.tokens = {rows.rows(), rows.rows().first}, .kind = TokenCopy::Kind::kFloats, .stored = k, .v = v});
}

// For policies that act after the last layer.
void PolicyCache::keep(Group& g, std::int32_t layer) {
  Group::Kept& kept = g.kept[place(layer)];
  const std::int64_t q_width = std::int64_t{shape_.q_heads} * shape_.head_dim;
  std::int64_t tokens = 0;
  for (const SeqStep& seq : g.seqs) tokens += seq.new_tokens;
  const auto copy = [&](TensorArray<float>& to, std::int64_t width, auto&& from_of) {
    to.settle_in(model_->memory());
    to.reserve(tokens * width);
    for (std::size_t s = 0; s < g.seqs.size(); ++s) {
      const float*& from = from_of(g.observer->at(layer, s));
      to.append(from, g.seqs[s].new_tokens * width);
      from = to.data() + to.size() - g.seqs[s].new_tokens * width;
    }
  };
  if (policy_.needs().step_queries) copy(kept.q, q_width, [](LayerTensorsOfStep& t) -> const float*& { return t.q; });
  if (policy_.needs().hidden) copy(kept.hidden, shape_.hidden_dim, [](LayerTensorsOfStep& t) -> const float*& { return t.hidden; });
}

void PolicyCache::end_step(std::span<const float> hidden) {
  for (const auto& group : groups_) {
    Group& g = *group;
    if (g.defers) {
      for (std::size_t s = 0; s < g.seqs.size(); ++s) run_pass(g, s, hidden);
      for (std::int32_t l = 0; l < shape_.num_layers; ++l) unshare(g, l);
      for (std::int32_t l = 0; l < shape_.num_layers; ++l) policy_.after_attention(step_of(g), l);
      for (std::int32_t l = 0; l < shape_.num_layers; ++l) rest(g, l), lower(g, l);
    }
    close(g);
  }
  groups_.clear();
}

}  // namespace kvlab
