// Sequences, and extra passes inside a step.
#include <fmt/format.h>

#include "base/ceil_div.h"
#include "base/error.h"
#include "engine/cache/policy_cache_group.h"
#include "kernels/attention/attend/attend.h"
#include "policies/kv/forward_passes.h"

namespace kvlab {

namespace {

// Tokens after a sequence's rows, in a layer only during attention.
class RowsPassHost final : public PassHost, AttentionHost {
 public:
  // `end`: the first token's position.
  RowsPassHost(const Transformer& model, std::vector<KvStore>& layers, std::int32_t sequence, std::int32_t end)
      : model_(model), layers_(layers), sequence_(sequence), end_(end) {}

  void run(std::span<const std::int32_t> ids, Recorder& recorder) override {
    const std::vector<std::int32_t> positions = consecutive(end_, std::ssize(ids));
    recorder_ = &recorder;
    count_ = static_cast<std::int32_t>(ids.size());
    static_cast<void>(model_.forward({ids, positions}, *this));
  }
  [[nodiscard]] std::int32_t next_token() override { throw InternalError("a pass after a chunk decodes nothing"); }
  void rewind() override {}

  void before_rope(std::int32_t layer, const float* hidden, const float*, const float*) override {
    recorder_->on_hidden(layer, tensor(hidden, model_.config().hidden_dim));
  }
  void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) override {
    const ModelConfig& c = model_.config();
    KvStore& store = layers_[place(layer)];
    const std::int32_t first_row = sequence_ * c.kv_heads;
    std::vector<std::int32_t> held;
    for (std::int32_t h = 0; h < c.kv_heads; ++h) held.push_back(store.len(first_row + h));
    const AppendedTokens news{sequence_, count_, end_, k, v};
    store.append({&news, 1}, ElementType::kF32, 0);
    const Queries queries{q, count_, end_};
    std::vector<std::int64_t> first;
    Segment rows;
    rows.kv = rows_of(store.rows(), first);
    Attend op{&rows, 1, &queries, &out};
    op.window = c.window(layer);
    run_cpu(op);
    for (std::int32_t h = 0; h < c.kv_heads; ++h) store.shrink(first_row + h, held[place(h)]);
    const std::int64_t q_width = c.q_width(), kv_width = c.kv_width();
    recorder_->on_attention(layer, tensor(q, q_width), tensor(k, kv_width), tensor(v, kv_width), tensor(out, q_width));
  }

 private:
  [[nodiscard]] std::span<const float> tensor(const float* data, std::int64_t width) const {
    return {data, static_cast<std::size_t>(count_ * width)};
  }
  [[nodiscard]] KvRows rows_of(KvRows kv, std::vector<std::int64_t>& first) const {
    const std::int32_t row = sequence_ * kv.kv_heads;
    kv.num_rows = kv.kv_heads;
    kv.len += row, kv.page_begin += row;
    first.assign(1, 0);
    for (std::int32_t h = 0; h < kv.kv_heads; ++h) first.push_back(first.back() + kv.len[h]);
    kv.first = first.data();
    return kv;
  }

  const Transformer& model_;
  std::vector<KvStore>& layers_;
  std::int32_t sequence_, end_, count_ = 0;
  Recorder* recorder_ = nullptr;
};

}  // namespace

void PolicyCache::start(EngineSequence& sequence) {
  if (policy_.needs().question && sequence.question_begin < 0)
    throw InputError(fmt::format("recipe '{}' needs to know where the question begins in the prompt", policy_.recipe().name));
  policy_.forget(sequence.index);
  const auto heads = place(shape_.kv_heads);
  sequence.seen_tokens = 0;
  sequence.pass = nullptr;
  pages_moved(sequence);
  const TensorArray<float> empty(model_->memory());
  sequence.memory.assign(place(shape_.num_layers), {empty, nullptr, empty});
  sequence.packed.clear();
  if (keeper_->packs())
    for (std::int32_t l = 0; l < shape_.num_layers; ++l) sequence.packed.emplace_back(shape_.kv_heads, model_->memory());
  sequence.tiers.clear();
  for (std::int32_t l = 0; l < shape_.num_layers && options_.tiers; ++l) sequence.tiers.emplace_back(policy_.lower(l), shape_.kv_heads);
  sequence.offloaded.assign(place(shape_.num_layers * shape_.kv_heads), {});
  sequence.rows.assign(place(shape_.num_layers), {std::vector<std::int32_t>(heads, 0), std::vector<std::vector<std::int32_t>>(heads)});
}

