#pragma once

#include <gtest/gtest.h>

#include "tests/kv/kv_fixture.h"

namespace kvlab::test {

// A batch that a format stores step by step: a prompt in chunks, then one token at a time.
class FormatRun {
 public:
  FormatRun(const std::string& name, const std::string& parameters, ModelShape shape, std::int32_t prompt_tokens,
            std::int32_t decode_tokens, bool with_data = true, std::int32_t chunk_tokens = 1 << 20)
      : model(shape),
        format(make_part<FormatRegistry>(name, parameters)),
        store(model, 1, format->num_words(), with_data),
        ops(with_data ? Ops::Backend::kCpu : Ops::Backend::kShapes),
        prompt(prompt_tokens) {
    draw(prompt_tokens + decode_tokens);
    for (std::int32_t at = 0; at < prompt_tokens; at += chunk_tokens) step(std::min(chunk_tokens, prompt_tokens - at));
    for (std::int32_t t = 0; t < decode_tokens; ++t) step(1);
  }

  // These keys and values, [tokens, kv_heads, head_dim]: a prompt in one step, then `decode_tokens`. Queries are zero.
  FormatRun(const std::string& name, const std::string& parameters, ModelShape shape, std::vector<float> keys, std::vector<float> values,
            std::int32_t decode_tokens = 0)
      : FormatRun(name, parameters, shape, 0, 0) {
    const auto tokens = static_cast<std::int32_t>(keys.size()) / (model.kv_heads * model.head_dim);
    k = std::move(keys), v = std::move(values), q.resize(static_cast<std::size_t>(tokens * model.q_heads * model.head_dim));
    prompt = tokens - decode_tokens;
    step(prompt);
    for (std::int32_t t = 0; t < decode_tokens; ++t) step(1);
  }

  // Appends the next tokens and stores.
  void step(std::int32_t tokens) {
    const bool with = store.has_data();
    draw(seen + tokens);
    const auto at = static_cast<std::size_t>(seen * model.kv_heads * model.head_dim);
    store.append(0, with ? k.data() + at : nullptr, with ? v.data() + at : nullptr, tokens, seen);
    const SeqStep seq{0, seen, tokens, prompt, -1};
    seen += tokens;
    const auto queries = [&](std::int32_t count) {
      return Queries{with ? q.data() + static_cast<std::size_t>((seen - count) * model.q_heads * model.head_dim) : nullptr, count,
                     seen - count};
    };
    const Queries chunk = queries(tokens), window = queries(std::min(seen, std::max(1, format->needs().window_queries)));
    const float* pre_rope = with ? k.data() : nullptr;
    Ops::Frame frame(ops);
    LayerStep layer_step{ops, model, 0, {&seq, 1}, store.rows(), {}, 7};
    layer_step.in.step = {&chunk, 1};
    layer_step.in.window = {&window, 1};
    layer_step.in.pre_rope_keys = {&pre_rope, 1};
    format->store(layer_step);
  }

  float key(std::int32_t head, std::int32_t token, std::int32_t c) { return store.rows().key(head, token)[c]; }
  float value(std::int32_t head, std::int32_t token, std::int32_t c) { return store.rows().value(head, token)[c]; }
  [[nodiscard]] std::size_t place(std::int32_t head, std::int32_t token, std::int32_t c) const {
    return static_cast<std::size_t>((token * model.kv_heads + head) * model.head_dim + c);
  }
  // Tokens of a head whose K (V) is not as it was appended.
  std::int32_t changed_keys(std::int32_t head) { return changed(head, false); }
  std::int32_t changed_values(std::int32_t head) { return changed(head, true); }
  // Mean squared error over mean square.
  double error(bool values) {
    double wrong = 0, all = 0;
    for (std::int32_t h = 0; h < model.kv_heads; ++h)
      for (std::int32_t i = 0; i < seen; ++i)
        for (std::int32_t c = 0; c < model.head_dim; ++c) {
          const double x = (values ? v : k)[place(h, i, c)], y = values ? value(h, i, c) : key(h, i, c);
          EXPECT_TRUE(std::isfinite(y));
          wrong += (x - y) * (x - y), all += x * x;
        }
    return wrong / all;
  }

  ModelShape model;
  std::unique_ptr<Format> format;
  KvStore store;
  Ops ops;
  std::int32_t prompt, seen = 0;
  std::vector<float> k, v, q;  // [tokens, heads, head_dim]

 private:
  // Data of the first n tokens; what is there already stays.
  void draw(std::int32_t n) {
    const auto grow = [n](std::vector<float>& x, std::int32_t per_token, std::int32_t stream) {
      const auto size = static_cast<std::size_t>(n * per_token);
      if (x.size() >= size) return;
      std::vector<float> all = RandomLayer::normals(size, 5, stream);
      std::copy(x.begin(), x.end(), all.begin());
      x = std::move(all);
    };
    grow(k, model.kv_heads * model.head_dim, 0);
    grow(v, model.kv_heads * model.head_dim, 1);
    grow(q, model.q_heads * model.head_dim, 2);
  }

  std::int32_t changed(std::int32_t head, bool values) {
    std::int32_t count = 0;
    for (std::int32_t i = 0; i < seen; ++i) {
      bool same = true;
      for (std::int32_t c = 0; c < model.head_dim; ++c)
        same = same && (values ? value(head, i, c) == v[place(head, i, c)] : key(head, i, c) == k[place(head, i, c)]);
      count += same ? 0 : 1;
    }
    return count;
  }
};

// Same calls with and without data, same values twice, in whole prompts and in chunks.
inline void expect_sound(const std::string& name, const std::string& parameters, ModelShape shape, std::int32_t prompt,
                         std::int32_t decode) {
  FormatRun with(name, parameters, shape, prompt, decode), without(name, parameters, shape, prompt, decode, false);
  EXPECT_EQ(with.ops.log(), without.ops.log()) << name;
  FormatRun again(name, parameters, shape, prompt, decode);
  for (std::int32_t h = 0; h < shape.kv_heads; ++h)
    for (std::int32_t i = 0; i < prompt + decode; ++i)
      for (std::int32_t c = 0; c < shape.head_dim; ++c) {
        ASSERT_EQ(with.key(h, i, c), again.key(h, i, c)) << name;
        ASSERT_EQ(with.value(h, i, c), again.value(h, i, c)) << name;
        ASSERT_TRUE(std::isfinite(with.key(h, i, c)) && std::isfinite(with.value(h, i, c))) << name;
      }
  EXPECT_EQ(with.format->row_bytes(shape, 0, 0), 0) << name;
  FormatRun chunked(name, parameters, shape, prompt, decode, true, 7), chunked_shapes(name, parameters, shape, prompt, decode, false, 7);
  EXPECT_EQ(chunked.ops.log(), chunked_shapes.ops.log()) << name;
}

}  // namespace kvlab::test
