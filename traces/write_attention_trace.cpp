#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "traces/attention_trace.h"
#include "traces/line_reader.h"
#include "traces/write_safetensors.h"

namespace kvlab {

namespace {

class Checker {
 public:
  Checker(const AttentionTrace& trace, const std::string& where) : trace_(trace), where_(where) {}

  void check() const {
    check_shape();
    check_prompt();
    check_rope();
    check_ids("ids", trace_.ids);
    for (const auto& [name, pass] : trace_.passes) check_pass(name, pass);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw InputError(where_ + ": " + message); }

  // Internal: tensors from files are already checked.
  static void check_size(std::size_t size, const std::vector<std::int64_t>& shape, bool may_be_empty) {
    const std::int64_t expected = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    if (size == static_cast<std::size_t>(expected) || (size == 0 && may_be_empty)) return;
    throw InternalError(fmt::format("a tensor of an attention trace has {} elements, expected {}", size, shape_text(shape)));
  }

  void check_layers(const std::string& before, const std::vector<LayerTensors>& layers, std::int64_t tokens) const {
    if (layers.size() != static_cast<std::size_t>(trace_.num_layers)) throw InternalError("an attention trace lacks layers");
    for (const LayerTensorKind& kind : kLayerTensors) {
      const auto is_there = [&](std::size_t l) { return !(layers[l].*kind.values).empty(); };
      for (std::size_t l = 0; l < layers.size(); ++l) {
        check_size((layers[l].*kind.values).size(), kind.shape(trace_, tokens), !kind.is_required());
        if (is_there(l) == is_there(0)) continue;
        fail(fmt::format("has {} but no {}", kind.name_in(before, is_there(0) ? 0 : l), kind.name_in(before, is_there(0) ? l : 0)));
      }
    }
  }

  void check_shape() const {
    if (trace_.num_layers < 1 || trace_.num_tokens < 1 || trace_.kv_heads < 1 || trace_.head_dim < 1) fail("the trace is empty");
    if (trace_.q_heads < 1 || trace_.q_heads % trace_.kv_heads != 0) {
      fail(fmt::format("{} query heads are no multiple of {} KV heads", trace_.q_heads, trace_.kv_heads));
    }
    check_layers("", trace_.layers, trace_.num_tokens);
    check_size(trace_.ids.size(), {trace_.num_tokens}, true);
  }

  void check_prompt() const {
    const std::int32_t prompt = trace_.prompt_tokens;
    if (prompt < 1 || prompt > trace_.num_tokens) fail(fmt::format("prompt_tokens = {} is outside [1, {}]", prompt, trace_.num_tokens));
    std::int32_t before = 0;
    for (const std::int32_t end : trace_.chunk_ends) {
      if (end <= before) fail(fmt::format("chunk_ends: {} follows {}; they ascend", end, before));
      before = end;
    }
    if (before != prompt) fail(fmt::format("chunk_ends: the last is {}, expected the prompt's end {}", before, prompt));
    for (const auto& [begin, end] : trace_.needles) {
      if (begin < 0 || begin >= end || end > prompt)
        fail(fmt::format("needle {}-{} is no span of the prompt's {} tokens", begin, end, prompt));
    }
    if (trace_.question_begin < -1 || trace_.question_begin >= prompt) {
      fail(fmt::format("question_begin = {} is outside [0, {}]", trace_.question_begin, prompt - 1));
    }
  }

  void check_rope() const {
    if (!(trace_.rope_base >= 0)) fail(fmt::format("rope_base = {} is negative", number_text(trace_.rope_base)));
    if (trace_.rope_scaling == "none") return;
    simdjson::dom::parser parser;
    simdjson::dom::object object;
    if (parser.parse(trace_.rope_scaling).get_object().get(object) != simdjson::SUCCESS) {
      fail("rope_scaling = " + kvlab::quoted(trace_.rope_scaling) + " is neither 'none' nor a JSON object");
    }
  }

