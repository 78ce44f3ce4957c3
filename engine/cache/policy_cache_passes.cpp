// Extra passes inside a PolicyCache's step.
#include <fmt/format.h>

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
