#include "sim/replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/parallel.h"
#include "kernels/attention/sparse_prefill/sparse_prefill.h"

namespace kvlab {

namespace {

void attend_to_all(const PromptChunk& chunk, float* out, float* log_sum) {
  const std::int32_t block = 64;
  const PromptBlocks prompt = chunk.blocks(block);
  std::vector<std::int64_t> first{0};
  std::vector<std::int32_t> blocks;
  for (std::int64_t list = 0; list < prompt.num_lists(); ++list) {
    const std::int64_t own = prompt.first_block() + list % prompt.num_query_blocks();
    for (std::int64_t j = 0; j <= own; ++j) blocks.push_back(static_cast<std::int32_t>(j));
    first.push_back(static_cast<std::int64_t>(blocks.size()));
  }
  SparsePrefill all;
  all.q = chunk.q, all.k = chunk.k, all.v = chunk.v, all.out = out, all.log_sum = log_sum;
  all.new_tokens = prompt.new_tokens, all.kv_before = prompt.kv_before;
  all.q_heads = prompt.q_heads, all.kv_heads = prompt.kv_heads, all.head_dim = prompt.head_dim;
  all.scale = 1.0F / std::sqrt(static_cast<float>(prompt.head_dim));
  all.keys = {block, first.data(), blocks.data(), nullptr, nullptr};
  run_cpu(all);
}

// A prefill selector against full attention, by chunk and layer, without dense layers.
class PromptFidelity {
 public:
  // Tokens [seq.seen_tokens, seq.end()).
  void add(KvPolicy& policy, Ops& ops, const AttentionTrace& trace, const ModelShape& model, std::int32_t layer, const SeqStep& seq) {
    const LayerTensors& l = trace.layers[static_cast<std::size_t>(layer)];
    const std::int64_t d = model.head_dim, rows = std::int64_t{seq.new_tokens} * model.q_heads;
    const auto floats = [](std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); };
    std::vector<float> out = floats(rows * d), full = floats(rows * d), log_sum = floats(rows), full_sum = floats(rows);
    PromptChunk chunk{ops, model, layer, seq, l.q.data() + std::int64_t{seq.seen_tokens} * model.q_heads * d, l.k.data(), l.v.data()};
    chunk.out = out.data(), chunk.log_sum = log_sum.data();
    pairs_ += static_cast<double>(policy.attend_prompt(chunk));
    attend_to_all(chunk, full.data(), full_sum.data());
    for (std::int64_t r = 0; r < rows; ++r) {
      double error = 0, norm = 0;
      for (std::int64_t c = r * d; c < (r + 1) * d; ++c) {
        const double x = full[static_cast<std::size_t>(c)], y = out[static_cast<std::size_t>(c)];
        error += (y - x) * (y - x), norm += x * x;
      }
      rel_err_ += norm > 0 ? std::sqrt(error / norm) : 0;
      mass_ += std::exp(static_cast<double>(log_sum[static_cast<std::size_t>(r)]) - full_sum[static_cast<std::size_t>(r)]);
    }
    queries_ += rows;
    causal_ += model.q_heads * (static_cast<double>(seq.new_tokens) * seq.seen_tokens + 0.5 * seq.new_tokens * (seq.new_tokens + 1.0));
  }

  [[nodiscard]] std::int64_t queries() const { return queries_; }
  [[nodiscard]] ReplayResult::Prompt mean() const {
    const auto n = static_cast<double>(queries_);
    return {mass_ / n, rel_err_ / n, pairs_ / causal_};
  }

 private:
  std::int64_t queries_ = 0;  // times query heads
  double mass_ = 0, rel_err_ = 0, pairs_ = 0, causal_ = 0;
};

class Walk {
 public:
  Walk(const AttentionTrace& trace, const AttentionReference& reference, const Recipe& recipe, const ReplayOptions& options)
      : trace_(trace),
        reference_(reference),
        options_(options),
        model_(shape_of(trace, options.kv_bytes)),
        policy_(recipe, model_),
        own_ops_(Ops::Backend::kCpu),
        ops_(options.ops == nullptr ? own_ops_ : *options.ops),
        observer_(trace, policy_.needs()),
        layer_bytes_(static_cast<std::size_t>(model_.num_layers)) {
    check_needs(policy_.needs(), trace, recipe.name);
    own_ops_.keep_log(false);
    ops_.take_counts_from(options.counts);
    for (std::int32_t l = 0; l < model_.num_layers; ++l) {
      stores_.emplace_back(model_, 1, policy_.num_words(), true);
      stores_.back().reserve(trace.num_tokens);
    }
    result_.by_layer.resize(static_cast<std::size_t>(model_.num_layers));
    result_.by_head.resize(static_cast<std::size_t>(model_.num_layers) * static_cast<std::size_t>(model_.kv_heads));
    result_.by_step.resize(static_cast<std::size_t>(reference.num_steps));
    result_.num_steps = reference.num_steps;
  }

