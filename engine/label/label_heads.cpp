#include "engine/label/label_heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "engine/label/filter_moments.h"
#include "engine/label/probe_prompts.h"
#include "traces/write_safetensors.h"

namespace kvlab {

namespace {

class QueryRecorder final : public Recorder {
 public:
  explicit QueryRecorder(const ModelConfig& config)
      : config_(config),
        moments_(static_cast<std::size_t>(config.layers) * static_cast<std::size_t>(config.kv_heads), FilterMoments(config.head_dim)) {}

  void on_attention(std::int32_t layer, std::span<const float> q, std::span<const float>, std::span<const float>,
                    std::span<const float>) override {
    const std::int64_t width = config_.q_width();
    for (std::int32_t h = 0; h < config_.q_heads; ++h) {
      const auto at = static_cast<std::size_t>(layer * config_.kv_heads + h / (config_.q_heads / config_.kv_heads));
      moments_[at].add(q.data() + std::int64_t{h} * config_.head_dim, std::ssize(q) / width, width);
    }
  }

  [[nodiscard]] std::vector<float> filters() const {
    std::vector<float> all;
    for (const FilterMoments& moments : moments_)
      for (const float x : moments.filter()) all.push_back(x);
    return all;
  }

 private:
  const ModelConfig& config_;
  std::vector<FilterMoments> moments_;
};

// Separate streams of draws.
constexpr std::uint64_t kNeedles = 0, kBlocks = 1U << 20, kShort = 2U << 20;

class Labelling {
 public:
  Labelling(const Transformer& model, const Tokenizer& tokenizer, const LabelOptions& options)
      : model_(model),
        config_(model.config()),
        tokenizer_(tokenizer),
        o_(options),
        num_heads_(static_cast<std::size_t>(config_.layers) * heads()) {
    for (auto* sums : {&retrieval_, &semantic_, &sink_, &echo_, &induction_, &far_}) sums->assign(num_heads_, 0.0);
  }

  HeadLabelScores run() {
    for (std::int32_t i = 0; i < o_.probes; ++i) needle(i);
    for (std::int32_t i = 0; i < o_.blocks; ++i) block(i);
    for (std::int32_t i = 0; i < o_.short_prompts; ++i) short_prompt(i);
    HeadLabelScores scores;
    scores.retrieval = mean(retrieval_, o_.probes), scores.semantic = mean(semantic_, o_.probes);
    scores.sink = mean(sink_, o_.short_prompts);
    scores.echo = mean(echo_, o_.blocks), scores.induction = mean(induction_, o_.blocks);
    scores.gates = largest_of_group(mean(far_, o_.probes));
    scores.kv_retrieval = largest_of_group(scores.retrieval);
    scores.kv_echo = largest_of_group(scores.echo), scores.kv_induction = largest_of_group(scores.induction);
    scores.answered_frac = answered_ / o_.probes;
    scores.sink_frac = sinks_ / (static_cast<double>(num_heads_) * o_.short_prompts);
    return scores;
  }

 private:
  struct Look {
    std::int32_t top = 0;
    double needle = 0, far = 0;
  };

  [[nodiscard]] std::size_t heads() const { return static_cast<std::size_t>(config_.q_heads); }
  [[nodiscard]] std::size_t at(std::int32_t layer, std::int32_t head) const {
    return static_cast<std::size_t>(layer) * heads() + static_cast<std::size_t>(head);
  }
  [[nodiscard]] std::vector<float> mean(const std::vector<double>& sums, std::int32_t count) const {
    std::vector<float> all;
    for (const double x : sums) all.push_back(static_cast<float>(x / count));
    return all;
  }
  [[nodiscard]] std::vector<float> largest_of_group(const std::vector<float>& of_heads) const {
    const auto group = static_cast<std::ptrdiff_t>(config_.q_heads / config_.kv_heads);
    std::vector<float> all;
    for (auto from = of_heads.begin(); from != of_heads.end(); from += group) all.push_back(*std::max_element(from, from + group));
    return all;
  }
  std::vector<float> next_logits(std::span<const std::int32_t> ids, KvState& kv, Recorder* recorder) const {
    const std::vector<float> hidden = forward(model_, ids, kv, recorder);
    return model_.logits(std::span(hidden).last(static_cast<std::size_t>(config_.hidden_dim)));
  }