void PolicyCache::truncate(EngineSequence& sequence, std::int32_t tokens) {
  if (!sequence.packed.empty() || !sequence.tiers.empty()) throw InternalError("rows that may be at rest are not truncated");
  const std::size_t kept = place(ceil_div(tokens, pages_->page_tokens()));
  for (KvStore::Sequence& layer : sequence.rows) {
    for (std::size_t h = 0; h < layer.len.size(); ++h) {
      if (layer.len[h] != sequence.seen_tokens) throw InternalError("a row that is truncated has lost tokens");
      for (; layer.pages[h].size() > kept; layer.pages[h].pop_back()) pages_->give_back(layer.pages[h].back());
      layer.len[h] = tokens;
    }
  }
  sequence.seen_tokens = tokens;
  pages_moved(sequence);
}

void PolicyCache::release(EngineSequence& sequence) {
  give_back(*pages_, sequence.rows);
  sequence.rows.clear();
  sequence.packed.clear();
  sequence.tiers.clear();
  sequence.offloaded.clear();
  sequence.memory.clear();
  sequence.pass = nullptr;
  policy_.forget(sequence.index);
}

void PolicyCache::adopt(EngineSequence& sequence, const PromptTensors& prompt) {
  if (policy_.prunes()) throw InternalError("a prompt that is pruned is computed by a step, not adopted");
  if (sequence.seen_tokens != 0 || prompt.tokens() != sequence.prompt_tokens)
    throw InternalError("a sequence that adopts a prompt is fresh and has a prompt of that length");
  if (policy_.recipe().selects_in_prompts())
    throw InternalError("a prompt computed over all tokens is not what a prefill selector computes");
  const Needs& needs = policy_.needs();
  if (!needs.pass.empty()) sequence.pass = prompt.passes.at(needs.pass);
  const StepPiece piece{&sequence, prompt.tokens()};
  begin_step({&piece, 1});
  Group& g = *groups_.front();
  std::vector<TensorArray<float>> copies;  // on a GPU; kept until the policy has acted
  const auto there = [&](const std::vector<float>& host) -> const float* {
    if (model_->memory().on_host()) return host.data();
    copies.emplace_back(model_->memory()).append_from_host(host.data(), static_cast<std::int64_t>(host.size()));
    return copies.back().data();
  };
  for (std::int32_t l = 0; l < shape_.num_layers; ++l) {
    if (!g.defers) copies.clear();
    const LayerTensors& layer = prompt.layers[place(l)];
    append(g, l, {nullptr, there(layer.k), there(layer.v)});
    g.observer->at(l, 0) = {there(layer.q), there(layer.hidden)};
    remember(g, 0, l, g.observer->at(l, 0).q);
    EngineSequence::Memory& memory = sequence.memory[place(l)];
    if (needs.pre_rope_queries) {
      memory.pre_q = std::make_shared<TensorArray<float>>(model_->memory());
      memory.pre_q->append_from_host(layer.pre_q.data(), static_cast<std::int64_t>(layer.pre_q.size()));
    }
    if (needs.pre_rope_keys) memory.pre_k.append_from_host(layer.pre_k.data(), static_cast<std::int64_t>(layer.pre_k.size()));
    policy_.after_attention(step_of(g), l);
  }
  for (std::int32_t l = 0; l < shape_.num_layers; ++l) rest(g, l), lower(g, l);
  close(g);
  groups_.clear();
}

TierBytes PolicyCache::resident(EngineSequence& sequence) {
  const SeqStep seq{sequence.index, sequence.seen_tokens, 0, sequence.prompt_tokens, sequence.question_begin};
  TierBytes all;
  for (std::int32_t l = 0; l < shape_.num_layers; ++l) {
    KvStore store(shape_, pages_);
    store.push(std::move(sequence.rows[place(l)]));
    all += policy_.resident(l, {&seq, 1}, store.rows());
    sequence.rows[place(l)] = store.pop();
  }
  return all;
}