  void check_ids(const std::string& name, const std::vector<std::int32_t>& ids) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0) fail(fmt::format("tensor '{}' has {} at [{}]; token ids are not negative", name, ids[i], i));
    }
  }

  void check_pass(const std::string& name, const ExtraPass& pass) const {
    if (!is_pass_name(name)) fail("pass " + kvlab::quoted(name) + ": names of passes consist of letters, digits, _ and -");
    check_layers("pass." + name + ".", pass.layers, pass.num_tokens);
    check_size(pass.ids.size(), {pass.num_tokens}, true);
    check_ids("pass." + name + ".ids", pass.ids);
    std::int32_t at = 0;
    for (const PassChunk& chunk : pass.chunks) {
      const std::string text = fmt::format("pass '{}': chunk {}-{}:{}-{}", name, chunk.begin, chunk.end, chunk.ctx_begin, chunk.ctx_end);
      if (chunk.begin != at || chunk.end <= chunk.begin) fail(fmt::format("{} does not go on from token {}", text, at));
      if (chunk.ctx_begin < 0 || chunk.ctx_begin > chunk.ctx_end || chunk.ctx_end > trace_.prompt_tokens) {
        fail(fmt::format("{} observes no span of the prompt's {} tokens", text, trace_.prompt_tokens));
      }
      at = chunk.end;
    }
    if (at != pass.num_tokens) fail(fmt::format("pass '{}': its chunks end at token {}, it has {}", name, at, pass.num_tokens));
  }

  const AttentionTrace& trace_;
  const std::string& where_;
};

std::map<std::string, std::string> metadata_of(const AttentionTrace& trace) {
  std::vector<std::string> ends, needles;
  for (const std::int32_t end : trace.chunk_ends) ends.push_back(std::to_string(end));
  for (const auto& [begin, end] : trace.needles) needles.push_back(fmt::format("{}-{}", begin, end));
  std::map<std::string, std::string> metadata{{"format", std::string(kAttentionFormat)},
                                              {"model", trace.model},
                                              {"task", trace.task},
                                              {"prompt_tokens", std::to_string(trace.prompt_tokens)},
                                              {"chunk_ends", join(ends, ",")},
                                              {"needles", join(needles, ",")},
                                              {"rope_base", number_text(trace.rope_base)},
                                              {"rope_scaling", trace.rope_scaling}};
  if (!trace.made_for.empty()) metadata["made_for"] = trace.made_for;
  if (trace.question_begin >= 0) metadata["question_begin"] = std::to_string(trace.question_begin);
  for (const auto& [name, pass] : trace.passes) {
    std::vector<std::string> chunks;
    for (const PassChunk& c : pass.chunks) chunks.push_back(fmt::format("{}-{}:{}-{}", c.begin, c.end, c.ctx_begin, c.ctx_end));
    metadata["pass." + name + ".chunks"] = join(chunks, ",");
  }
  return metadata;
}

class TensorList {
 public:
  TensorList(const AttentionTrace& trace, TraceFloat dtype) : trace_(trace), dtype_(dtype == TraceFloat::kF16 ? "F16" : "F32") {}

  std::vector<TensorToWrite> list() {
    using In = LayerTensorKind::In;
    add_layers("", trace_.layers, trace_.num_tokens, {In::kAll, In::kPrompt});
    add_layers("", trace_.layers, trace_.num_tokens, {In::kWeights});
    add_ids("ids", trace_.ids);
    for (const auto& [name, pass] : trace_.passes) {
      const std::string before = "pass." + name + ".";
      add_layers(before, pass.layers, pass.num_tokens, {In::kAll});
      add_layers(before, pass.layers, pass.num_tokens, {In::kPasses});
      add_ids(before + "ids", pass.ids);
    }
    return std::move(tensors_);
  }

 private:
  void add_ids(const std::string& name, const std::vector<std::int32_t>& ids) {
    if (!ids.empty()) tensors_.push_back({name, "I32", {static_cast<std::int64_t>(ids.size())}, ids.data()});
  }
  void add_layers(const std::string& before, const std::vector<LayerTensors>& layers, std::int64_t tokens,
                  std::initializer_list<LayerTensorKind::In> in) {
    for (std::size_t l = 0; l < layers.size(); ++l)
      for (const LayerTensorKind& kind : kLayerTensors)
        if (const std::vector<float>& values = layers[l].*kind.values;
            std::find(in.begin(), in.end(), kind.in) != in.end() && !values.empty())
          tensors_.push_back({kind.name_in(before, l), dtype_, kind.shape(trace_, tokens), values.data()});
  }

  const AttentionTrace& trace_;
  std::string dtype_;
  std::vector<TensorToWrite> tensors_;
};

}  // namespace

void check_attention_trace(const AttentionTrace& trace, const std::string& where) { Checker(trace, where).check(); }

void write_attention_trace(const std::string& path, const AttentionTrace& trace, TraceFloat dtype) {
  check_attention_trace(trace, path);
  write_safetensors(path, TensorList(trace, dtype).list(), metadata_of(trace));
}

}  // namespace kvlab