  ReplayResult run() {
    std::int32_t begin = 0;
    for (const std::int32_t end : trace_.chunk_ends) prefill(begin, end), begin = end;
    if (prompts_.queries() > 0) result_.prompt = prompts_.mean();
    result_.kept_tokens = static_cast<double>(held_tokens()) / (static_cast<double>(model_.num_layers) * model_.kv_heads);
    result_.peak_prefill_frac = static_cast<double>(peak_) / full_bytes(trace_.prompt_tokens);
    if (options_.lists_kept) result_.kept_of_prompt = sorted_positions();
    policy_.take_traffic();
    for (std::int32_t t = 0; t < reference_.num_steps; ++t) decode(t);
    for (KvStore& store : stores_)
      for (auto& row : positions_of(store.rows())) result_.kept.push_back(std::move(row));
    average();
    return result_;
  }

 private:
  [[nodiscard]] double full_bytes(std::int32_t tokens) const {
    return 2.0 * tokens * model_.num_layers * model_.kv_heads * model_.head_dim * model_.kv_bytes;
  }

  void append(std::int32_t layer, std::int32_t begin, std::int32_t end) {
    const LayerTensors& l = trace_.layers[static_cast<std::size_t>(layer)];
    const std::int64_t at = static_cast<std::int64_t>(begin) * model_.kv_heads * model_.head_dim;
    stores_[static_cast<std::size_t>(layer)].append(0, l.k.data() + at, l.v.data() + at, end - begin, begin);
  }

  SeqStep start(std::int32_t begin, std::int32_t end) {
    seq_ = {0, begin, end - begin, trace_.prompt_tokens, trace_.question_begin, options_.draws};
    observer_.set_step(seq_);
    if (options_.counts != nullptr) options_.counts->begin_step(static_cast<std::int64_t>(result_.resident.size()));
    return seq_;
  }

  [[nodiscard]] std::vector<std::vector<std::int32_t>> sorted_positions() {
    std::vector<std::vector<std::int32_t>> all;
    for (KvStore& store : stores_) {
      for (auto& row : positions_of(store.rows())) {
        std::sort(row.begin(), row.end());
        all.push_back(std::move(row));
      }
    }
    return all;
  }

  // In all rows.
  [[nodiscard]] std::int64_t held_tokens() const {
    std::int64_t tokens = 0;
    for (const KvStore& store : stores_)
      for (std::int32_t r = 0; r < store.num_rows(); ++r) tokens += store.len(r);
    return tokens;
  }

  void count_bytes(std::int32_t layer) {
    layer_bytes_[static_cast<std::size_t>(layer)] =
        policy_.resident(layer, std::span(&seq_, 1), stores_[static_cast<std::size_t>(layer)].rows());
  }

  [[nodiscard]] TierBytes all_bytes() const {
    TierBytes all;
    for (const TierBytes& b : layer_bytes_) all += b;
    return all;
  }

  void prefill(std::int32_t begin, std::int32_t end) {
    const SeqStep seq = start(begin, end);
    const PolicyStep step{ops_, model_, std::span(&seq, 1), stores_, observer_, options_.seed};
    for (std::int32_t l = 0; l < model_.num_layers; ++l) {
      append(l, begin, end);
      count_bytes(l);
      peak_ = std::max(peak_, all_bytes().gpu);
      if (seq.new_tokens > 1 && policy_.selects_in_prompts(l)) prompts_.add(policy_, ops_, trace_, model_, l, seq);
      policy_.after_attention(step, l);
      for (std::int32_t e = 0; e <= l; ++e) count_bytes(e);
    }
    peak_ = std::max(peak_, all_bytes().gpu);
    result_.resident.push_back(all_bytes());
  }

