#include "traces/attention_trace.h"

#include <functional>

#include "base/half.h"
#include "base/random.h"
#include "tests/traces/trace_test_files.h"
#include "traces/write_safetensors.h"

namespace kvlab {
namespace {

std::vector<float> numbers(std::size_t count, std::uint64_t stream) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(Draw{1, Purpose::kTest, stream, i}.normal());
  return values;
}

std::vector<LayerTensors> layers_of(const AttentionTrace& trace, std::int32_t tokens, std::uint64_t stream) {
  const auto t = static_cast<std::size_t>(tokens), d = static_cast<std::size_t>(trace.head_dim);
  std::vector<LayerTensors> layers(static_cast<std::size_t>(trace.num_layers));
  for (LayerTensors& layer : layers) {
    layer.q = numbers(t * static_cast<std::size_t>(trace.q_heads) * d, stream++);
    layer.k = numbers(t * static_cast<std::size_t>(trace.kv_heads) * d, stream++);
    layer.v = numbers(t * static_cast<std::size_t>(trace.kv_heads) * d, stream++);
  }
  return layers;
}

// Two layers, 4 query and 2 KV heads of 3 channels, 6 tokens of which 5 are the prompt; everything optional is there.
AttentionTrace full_trace() {
  AttentionTrace trace;
  trace.name = "t";
  trace.model = "tiny \"7B\"";
  trace.task = "niah";
  trace.made_for = "record\ntask = niah";
  trace.num_layers = 2, trace.q_heads = 4, trace.kv_heads = 2, trace.head_dim = 3, trace.hidden_dim = 7;
  trace.num_tokens = 6, trace.prompt_tokens = 5;
  trace.chunk_ends = {2, 5};
  trace.ids = {1, 2, 3, 0, 5, 6};
  trace.rope_base = 500000.5;
  trace.rope_scaling = R"({"factor": 8.0})";
  trace.needles = {{0, 1}, {2, 5}};
  trace.question_begin = 4;
  trace.layers = layers_of(trace, 6, 0);
  for (LayerTensors& layer : trace.layers) {
    layer.pre_q = numbers(72, 100);
    layer.pre_k = numbers(36, 101);
    layer.hidden = numbers(42, 102);
    layer.w_o = numbers(84, 103);
    layer.w_q = numbers(84, 104), layer.b_q = numbers(12, 105);
  }
  ExtraPass& pass = trace.passes["re-construct_1"];
  pass.num_tokens = 3;
  pass.ids = {7, 8, 9};
  pass.chunks = {{0, 2, 0, 2}, {2, 3, 2, 5}};
  pass.layers = layers_of(trace, 3, 200);
  for (LayerTensors& layer : pass.layers) layer.gradient = numbers(3, 300);
  return trace;
}

void expect_equal(const std::vector<LayerTensors>& a, const std::vector<LayerTensors>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t l = 0; l < a.size(); ++l) {
    const auto tensors = [](const LayerTensors& t) {
      return std::tie(t.q, t.k, t.v, t.pre_q, t.pre_k, t.hidden, t.gradient, t.w_o, t.w_q, t.b_q);
    };
    EXPECT_EQ(tensors(a[l]), tensors(b[l]));
  }
}

TEST(AttentionTrace, WritingAndReadingChangesNothing) {
  const TempFolder folder;
  const std::string path = folder.file("t.safetensors");
  const AttentionTrace trace = full_trace();
  write_attention_trace(path, trace, TraceFloat::kF32);
  const AttentionTrace read = read_attention_trace(path);
  const auto facts = [](const AttentionTrace& t) {
    return std::tie(t.name, t.model, t.task, t.made_for, t.num_layers, t.q_heads, t.kv_heads, t.head_dim, t.hidden_dim, t.num_tokens,
                    t.prompt_tokens, t.chunk_ends, t.ids, t.rope_base, t.rope_scaling, t.needles, t.question_begin);
  };
  EXPECT_EQ(facts(read), facts(trace));
  expect_equal(read.layers, trace.layers);
  ASSERT_EQ(read.passes.size(), 1U);
  const ExtraPass& pass = read.passes.at("re-construct_1");
  EXPECT_EQ(std::tuple(pass.num_tokens, pass.ids), std::tuple(3, (std::vector<std::int32_t>{7, 8, 9})));
  EXPECT_EQ(pass.chunks, trace.passes.at("re-construct_1").chunks);
  expect_equal(pass.layers, trace.passes.at("re-construct_1").layers);
}

TEST(AttentionTrace, HalfPrecisionRoundsToTheNearest) {
  const TempFolder folder;
  const std::string path = folder.file("t.safetensors");
  const AttentionTrace trace = full_trace();
  write_attention_trace(path, trace, TraceFloat::kF16);
  const AttentionTrace read = read_attention_trace(path);
  for (std::size_t i = 0; i < trace.layers[1].k.size(); ++i)
    EXPECT_EQ(read.layers[1].k[i], half_to_float(float_to_half(trace.layers[1].k[i])));
}

