#include "engine/model/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "engine/model/gradient_tape.h"
#include "policies/kv/forward_passes.h"

namespace kvlab {

namespace {

std::vector<std::int32_t> byte_ids(std::string_view text) {
  std::vector<std::int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

void append(std::vector<float>& to, std::span<const float> more) { to.insert(to.end(), more.begin(), more.end()); }

struct Recorded {
  bool q = true, kv = true, pre_q = false, pre_k = false, hidden = false;
};

class LayerRecorder final : public Recorder {
 public:
  LayerRecorder(std::vector<LayerTensors>& layers, const Recorded& what) : layers_(layers), what_(what) {}
  void on_hidden(std::int32_t layer, std::span<const float> hidden) override {
    if (what_.hidden) append(at(layer).hidden, hidden);
  }
  void on_pre_rope(std::int32_t layer, std::span<const float> q, std::span<const float> k) override {
    if (what_.pre_q) append(at(layer).pre_q, q);
    if (what_.pre_k) append(at(layer).pre_k, k);
  }
  void on_attention(std::int32_t layer, std::span<const float> q, std::span<const float> k, std::span<const float> v,
                    std::span<const float> /*out*/) override {
    if (what_.q) append(at(layer).q, q);
    if (!what_.kv) return;
    append(at(layer).k, k);
    append(at(layer).v, v);
  }

 private:
  LayerTensors& at(std::int32_t layer) { return layers_[static_cast<std::size_t>(layer)]; }
  std::vector<LayerTensors>& layers_;
  Recorded what_;
};

class KvPassHost final : public PassHost {
 public:
  KvPassHost(const Transformer& model, KvState& kv, std::span<const float> logits)
      : model_(model), kv_(kv), prompt_tokens_(kv.tokens), behind_prompt_(greedy_token(logits, model.config().vocab_size)) {}
  void run(std::span<const std::int32_t> ids, Recorder& recorder) override { hidden_ = forward(model_, ids, kv_, &recorder); }
  std::vector<std::vector<float>> run_with_gradient(std::span<const std::int32_t> ids, Recorder& recorder) override {
    GradientTape tape(model_, &recorder);
    run(ids, tape);
    return tape.norms(kv_);
  }
  [[nodiscard]] std::int32_t next_token() override {
    if (hidden_.empty()) return behind_prompt_;
    const std::span<const float> last = std::span(hidden_).last(static_cast<std::size_t>(model_.config().hidden_dim));
    return greedy_token(model_.logits(last), model_.config().vocab_size);
  }
  void rewind() override {
    kv_.truncate(prompt_tokens_);
    hidden_.clear();
  }

 private:
  const Transformer& model_;
  KvState& kv_;
  std::int64_t prompt_tokens_;
  std::int32_t behind_prompt_;
  std::vector<float> hidden_;  // last pass after the prompt
};

struct PassRun {
  PassHost& host;
  const RecordOptions& options;
  std::span<const std::int32_t> prompt;
  ExtraPass pass;  // with its layers, empty
  std::int32_t cached = 0;
  LayerRecorder recorder{pass.layers, {.hidden = options.hidden}};

  std::int32_t prompt_tokens() const { return static_cast<std::int32_t>(prompt.size()); }
};

void lookahead(PassRun& s) {
  for (std::int32_t i = 0; i < s.options.lookahead_tokens; ++i) {
    s.pass.ids.push_back(s.host.next_token());
    s.host.run({&s.pass.ids.back(), 1}, s.recorder);
  }
  s.host.rewind();
  s.pass.num_tokens = s.options.lookahead_tokens;
  s.pass.chunks = {{0, s.pass.num_tokens, 0, s.prompt_tokens()}};
}

// Prompt tokens [begin, end).
std::vector<std::int32_t> repeat_input(const PassRun& s, std::int32_t begin, std::int32_t end) {
  const RepeatPrompt& repeat = s.options.repeat;
  std::vector<std::int32_t> ids = begin == 0 ? repeat.first : repeat.later;
  const auto at = s.prompt.begin();
  if (begin > 0) ids.insert(ids.end(), at + std::max(0, begin - repeat.hint_tokens), at + begin);
  ids.insert(ids.end(), repeat.separator.begin(), repeat.separator.end());
  ids.insert(ids.end(), at + begin, at + end);
  return ids;
}

template <class Run>
void repeat_chunks(PassRun& s, std::int32_t chunk_tokens, Run&& run) {
  for (std::int32_t begin = 0; begin < s.prompt_tokens(); begin += chunk_tokens) {
    const std::int32_t end = std::min(begin + chunk_tokens, s.prompt_tokens());
    const std::vector<std::int32_t> ids = repeat_input(s, begin, end);
    run(ids);
    s.host.rewind();
    s.pass.ids.insert(s.pass.ids.end(), ids.begin(), ids.end());
    s.pass.chunks.push_back({s.pass.num_tokens, static_cast<std::int32_t>(s.pass.ids.size()), begin, end});
    s.pass.num_tokens = static_cast<std::int32_t>(s.pass.ids.size());
  }
}

void reconstruct(PassRun& s) {
  repeat_chunks(s, s.options.repeat.chunk_tokens, [&](const auto& ids) { s.host.run(ids, s.recorder); });
}

void reconstruct_gradient(PassRun& s) {
  repeat_chunks(s, s.options.repeat.gradient_chunk_tokens, [&](const auto& ids) {
    const std::vector<std::vector<float>> norms = s.host.run_with_gradient(ids, s.recorder);
    for (std::size_t l = 0; l < norms.size(); ++l) append(s.pass.layers[l].gradient, norms[l]);
  });
}

void run_appended(PassRun& s, std::vector<std::int32_t> ids) {
  s.host.run(ids, s.recorder);
  s.host.rewind();
  s.pass.num_tokens = static_cast<std::int32_t>(ids.size());
  s.pass.ids = std::move(ids);
  s.pass.chunks = {{0, s.pass.num_tokens, 0, s.cached}};
}

void repeat(PassRun& s) { run_appended(s, {s.prompt.begin(), s.prompt.end()}); }

void answer_template(PassRun& s) { run_appended(s, s.options.answer_template); }

void windows(PassRun& s) {
  std::vector<std::int32_t> ids;
  const std::int32_t question = s.options.question_begin;
  const PromptWindows chosen = typical_windows(question > 0 ? s.prompt.first(static_cast<std::size_t>(question)) : s.prompt);
  for (const std::int32_t begin : chosen.begin) ids.insert(ids.end(), s.prompt.begin() + begin, s.prompt.begin() + begin + chosen.tokens);
  run_appended(s, std::move(ids));
}

using PassFunction = void (*)(PassRun&);
const std::map<std::string, PassFunction>& pass_functions() {
  static const std::map<std::string, PassFunction> functions{
      {"lookahead", lookahead}, {"reconstruct", reconstruct},  {"reconstruct_gradient", reconstruct_gradient},
      {"repeat", repeat},       {"template", answer_template}, {"windows", windows}};
  return functions;
}

// 0: none.
std::int32_t shortest_window(const ModelConfig& c) {
  std::int32_t shortest = 0;
  for (const std::int32_t window : c.windows)
    if (window > 0 && (shortest == 0 || window < shortest)) shortest = window;
  return shortest;
}

std::int64_t tokens_reached(const std::string& pass, std::int32_t prompt_tokens, const RecordOptions& o) {
  const auto wording = static_cast<std::int32_t>(std::max(o.repeat.first.size(), o.repeat.later.size()) + o.repeat.separator.size());
  PassSizes sizes{o.repeat.chunk_tokens, o.repeat.gradient_chunk_tokens, wording + o.repeat.hint_tokens, o.lookahead_tokens};
  sizes.template_tokens = static_cast<std::int32_t>(o.answer_template.size());
  std::int32_t most = 0;
  for (const PassShape& chunk : pass_shapes(pass, prompt_tokens, prompt_tokens, sizes)) most = std::max(most, chunk.count);
  return std::int64_t{prompt_tokens} + most;
}

void check_request(const ModelConfig& c, std::size_t prompt_tokens, const RecordOptions& o) {
  if (prompt_tokens == 0) throw InputError("the prompt has no tokens");
  const std::size_t decoded = o.continuation.size() + static_cast<std::size_t>(o.decode_tokens);
  if (prompt_tokens + decoded > static_cast<std::size_t>(c.max_tokens))
    throw InputError(fmt::format("a prompt of {} tokens and {} decoded tokens do not fit into the context of {} of model '{}'",
                                 prompt_tokens, decoded, c.max_tokens, c.name));
  const std::int32_t window = shortest_window(c);
  if (window > 0 && prompt_tokens + decoded > static_cast<std::size_t>(window))
    throw InputError(fmt::format(
        "model '{}' attends within a window of {} tokens, which an attention trace cannot say: the prompt's {} tokens and {} decoded ones "
        "are more; take a prompt of at most {}",
        c.name, window, prompt_tokens, decoded, std::max<std::int64_t>(0, window - static_cast<std::int64_t>(decoded))));
  for (const std::string& name : o.passes) {
    if (!pass_functions().contains(name)) throw InputError("unknown pass '" + name + "'" + suggestion(name, extra_pass_names()));
    if (std::count(o.passes.begin(), o.passes.end(), name) > 1) throw InputError("pass '" + name + "' is named twice");
    const std::int64_t reached = tokens_reached(name, static_cast<std::int32_t>(prompt_tokens), o);
    if (window > 0 && reached > window)
      throw InputError(fmt::format(
          "model '{}' attends within a window of {} tokens, which an attention trace cannot say: with its pass '{}' a prompt of {} tokens "
          "takes {}; take a shorter prompt, or leave the pass out",
          c.name, window, name, prompt_tokens, reached));
  }
}

struct Prefilled {
  const Transformer& model;
  const RecordOptions& options;
  KvState& kv;
  std::vector<float> logits;  // last tokens
};

void decode(Prefilled& s, LayerRecorder& recorder, std::vector<std::int32_t>& ids) {
  const std::vector<std::int32_t>& known = s.options.continuation;
  if (!known.empty()) s.logits = forward_logits(s.model, known, s.kv, &recorder);
  ids.insert(ids.end(), known.begin(), known.end());
  for (std::int32_t i = 0; i < s.options.decode_tokens; ++i) {
    ids.push_back(greedy_token(s.logits, s.model.config().vocab_size));
    s.logits = forward_logits(s.model, {&ids.back(), 1}, s.kv, &recorder);
  }
}

}  // namespace

RepeatPrompt byte_repeat_prompt() {
  return {byte_ids("\n\nRepeat the previous context exactly."),
          byte_ids("\n\nRepeat the part of the previous context exactly, starting with"), byte_ids("\n")};
}

std::vector<std::int32_t> byte_answer_template() { return byte_ids("\nQ: my text?\nA: "); }

std::vector<std::vector<float>> PassHost::run_with_gradient(std::span<const std::int32_t>, Recorder&) {
  throw InputError("pass 'reconstruct_gradient' has a backward pass, which runs only with backend cpu");
}

std::vector<std::string> extra_pass_names() {
  std::vector<std::string> names;
  for (const auto& [name, function] : pass_functions())
    if (!runs_after_chunks(name)) names.push_back(name);
  return names;
}

ExtraPass run_extra_pass(const std::string& name, const Transformer& model, std::span<const std::int32_t> prompt_ids, KvState& kv,
                         std::span<const float> logits, const RecordOptions& options) {
  KvPassHost host(model, kv, logits);
  return run_extra_pass(name, host, model.config(), prompt_ids, options, static_cast<std::int32_t>(kv.tokens));
}

ExtraPass run_extra_pass(const std::string& name, PassHost& host, const ModelConfig& model, std::span<const std::int32_t> prompt_ids,
                         const RecordOptions& options, std::int32_t cached) {
  PassRun run{host, options, prompt_ids, {}, cached < 0 ? static_cast<std::int32_t>(prompt_ids.size()) : cached};
  run.pass.layers.resize(static_cast<std::size_t>(model.layers));
  pass_functions().at(name)(run);
  return std::move(run.pass);
}

bool fits_windows(const std::string& pass, const ModelConfig& c, std::int32_t prompt_tokens, const RecordOptions& options) {
  const std::int32_t window = shortest_window(c);
  return window == 0 || tokens_reached(pass, prompt_tokens, options) <= window;
}

AttentionTrace empty_trace(const ModelConfig& c, std::size_t prompt_tokens, const RecordOptions& options) {
  check_request(c, prompt_tokens, options);
  AttentionTrace trace;
  trace.model = c.name;
  trace.num_layers = c.layers;
  trace.q_heads = c.q_heads;
  trace.kv_heads = c.kv_heads;
  trace.head_dim = c.head_dim;
  trace.hidden_dim = options.hidden || options.w_o || options.w_q ? c.hidden_dim : 0;
  trace.prompt_tokens = static_cast<std::int32_t>(prompt_tokens);
  trace.rope_base = c.rope_base;
  trace.rope_scaling = c.rope_text;
  trace.layers.resize(static_cast<std::size_t>(c.layers));
  return trace;
}

void add_query_weights(const Transformer& model, const RecordOptions& options, AttentionTrace& trace) {
  if (!options.w_q || model.config().qk_norm) return;
  for (std::size_t l = 0; l < trace.layers.size(); ++l) {
    const LayerWeights& w = model.weights().layers[l];
    trace.layers[l].w_q.assign(w.q.begin(), w.q.end());
    trace.layers[l].b_q.assign(w.q_bias.begin(), w.q_bias.end());
  }
}

AttentionTrace record(const Transformer& model, std::span<const std::int32_t> prompt_ids, const RecordOptions& options) {
  KvState kv(model.config());
  Prefilled s{model, options, kv, {}};
  AttentionTrace trace = empty_trace(model.config(), prompt_ids.size(), options);
  for (std::size_t l = 0; options.w_o && l < trace.layers.size(); ++l)
    trace.layers[l].w_o.assign(model.weights().layers[l].o.begin(), model.weights().layers[l].o.end());
  add_query_weights(model, options, trace);
  LayerRecorder recorder(trace.layers, {.pre_q = options.pre_rope, .pre_k = options.pre_rope, .hidden = options.hidden});
  const std::size_t step = options.chunk_tokens > 0 ? static_cast<std::size_t>(options.chunk_tokens) : prompt_ids.size();
  for (std::size_t begin = 0; begin < prompt_ids.size(); begin += step) {
    s.logits = forward_logits(model, prompt_ids.subspan(begin, std::min(step, prompt_ids.size() - begin)), s.kv, &recorder);
    trace.chunk_ends.push_back(static_cast<std::int32_t>(s.kv.tokens));
  }
  for (const std::string& name : options.passes) trace.passes[name] = run_extra_pass(name, model, prompt_ids, kv, s.logits, options);
  trace.ids.assign(prompt_ids.begin(), prompt_ids.end());
  decode(s, recorder, trace.ids);
  trace.num_tokens = static_cast<std::int32_t>(trace.ids.size());
  return trace;
}

PromptTensors run_prompt(const Transformer& model, std::span<const std::int32_t> ids, const Needs& needs,
                         std::span<const std::string> passes, const RecordOptions& options) {
  PromptTensors prompt;
  prompt.ids.assign(ids.begin(), ids.end());
  prompt.layers.resize(static_cast<std::size_t>(model.config().layers));
  const bool queries = needs.step_queries || needs.window_queries > 0;
  LayerRecorder recorder(prompt.layers, {queries, false, needs.pre_rope_queries, needs.pre_rope_keys, needs.hidden});
  KvState kv(model.config());
  const std::vector<float> hidden = forward(model, ids, kv, &recorder);
  prompt.last_hidden.assign(hidden.end() - model.config().hidden_dim, hidden.end());
  const std::vector<float> logits = passes.empty() ? std::vector<float>{} : model.logits(prompt.last_hidden);
  for (const std::string& name : passes)
    prompt.passes[name] = std::make_shared<ExtraPass>(run_extra_pass(name, model, ids, kv, logits, options));
  for (std::size_t l = 0; l < prompt.layers.size(); ++l) {
    prompt.layers[l].k = std::move(kv.k[l]);
    prompt.layers[l].v = std::move(kv.v[l]);
  }
  return prompt;
}

}  // namespace kvlab
