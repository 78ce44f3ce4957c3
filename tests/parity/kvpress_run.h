#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/safetensors.h"
#include "engine/model/record.h"
#include "policies/kv/recipe/recipe.h"
#include "policies/kv/scorer/scorer_wrapper.h"
#include "sim/replay/replay.h"
#include "traces/attention_trace.h"

namespace kvlab {

// The tokens that kvpress kept of one prompt, as tests/parity/kvpress/README.md describes the file.
struct PeerResults {
  // `name`: a RoPE scaling of tests/parity/kvpress/rope_scaling.json, "" the model's own.
  explicit PeerResults(std::int32_t tokens, const std::string& name = "")
      : rope(name),
        file(SafetensorsFile::open(KVLAB_SOURCE_DIR "/tests/parity/kvpress/results/prompt_" + std::to_string(tokens) +
                                   (rope.empty() ? "" : "." + rope) + ".safetensors")),
        ids(file.ints("ids", {tokens})) {}
  // [layer * kv_heads + head][units], 1: kept; `units` tokens or channels.
  [[nodiscard]] std::vector<std::vector<std::uint8_t>> kept(const std::string& press, const std::string& ratio, std::int32_t units) const {
    const std::span<const std::byte> bytes = file.raw(press + "." + ratio + ".keep");
    const auto row_bytes = static_cast<std::size_t>((units + 7) / 8);
    std::vector<std::vector<std::uint8_t>> keep;
    for (std::size_t at = 0; at < bytes.size(); at += row_bytes) {
      std::vector<std::uint8_t>& row = keep.emplace_back();
      for (std::size_t i = 0; i < static_cast<std::size_t>(units); ++i)
        row.push_back(static_cast<std::uint8_t>(static_cast<unsigned>(bytes[at + i / 8]) >> i % 8 & 1U));
    }
    return keep;
  }
  // [layer * kv_heads + head] the smallest kept and the largest dropped score; NaN where there is none.
  struct Edge {
    float kept = 0, dropped = 0;
  };
  [[nodiscard]] std::vector<Edge> edges(const std::string& press, const std::string& ratio) const {
    const std::string name = press + "." + ratio + ".edge";
    if (!file.has(name)) return {};
    const std::span<const std::byte> bytes = file.raw(name);
    std::vector<Edge> edges(bytes.size() / sizeof(Edge));
    std::memcpy(edges.data(), bytes.data(), edges.size() * sizeof(Edge));
    return edges;
  }

  std::string rope;
  SafetensorsFile file;
  std::vector<std::int32_t> ids;
};

// The tokens that a recipe kept of a prompt.
struct KeptSets {
  // [layer * kv_heads + head][tokens or channels], 1: kept.
  std::vector<std::vector<std::uint8_t>> keep;
  // [layer * kv_heads + head][tokens] scores that the last selection ranked by, those before the scorer's second stage, and those before
  // tokens were protected or fixed; NaN for tokens that were not ranked. Empty where nothing was cut.
  std::vector<std::vector<float>> ranked, first_stage, scored;
  double cpu_ms = 0;  // of the policy's own work, all layers and threads
};

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Passes everything on to another scorer and writes down what tokens are ranked by.
class Spy final : public Scorer {
 public:
  Spy(std::unique_ptr<Scorer> inner, KeptSets& seen, std::int32_t tokens) : inner_(std::move(inner)), seen_(seen), tokens_(tokens) {}
  [[nodiscard]] Needs needs() const override { return inner_->needs(); }
  [[nodiscard]] std::int32_t num_words() const override { return inner_->num_words(); }
  void bind(std::int32_t first_word) override { inner_->bind(first_word); }
  void set_budget(const Budget& budget) override { inner_->set_budget(budget); }
  void observe(LayerStep& step) override { inner_->observe(step); }
  void score(LayerStep& step, float* scores) override {
    inner_->score(step, scores);
    write_down(step, scores, seen_.scored);
  }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    write_down(step, scores, seen_.first_stage);
    inner_->refine(step, keep, scores);
    write_down(step, scores, seen_.ranked);
  }
  [[nodiscard]] Protected protects() const override { return inner_->protects(); }
  [[nodiscard]] bool comparable_across_heads() const override { return inner_->comparable_across_heads(); }

 private:
  [[nodiscard]] static std::size_t place(const LayerStep& step, std::int32_t row) {
    return static_cast<std::size_t>(step.layer * step.kv.num_rows + row);
  }