TEST(AttentionTrace, SmallestTraceAndDefaults) {
  const TempFolder folder;
  const std::string path = folder.file("one.safetensors");
  const std::vector<float> q{1, 2}, k{3};
  write_safetensors(path,
                    {{"L0.q", "F32", {1, 2, 1}, q.data()}, {"L0.k", "F32", {1, 1, 1}, k.data()}, {"L0.v", "F32", {1, 1, 1}, k.data()}},
                    {{"format", "kvlab-attention-trace-1"}, {"model", ""}, {"prompt_tokens", "1"}, {"rope_base", "0"}});
  const AttentionTrace read = read_attention_trace(path);
  EXPECT_EQ(std::tuple(read.chunk_ends, read.rope_scaling, read.question_begin, read.hidden_dim, read.needles.empty(), read.ids.empty(),
                       read.passes.empty()),
            std::tuple((std::vector<std::int32_t>{1}), "none", -1, 0, true, true, true));
  EXPECT_EQ(read.layers[0].q, q);
}

// A file made by hand: every tensor is F32 zeros of the given shape, ids are I32.
struct File {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  std::map<std::string, std::string> metadata;
};

File good_file() {
  File file;
  for (const char* layer : {"L0.", "L1.", "pass.p.L0.", "pass.p.L1."}) {
    const std::int64_t t = layer[0] == 'p' ? 3 : 6;
    file.shapes[std::string(layer) + "q"] = {t, 4, 3};
    file.shapes[std::string(layer) + "k"] = file.shapes[std::string(layer) + "v"] = {t, 2, 3};
  }
  file.metadata = {{"format", "kvlab-attention-trace-1"},
                   {"model", "m"},
                   {"prompt_tokens", "5"},
                   {"rope_base", "10000"},
                   {"chunk_ends", "2,5"},
                   {"needles", "0-1,2-5"},
                   {"question_begin", "4"},
                   {"rope_scaling", "none"},
                   {"pass.p.chunks", "0-2:0-2,2-3:2-5"}};
  return file;
}

std::string error_after(const std::function<void(File&)>& damage) {
  const TempFolder folder;
  const std::string path = folder.file("t");
  File file = good_file();
  damage(file);
  const std::vector<float> zeros(1000);
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, shape] : file.shapes) tensors.push_back({name, name.ends_with("ids") ? "I32" : "F32", shape, zeros.data()});
  write_safetensors(path, tensors, file.metadata);
  const std::string message = error_of([&] { read_attention_trace(path); });
  return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
}

std::string error_with(const std::string& key, const std::string& text) {
  return error_after([&](File& f) { f.metadata[key] = text; });
}

std::string error_shaped(const std::string& name, const std::vector<std::int64_t>& shape) {
  return error_after([&](File& f) { f.shapes[name] = shape; });
}

std::string error_without(const std::string& name) {
  return error_after([&](File& f) { f.shapes.erase(name), f.metadata.erase(name); });
}

TEST(AttentionTraceErrors, Metadata) {
  EXPECT_EQ(error_after([](File&) {}), "no error");
  EXPECT_EQ(error_without("format"), "has no metadata 'format'");
  EXPECT_EQ(error_with("format", "pt"), "metadata 'format' = 'pt': expected 'kvlab-attention-trace-1'");
  EXPECT_EQ(error_without("model"), "has no metadata 'model'");
  EXPECT_EQ(error_without("prompt_tokens"), "has no metadata 'prompt_tokens'");
  EXPECT_EQ(error_without("rope_base"), "has no metadata 'rope_base'");
  EXPECT_EQ(error_with("chunk_end", "5"), "unknown metadata 'chunk_end'; did you mean 'chunk_ends'?");
  EXPECT_EQ(error_with("prompt_tokens", "-5"), "metadata 'prompt_tokens' = '-5': '-5' is no whole number from 0 to 1073741823");
  EXPECT_EQ(error_with("prompt_tokens", "0"), "prompt_tokens = 0 is outside [1, 6]");
  EXPECT_EQ(error_with("prompt_tokens", "7"), "prompt_tokens = 7 is outside [1, 6]");
  EXPECT_EQ(error_with("chunk_ends", "2,x"), "metadata 'chunk_ends' = '2,x': 'x' is no whole number from 0 to 1073741823");
  EXPECT_EQ(error_with("chunk_ends", "2,"), "metadata 'chunk_ends' = '2,': '' is no whole number from 0 to 1073741823");
  EXPECT_EQ(error_with("chunk_ends", "2,2,5"), "chunk_ends: 2 follows 2; they ascend");
  EXPECT_EQ(error_with("chunk_ends", "0,5"), "chunk_ends: 0 follows 0; they ascend");
  EXPECT_EQ(error_with("chunk_ends", "2,4"), "chunk_ends: the last is 4, expected the prompt's end 5");
  EXPECT_EQ(error_with("chunk_ends", "2,6"), "chunk_ends: the last is 6, expected the prompt's end 5");
  EXPECT_EQ(error_with("needles", "3"), "metadata 'needles' = '3': '3' is no span begin-end");
  EXPECT_EQ(error_with("needles", "0-1,3-3"), "needle 3-3 is no span of the prompt's 5 tokens");
  EXPECT_EQ(error_with("needles", "3-6"), "needle 3-6 is no span of the prompt's 5 tokens");
  EXPECT_EQ(error_with("question_begin", "5"), "question_begin = 5 is outside [0, 4]");
  EXPECT_EQ(error_with("rope_base", "1e4x"), "metadata 'rope_base' = '1e4x': is no decimal number");
  EXPECT_EQ(error_with("rope_base", "nan"), "metadata 'rope_base' = 'nan': is no decimal number");
  EXPECT_EQ(error_with("rope_base", "-1"), "rope_base = -1 is negative");
  EXPECT_EQ(error_with("rope_scaling", "yarn"), "rope_scaling = 'yarn' is neither 'none' nor a JSON object");
}