  void needle(std::int32_t index) {
    const double depth = (index + 0.5) / o_.probes;
    const NeedleProbe probe =
        needle_probe(tokenizer_, config_, o_.seed, kNeedles + static_cast<std::uint64_t>(index), o_.prompt_tokens, depth);
    const std::int32_t begin = probe.needle.first, end = probe.needle.second;
    const std::int32_t length = end - begin, steps = length;
    require_context(config_, probe.ids.size() + static_cast<std::size_t>(steps), "a needle prompt");
    KvState kv(config_);
    std::vector<Look> looks(num_heads_);
    HeadRowRecorder rows(config_, kv, HeadRowRecorder::Which::kLastQuery,
                         [&](std::int32_t layer, std::int32_t head, std::int32_t position, std::span<const double> row) {
                           looks[at(layer, head)] = look(row, begin, end, position);
                         });
    std::span<const std::int32_t> ids = probe.ids;
    const auto chunk = static_cast<std::size_t>(o_.chunk_tokens > 0 ? o_.chunk_tokens : std::ssize(ids));
    for (; ids.size() > chunk; ids = ids.subspan(chunk)) forward(model_, ids.first(chunk), kv);
    std::int32_t token = greedy_token(next_logits(ids, kv, &rows), config_.vocab_size);
    for (std::int32_t step = 0; step < steps; ++step) {
      count(looks, probe, token);
      answered_ += (token == probe.ids[static_cast<std::size_t>(begin + step)] ? 1.0 : 0.0) / length;
      if (step + 1 < steps) token = greedy_token(next_logits(std::span(&token, 1), kv, &rows), config_.vocab_size);
    }
  }

  [[nodiscard]] Look look(std::span<const double> row, std::int32_t begin, std::int32_t end, std::int32_t position) const {
    Look l;
    l.top = static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
    l.needle = std::accumulate(row.begin() + begin, row.begin() + end, 0.0);
    const std::int32_t far_end = std::max(o_.sink_tokens, position + 1 - o_.recent_tokens);
    for (std::int32_t i = o_.sink_tokens; i < std::min(far_end, position + 1); ++i) l.far += row[static_cast<std::size_t>(i)];
    return l;
  }

  void count(const std::vector<Look>& looks, const NeedleProbe& probe, std::int32_t token) {
    const std::int32_t begin = probe.needle.first, end = probe.needle.second;
    const double share = 1.0 / (end - begin);
    const bool is_of_needle = std::find(probe.ids.begin() + begin, probe.ids.begin() + end, token) != probe.ids.begin() + end;
    for (std::size_t h = 0; h < num_heads_; ++h) {
      const Look& l = looks[h];
      const bool hits = l.top >= begin && l.top < end && probe.ids[static_cast<std::size_t>(l.top)] == token;
      if (hits) retrieval_[h] += share;
      if (is_of_needle) semantic_[h] += share * l.needle;
      far_[h] += share * l.far;
    }
  }

  void block(std::int32_t index) {
    const std::vector<std::int32_t> ids =
        repeated_block(tokenizer_, config_, o_.seed, kBlocks + static_cast<std::uint64_t>(index), o_.block_tokens, o_.repeats);
    require_context(config_, ids.size(), "a prompt of repeated random tokens");
    const std::int32_t begin = static_cast<std::int32_t>(ids.size()) - o_.repeats * o_.block_tokens + o_.block_tokens;
    const double queries = static_cast<double>(o_.repeats - 1) * o_.block_tokens;
    KvState kv(config_);
    HeadRowRecorder rows(config_, kv, HeadRowRecorder::Which::kAllQueries,
                         [&](std::int32_t layer, std::int32_t head, std::int32_t position, std::span<const double> row) {
                           for (std::int32_t copy = position - o_.block_tokens; position >= begin && copy >= begin - o_.block_tokens;
                                copy -= o_.block_tokens) {
                             echo_[at(layer, head)] += row[static_cast<std::size_t>(copy)] / queries;
                             induction_[at(layer, head)] += row[static_cast<std::size_t>(copy) + 1] / queries;
                           }
                         });
    forward(model_, ids, kv, &rows);
  }

  void short_prompt(std::int32_t index) {
    const std::vector<std::int32_t> ids =
        made_up_text(tokenizer_, config_, o_.seed, kShort + static_cast<std::uint64_t>(index), o_.short_tokens);
    std::vector<double> first(num_heads_, 0.0);
    KvState kv(config_);
    HeadRowRecorder rows(config_, kv, HeadRowRecorder::Which::kAllQueries,
                         [&](std::int32_t layer, std::int32_t head, std::int32_t, std::span<const double> row) {
                           first[at(layer, head)] += row[0] / static_cast<double>(ids.size());
                         });
    forward(model_, ids, kv, &rows);
    for (std::size_t h = 0; h < num_heads_; ++h) {
      sink_[h] += first[h];
      sinks_ += first[h] > o_.sink_threshold ? 1 : 0;
    }
  }

