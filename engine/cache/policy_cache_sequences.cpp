#include <fmt/format.h>

#include "base/ceil_div.h"
#include "base/error.h"
#include "engine/cache/policy_cache_keeper.h"

namespace kvlab {

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

}  // namespace kvlab