  void write_down(const LayerStep& step, const float* scores, std::vector<std::vector<float>>& to) const {
    to.resize(static_cast<std::size_t>(step.model.num_layers * step.kv.num_rows));
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {
      std::vector<float>& row = to[place(step, r)];
      row.assign(static_cast<std::size_t>(tokens_), kNan);
      for (std::int32_t i = 0; i < step.kv.len[r]; ++i)
        row[static_cast<std::size_t>(step.kv.position[step.kv.slot(r, i)])] = scores[step.kv.first[r] + i];
    }
  }

  std::unique_ptr<Scorer> inner_;
  KeptSets& seen_;
  std::int32_t tokens_;
};

inline void read_tokens(KvStore& store, std::int32_t tokens, KeptSets& sets) {
  const KvRows kv = store.rows();
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    std::vector<std::uint8_t>& keep = sets.keep.emplace_back(static_cast<std::size_t>(tokens));
    for (std::int32_t i = 0; i < kv.len[r]; ++i) keep[static_cast<std::size_t>(kv.position[kv.slot(r, i)])] = 1;
  }
}

inline void read_channels(KvStore& store, KeptSets& sets) {
  const KvRows kv = store.rows();
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    std::vector<std::uint8_t>& keep = sets.keep.emplace_back(static_cast<std::size_t>(kv.head_dim));
    for (std::int32_t i = 0; i < kv.len[r]; ++i)
      for (std::int32_t c = 0; c < kv.head_dim; ++c)
        if (kv.key(r, i)[c] != 0) keep[static_cast<std::size_t>(c)] = 1;
  }
}

// The probe with another RoPE scaling.
inline Transformer load_probe(const std::string& rope) {
  const std::string probe = KVLAB_SOURCE_DIR "/engine/probe";
  if (rope.empty()) return Transformer::load(probe);
  using Json = nlohmann::json;
  namespace fs = std::filesystem;
  Json config = Json::parse(std::ifstream(probe + "/config.json"));
  config["rope_scaling"] = Json::parse(std::ifstream(KVLAB_SOURCE_DIR "/tests/parity/kvpress/rope_scaling.json")).at(rope);
  const fs::path folder = fs::temp_directory_path() / ("kvlab_rope_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << config;
  fs::create_symlink(probe + "/model.safetensors", folder / "model.safetensors");
  Transformer model = Transformer::load(folder.string());
  fs::remove_all(folder);
  return model;
}

// The prompt run through the probe model, with all that any recipe observes.
inline AttentionTrace record_prompt(const PeerResults& prompt) {
  static std::map<std::string, Transformer> probes;
  auto at = probes.find(prompt.rope);
  if (at == probes.end()) at = probes.emplace(prompt.rope, load_probe(prompt.rope)).first;
  const Transformer& probe = at->second;
  RecordOptions options;
  options.pre_rope = options.hidden = options.w_o = true;
  options.passes = {"reconstruct", "reconstruct_gradient", "repeat"};
  AttentionTrace trace = record(probe, prompt.ids, options);
  trace.question_begin = trace.prompt_tokens - std::stoi(prompt.file.metadata().at("question_tokens"));
  return trace;
}

// `channels`: the sets are of the channels of K that are not 0 everywhere.
inline KeptSets run_prompt(AttentionTrace& trace, Recipe recipe, bool channels) {
  KeptSets sets;
  trace.chunk_ends = {trace.prompt_tokens};
  if (recipe.make_scorer)
    recipe.make_scorer = [make = recipe.make_scorer, &sets, n = trace.prompt_tokens] { return std::make_unique<Spy>(make(), sets, n); };
  const ModelShape model = shape_of(trace, 4);
  KvPolicy policy(recipe, model);
  check_needs(policy.needs(), trace, recipe.name);
  TraceObserver observer(trace, policy.needs());
  Ops ops(Ops::Backend::kCpu);
  ops.keep_log(false);
  std::vector<KvStore> stores;
  for (std::int32_t l = 0; l < model.num_layers; ++l) stores.emplace_back(model, 1, policy.num_words(), true);
  const SeqStep seq{0, 0, trace.prompt_tokens, trace.prompt_tokens, trace.question_begin};
  observer.set_step(seq);
  const PolicyStep step{ops, model, std::span(&seq, 1), stores, observer, 1};
  for (std::int32_t l = 0; l < model.num_layers; ++l) {
    const LayerTensors& layer = trace.layers[static_cast<std::size_t>(l)];
    stores[static_cast<std::size_t>(l)].append(0, layer.k.data(), layer.v.data(), trace.prompt_tokens, 0);
    const std::clock_t start = std::clock();
    policy.after_attention(step, l);
    sets.cpu_ms += 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  }
  for (KvStore& store : stores) channels ? read_channels(store, sets) : read_tokens(store, trace.prompt_tokens, sets);
  return sets;
}

}  // namespace kvlab