  void decode(std::int32_t t) {
    const std::int32_t at = trace_.prompt_tokens + t;
    const SeqStep seq = start(at, at + 1);
    const PolicyStep step{ops_, model_, std::span(&seq, 1), stores_, observer_, options_.seed};
    const std::int64_t with_new = held_tokens() + std::int64_t{model_.num_layers} * model_.kv_heads;
    for (std::int32_t l = 0; l < model_.num_layers; ++l) {
      append(l, at, at + 1);
      {
        const Ops::Frame frame(ops_);
        attend(step, l, t);
      }
      policy_.after_attention(step, l);
    }
    if (options_.lists_kept_steps && held_tokens() < with_new) result_.kept_of_steps.push_back({t + 1, sorted_positions()});
    for (std::int32_t l = 0; l < model_.num_layers; ++l) count_bytes(l);
    const TierBytes bytes = all_bytes();
    result_.resident.push_back(bytes);
    result_.resident_bytes_frac += static_cast<double>(bytes.gpu) / full_bytes(at + 1);
    result_.host_bytes_frac += static_cast<double>(bytes.host) / full_bytes(at + 1);
    result_.disk_bytes_frac += static_cast<double>(bytes.disk) / full_bytes(at + 1);
    result_.traffic += policy_.take_traffic();
  }

  void attend(const PolicyStep& step, std::int32_t layer, std::int32_t t) {
    policy_.before_attention(step, layer, segments_);
    const std::int32_t at = trace_.prompt_tokens + t;
    const Queries query{
        trace_.layers[static_cast<std::size_t>(layer)].q.data() + static_cast<std::int64_t>(at) * model_.q_heads * model_.head_dim, 1, at};
    float* out = ops_.floats(static_cast<std::int64_t>(model_.q_heads) * model_.head_dim);
    std::vector<float*> lines;
    for (std::int32_t r = 0; r < model_.kv_heads; ++r) {
      std::int64_t columns = 0;
      for (const Segment& s : segments_) columns += s.tokens(r);
      lines.push_back(ops_.floats(columns * model_.group()));
    }
    ops_(Attend{segments_.data(), static_cast<std::int32_t>(segments_.size()), &query, &out, nullptr, lines.data()});
    std::vector<Fidelity> rows(static_cast<std::size_t>(model_.kv_heads));
    for_each_in_parallel(model_.kv_heads, [&](std::int64_t row) {
      const auto r = static_cast<std::size_t>(row);
      rows[r] =
          fidelity_of_row({segments_, static_cast<std::int32_t>(row), lines[r], out}, reference_.at(layer, t), model_, trace_.needles);
    });
    for (std::size_t r = 0; r < rows.size(); ++r) {
      result_.by_head[static_cast<std::size_t>(layer * model_.kv_heads) + r] += rows[r];
      result_.by_step[static_cast<std::size_t>(t)] += rows[r];
    }
  }

  void average() {
    const double steps = std::max(1, reference_.num_steps), heads = model_.kv_heads, layers = model_.num_layers;
    for (Fidelity& f : result_.by_step) f *= 1 / (heads * layers);
    for (std::size_t i = 0; i < result_.by_head.size(); ++i) {
      result_.by_head[i] *= 1 / steps;
      result_.by_layer[i / static_cast<std::size_t>(model_.kv_heads)] += result_.by_head[i];
    }
    for (Fidelity& f : result_.by_layer) {
      f *= 1 / heads;
      result_.mean += f;
    }
    result_.mean *= 1 / layers;
    result_.resident_bytes_frac /= steps;
    result_.host_bytes_frac /= steps;
    result_.disk_bytes_frac /= steps;
    const Recipe& recipe = policy_.recipe();
    result_.exceeds_budget = policy_.exceeds_budget(trace_.prompt_tokens);
    result_.budget_tokens = recipe.has_budget ? recipe.budget.of(trace_.prompt_tokens) : trace_.prompt_tokens;
  }

  const AttentionTrace& trace_;
  const AttentionReference& reference_;
  const ReplayOptions& options_;
  ModelShape model_;
  KvPolicy policy_;
  Ops own_ops_;
  Ops& ops_;
  TraceObserver observer_;
  std::vector<KvStore> stores_;
  std::vector<TierBytes> layer_bytes_;
  std::vector<Segment> segments_;
  SeqStep seq_;  // of the step that runs
  std::int64_t peak_ = 0;
  PromptFidelity prompts_;
  ReplayResult result_;
};

}  // namespace

ReplayResult replay(const AttentionTrace& trace, const AttentionReference& reference, const Recipe& recipe, const ReplayOptions& options) {
  if (!recipe.runs_in("replay"))
    throw InputError(fmt::format("recipe '{}' does not run in replay; it runs in: {}", recipe.name, fmt::join(recipe.hosts, ", ")));
  return Walk(trace, reference, recipe, options).run();
}

}  // namespace kvlab