TEST(AttentionTraceErrors, Tensors) {
  EXPECT_EQ(error_without("L1.v"), "has no tensor 'L1.v'; the nearest is 'L0.v'");
  EXPECT_EQ(error_without("L0.q"), "has no tensor 'L0.q'; the nearest is 'L0.k'");
  EXPECT_EQ(error_shaped("L3.q", {6, 4, 3}), "has no tensor 'L2.q'; the nearest is 'L0.q'");
  EXPECT_EQ(error_shaped("L0.q", {6, 12}), "tensor 'L0.q' has shape [6, 12], expected [any, any, any]");
  EXPECT_EQ(error_shaped("L0.q", {0, 4, 3}), "tensor 'L0.q' has shape [0, 4, 3]; extents are from 1 to 1073741823");
  EXPECT_EQ(error_shaped("L1.q", {5, 4, 3}), "tensor 'L1.q' has shape [5, 4, 3], expected [6, 4, 3]");
  EXPECT_EQ(error_shaped("L0.k", {5, 2, 3}), "tensor 'L0.k' has shape [5, 2, 3], expected [6, 2, 3]");
  EXPECT_EQ(error_shaped("L0.v", {6, 1, 3}), "tensor 'L0.v' has shape [6, 1, 3], expected [6, 2, 3]");
  EXPECT_EQ(error_shaped("L1.pre_k", {6, 4, 3}), "tensor 'L1.pre_k' has shape [6, 4, 3], expected [6, 2, 3]");
  EXPECT_EQ(error_shaped("L1.hidden", {5, 7}), "tensor 'L1.hidden' has shape [5, 7], expected [6, 7]");
  EXPECT_EQ(error_shaped("W_o.L1", {7, 11}), "tensor 'W_o.L1' has shape [7, 11], expected [7, 12]");
  EXPECT_EQ(error_after([](File& f) {
              f.shapes["L0.hidden"] = f.shapes["L1.hidden"] = {6, 7}, f.shapes["W_q.L0"] = {12, 6};
            }),
            "tensor 'W_q.L0' has shape [12, 6], expected [12, 7]");
  EXPECT_EQ(error_shaped("ids", {5}), "tensor 'ids' has shape [5], expected [6]");
  EXPECT_EQ(error_shaped("pass.p.ids", {2}), "tensor 'pass.p.ids' has shape [2], expected [3]");
  EXPECT_EQ(error_after([](File& f) {
              for (const char* name : {"L0.k", "L0.v", "L1.k", "L1.v"}) f.shapes[name] = {6, 3, 3};
              for (const char* name : {"pass.p.L0.k", "pass.p.L0.v", "pass.p.L1.k", "pass.p.L1.v"}) f.shapes[name] = {3, 3, 3};
            }),
            "4 query heads are no multiple of 3 KV heads");
}