std::vector<std::vector<std::int32_t>> PolicyCache::positions(EngineSequence& sequence) {
  std::vector<std::vector<std::int32_t>> all;
  KvRows pool;
  pages_->fill(pool);
  std::vector<std::int32_t> position = pages_->memory().to_host(pool.position, pool.pool_tokens);
  for (std::size_t l = 0; l < sequence.rows.size(); ++l) {
    if (is_resting(sequence, l)) {
      for (std::int32_t h = 0; h < shape_.kv_heads; ++h) all.push_back(sequence.packed[l].positions(h));
      continue;
    }
    KvStore::Sequence& rows = sequence.rows[l];
    if (is_lowered(sequence, l)) {
      for (const std::int32_t len : rows.len) all.push_back(consecutive(0, len));
      continue;
    }
    KvStore store(shape_, pages_);
    store.push(std::move(rows));
    KvRows kv = store.rows();
    kv.position = position.data();
    for (auto& row : positions_of(kv)) all.push_back(std::move(row));
    rows = store.pop();
  }
  return all;
}

void refuse_extra_pass(const Recipe& recipe, const Needs& needs) {
  if (needs.pass.empty()) return;
  throw InputError(
      fmt::format("recipe '{}' needs the extra pass '{}', which runs inside a step only with backend cpu", recipe.name, needs.pass));
}

void PolicyCache::run_pass(Group& g, std::size_t s, std::span<const float> hidden) {
  const std::string& name = policy_.needs().pass;
  const bool after_chunks = runs_after_chunks(name);
  if (name.empty() || !(after_chunks || g.seqs[s].completes_prompt())) return;
  if (model_->transformer() == nullptr) refuse_extra_pass(policy_.recipe(), policy_.needs());
  bool whole = true;
  for (std::int32_t l = 0; l < shape_.num_layers; ++l) whole &= is_whole(g, s, l);
  if (!whole && !after_chunks)
    throw InputError(fmt::format("recipe '{}' cuts the cache before its pass '{}' has run over it", policy_.recipe().name, name));
  EngineSequence& sequence = *g.sequences[s];
  RecordOptions options = options_.passes;
  options.hidden = policy_.needs().pass_hidden;
  options.question_begin = sequence.question_begin;
  const std::span<const std::int32_t> ids = std::span(sequence.ids).first(place(after_chunks ? sequence.prompt_tokens : g.seqs[s].end()));
  sequence.pass = std::make_shared<ExtraPass>(whole ? pass_over_prompt(g, s, hidden, ids, options) : pass_over_rows(g, s, ids, options));
}

// With the step's chunk.
ExtraPass PolicyCache::pass_over_rows(Group& g, std::size_t s, std::span<const std::int32_t> ids, const RecordOptions& options) {
  const Transformer& model = *model_->transformer();
  RowsPassHost host(model, g.layers, static_cast<std::int32_t>(s), g.seqs[s].end());
  return run_extra_pass(policy_.needs().pass, host, model.config(), ids, options, g.seqs[s].end());
}

// The uncut prompt so far.
ExtraPass PolicyCache::pass_over_prompt(Group& g, std::size_t s, std::span<const float> hidden, std::span<const std::int32_t> ids,
                                        const RecordOptions& options) {
  const SeqStep& seq = g.seqs[s];
  KvState kv(model_->config());
  kv.tokens = seq.end();
  for (std::int32_t l = 0; l < shape_.num_layers; ++l) {
    const auto floats = static_cast<std::size_t>(kv.tokens * kv.token_floats);
    kv.k[place(l)].resize(floats), kv.v[place(l)].resize(floats);
    gather(g, s, l, kv.k[place(l)].data(), kv.v[place(l)].data());
  }
  const std::int64_t width = shape_.hidden_dim, last = g.first[s] + seq.new_tokens - 1;
  const Transformer& model = *model_->transformer();
  const std::vector<float> logits = model.logits(hidden.subspan(static_cast<std::size_t>(last * width), static_cast<std::size_t>(width)));
  return run_extra_pass(policy_.needs().pass, model, ids, kv, logits, options);
}

}  // namespace kvlab