  const Transformer& model_;
  const ModelConfig& config_;
  const Tokenizer& tokenizer_;
  const LabelOptions& o_;
  std::size_t num_heads_;                                                     // in all layers
  std::vector<double> retrieval_, semantic_, sink_, echo_, induction_, far_;  // sums over prompts
  double answered_ = 0, sinks_ = 0;
};

}  // namespace

std::vector<float> query_filters(const Transformer& model, std::span<const std::vector<std::int32_t>> texts) {
  QueryRecorder queries(model.config());
  bool is_empty = true;
  for (const std::vector<std::int32_t>& ids : texts) {
    if (ids.empty()) continue;
    is_empty = false;
    KvState kv(model.config());
    forward(model, ids, kv, &queries);
  }
  if (is_empty) throw InputError("the calibration text has no token");
  return queries.filters();
}

void write_query_filters(const std::string& path, const ModelConfig& model, std::int64_t tokens, const std::vector<float>& filters) {
  write_safetensors(path, {{"q_filters", "F32", {model.layers, model.kv_heads, model.head_dim}, filters.data()}},
                    {{"model", model.name}, {"calibration_tokens", std::to_string(tokens)}});
}

void HeadRowRecorder::on_attention(std::int32_t layer, std::span<const float> q, std::span<const float> /*k*/, std::span<const float> /*v*/,
                                   std::span<const float> /*out*/) {
  const std::int64_t width = config_.q_width();
  const auto count = static_cast<std::int32_t>(std::ssize(q) / width);
  const auto begin = static_cast<std::int32_t>(kv_.tokens);  // without the pass's own tokens
  for (std::int32_t i = which_ == Which::kAllQueries ? 0 : count - 1; i < count; ++i) {
    for (std::int32_t h = 0; h < config_.q_heads; ++h) {
      fill(layer, h, begin + i, q.data() + i * width + std::int64_t{h} * config_.head_dim);
      see_(layer, h, begin + i, row_);
    }
  }
}

void HeadRowRecorder::fill(std::int32_t layer, std::int32_t head, std::int32_t position, const float* q) {
  const std::vector<float>& keys = kv_.k[static_cast<std::size_t>(layer)];
  const std::int32_t window = config_.window(layer), d = config_.head_dim, group = config_.q_heads / config_.kv_heads;
  const std::int32_t first = window > 0 ? std::max(0, position + 1 - window) : 0;
  row_.assign(static_cast<std::size_t>(position) + 1, 0.0);
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (std::int32_t i = first; i <= position; ++i) {
    const float* const key = keys.data() + i * kv_.token_floats + std::int64_t{head / group} * d;
    double z = 0;
    for (std::int32_t c = 0; c < d; ++c) z += double{q[c]} * double{key[c]};
    z /= std::sqrt(static_cast<double>(d));
    row_[static_cast<std::size_t>(i)] = z;
    largest = std::max(largest, z);
  }
  for (auto i = static_cast<std::size_t>(first); i < row_.size(); ++i) sum += row_[i] = std::exp(row_[i] - largest);
  for (auto i = static_cast<std::size_t>(first); i < row_.size(); ++i) row_[i] /= sum;
}

HeadLabelScores label_heads(const Transformer& model, const Tokenizer& tokenizer, const LabelOptions& options) {
  return Labelling(model, tokenizer, options).run();
}

void write_head_labels(const std::string& path, const ModelConfig& model, const LabelOptions& options, const HeadLabelScores& s) {
  std::vector<TensorToWrite> tensors;
  const auto add = [&](const char* name, std::int32_t heads, const std::vector<float>& values) {
    tensors.push_back({name, "F32", {model.layers, heads}, values.data()});
  };
  add("retrieval", model.q_heads, s.retrieval), add("semantic", model.q_heads, s.semantic), add("sink", model.q_heads, s.sink);
  add("echo", model.q_heads, s.echo), add("induction", model.q_heads, s.induction);
  add("gates", model.kv_heads, s.gates), add("kv_retrieval", model.kv_heads, s.kv_retrieval);
  add("kv_echo", model.kv_heads, s.kv_echo), add("kv_induction", model.kv_heads, s.kv_induction);
  const auto text = [](auto number) { return fmt::format("{}", number); };
  write_safetensors(path, tensors,
                    {{"labels", "heads"},
                     {"model", model.name},
                     {"seed", text(options.seed)},
                     {"probes", text(options.probes)},
                     {"prompt_tokens", text(options.prompt_tokens)},
                     {"block_tokens", text(options.block_tokens)},
                     {"repeats", text(options.repeats)},
                     {"answered_frac", fmt::format("{:.4f}", s.answered_frac)},
                     {"sink_frac", fmt::format("{:.4f}", s.sink_frac)},
                     {"gates", "untrained: attention beyond sinks and recent tokens while answering"}});
}

}  // namespace kvlab