TEST(AttentionTraceErrors, OptionalTensorsOfSomeLayersAlone) {
  EXPECT_EQ(error_shaped("L0.pre_q", {6, 4, 3}), "has L0.pre_q but no L1.pre_q");
  EXPECT_EQ(error_shaped("L1.pre_q", {6, 4, 3}), "has L1.pre_q but no L0.pre_q");
  EXPECT_EQ(error_shaped("L0.pre_k", {6, 2, 3}), "has L0.pre_k but no L1.pre_k");
  EXPECT_EQ(error_shaped("L0.hidden", {6, 7}), "has L0.hidden but no L1.hidden");
  EXPECT_EQ(error_shaped("W_o.L1", {7, 12}), "has W_o.L1 but no W_o.L0");
  EXPECT_EQ(error_shaped("W_q.L1", {12, 7}), "has W_q.L1 but no W_q.L0");
  EXPECT_EQ(error_shaped("pass.p.L0.hidden", {3, 7}), "has pass.p.L0.hidden but no pass.p.L1.hidden");
  EXPECT_EQ(error_after([](File& f) { f.shapes["W_o.L0"] = f.shapes["W_o.L1"] = {7, 12}; }), "no error");
}

TEST(AttentionTraceErrors, UnknownTensors) {
  const std::string known =
      "; a trace has L0.q, L0.k, L0.v, L0.pre_q, L0.pre_k, L0.hidden, W_o.L0, W_q.L0, b_q.L0, ids, pass.NAME.L0.q, "
      "pass.NAME.L0.gradient";
  for (const char* name : {"L0.w", "L0", "L", "L.q", "L01.q", "L-1.q", "L0.q.x", "W_o", "W_o.L", "W_o.L0.q", "pass.p", "pass..ids",
                           "pass.p.q.L0.q", "pass.p.L0.pre_q", "pass.p.W_o.L0", "L0.gradient", "q", "L99999999999999999999.q"}) {
    EXPECT_EQ(error_shaped(name, {6, 4, 3}), "unknown tensor '" + std::string(name) + "'" + known);
  }
}

TEST(AttentionTraceErrors, Passes) {
  EXPECT_EQ(error_without("pass.p.chunks"), "tensor 'pass.p.L0.k' belongs to a pass without metadata 'pass.p.chunks'");
  EXPECT_EQ(error_with("pass.other.chunks", "0-1:0-1"), "has no tensor 'pass.other.L0.q'; the nearest is 'pass.p.L0.q'");
  EXPECT_EQ(error_without("pass.p.L1.k"), "has no tensor 'pass.p.L1.k'; the nearest is 'pass.p.L0.k'");
  EXPECT_EQ(error_shaped("pass.p.L1.v", {4, 2, 3}), "tensor 'pass.p.L1.v' has shape [4, 2, 3], expected [3, 2, 3]");
  EXPECT_EQ(error_with("pass.p.chunks", "0-3"), "metadata 'pass.p.chunks' = '0-3': '0-3' is no chunk begin-end:ctx_begin-ctx_end");
  EXPECT_EQ(error_with("pass.p.chunks", "0-2:0-2,1-3:2-5"), "pass 'p': chunk 1-3:2-5 does not go on from token 2");
  EXPECT_EQ(error_with("pass.p.chunks", "0-0:0-2,0-3:2-5"), "pass 'p': chunk 0-0:0-2 does not go on from token 0");
  EXPECT_EQ(error_with("pass.p.chunks", "0-3:0-6"), "pass 'p': chunk 0-3:0-6 observes no span of the prompt's 5 tokens");
  EXPECT_EQ(error_with("pass.p.chunks", "0-3:4-3"), "pass 'p': chunk 0-3:4-3 observes no span of the prompt's 5 tokens");
  EXPECT_EQ(error_with("pass.p.chunks", "0-2:0-5"), "pass 'p': its chunks end at token 2, it has 3");
  EXPECT_EQ(error_with("pass.p.chunks", ""), "pass 'p': its chunks end at token 0, it has 3");
  EXPECT_EQ(error_with("pass..chunks", ""),
            "unknown metadata 'pass..chunks'; known: chunk_ends, format, made_for, model, needles, prompt_tokens, "
            "question_begin, rope_base, rope_scaling, task");
}

TEST(AttentionTraceErrors, ValuesInTensors) {
  const TempFolder folder;
  AttentionTrace trace = full_trace();
  trace.ids[3] = -1;
  EXPECT_EQ(error_of([&] { check_attention_trace(trace, "x"); }), "x: tensor 'ids' has -1 at [3]; token ids are not negative");
  trace = full_trace();
  trace.layers[1].q[5 * 12 + 2 * 3 + 1] = std::numeric_limits<float>::quiet_NaN();
  const std::string path = folder.file("t");
  EXPECT_EQ(error_of([&] { write_attention_trace(path, trace, TraceFloat::kF32); }), path + ": tensor 'L1.q' has a NaN at [5, 2, 1]");
  trace = full_trace();
  trace.layers[1].q.pop_back();
  EXPECT_THROW(write_attention_trace(path, trace, TraceFloat::kF32), InternalError);
  trace.layers.pop_back();
  EXPECT_THROW(write_attention_trace(path, trace, TraceFloat::kF32), InternalError);
}

}  // namespace
}  // namespace kvlab
