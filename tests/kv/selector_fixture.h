#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "tests/kv/kv_fixture.h"

namespace kvlab::test {

// A prompt and decode steps of random tensors for a batch, driven as a host drives a selector: append, update, select.
class Decode {
 public:
  Decode(ModelShape shape, std::int32_t num_sequences, std::int32_t prompt_tokens, std::uint64_t seed, bool with_data = true,
         std::int32_t num_words = 0)
      : model(shape),
        store(model, num_sequences, num_words, with_data),
        ops(with_data ? Ops::Backend::kCpu : Ops::Backend::kShapes),
        seed_(seed),
        prompt_tokens_(prompt_tokens) {
    k.resize(static_cast<std::size_t>(num_sequences)), q.resize(k.size());
  }

  // Another `tokens` of every sequence.
  void append(std::int32_t tokens) {
    seqs.clear(), queries.clear(), window.clear(), id_rows.clear();
    for (std::size_t s = 0; s < k.size(); ++s) {
      const auto stream = static_cast<std::int32_t>(8 * (100 * seen_ + static_cast<std::int32_t>(s)));
      extend(k[s], RandomLayer::normals(static_cast<std::size_t>(tokens * model.kv_heads * model.head_dim), seed_, stream));
      extend(q[s], RandomLayer::normals(static_cast<std::size_t>(tokens * model.q_heads * model.head_dim), seed_, stream + 1));
      const auto kv_at = static_cast<std::ptrdiff_t>(seen_) * model.kv_heads * model.head_dim;
      const float* keys = store.has_data() ? k[s].data() + kv_at : nullptr;
      store.append(static_cast<std::int32_t>(s), keys, keys, tokens, seen_);
      seqs.push_back({static_cast<std::int32_t>(s), seen_, tokens, prompt_tokens_, -1});
      queries.push_back(last_queries(s, tokens, seen_ + tokens));
      window.push_back(last_queries(s, std::min(window_tokens, prompt_tokens_), prompt_tokens_));
    }
    seen_ += tokens;
  }
  LayerStep step(std::int32_t layer = 2) {
    LayerStep step{ops, model, layer, seqs, store.rows(), {}, 7};
    step.in.step = queries;
    step.in.window = window;
    for (std::size_t s = 0; s < k.size(); ++s) id_rows.push_back(store.has_data() && s < ids.size() ? ids[s].data() : nullptr);
    step.in.ids = id_rows;
    return step;
  }

  // The prompt, told to the selector.
  void prefill(Selector& selector, std::int32_t layer = 2) {
    append(prompt_tokens_);
    LayerStep s = step(layer);
    selector.update(s);
  }
  // A decode step: token indices per row.
  std::vector<std::vector<std::int32_t>> decode(Selector& selector, std::int32_t layer = 2) {
    append(1);
    LayerStep s = step(layer);
    const Ops::Frame frame(ops);
    selector.update(s);
    const Selection chosen = selector.select(s);
    attended = 0;
    std::vector<std::vector<std::int32_t>> rows(static_cast<std::size_t>(s.kv.num_rows));
    for (std::int32_t r = 0; r < s.kv.num_rows; ++r) {
      const std::int64_t n = chosen.index_first == nullptr ? s.kv.len[r] : chosen.index_first[r + 1] - chosen.index_first[r];
      attended += n;
      auto& row = nth(rows, r);
      row.resize(static_cast<std::size_t>(n));
      if (chosen.index_first == nullptr)
        std::iota(row.begin(), row.end(), 0);
      else if (store.has_data())
        std::copy_n(chosen.index + chosen.index_first[r], n, row.begin());
    }
    return rows;
  }

  [[nodiscard]] const float* key(std::int32_t row, std::int32_t i) const {
    return nth(k, row / model.kv_heads).data() + (i * model.kv_heads + row % model.kv_heads) * model.head_dim;
  }
  // The newest query of a head of the row's group.
  [[nodiscard]] const float* query(std::int32_t row, std::int32_t head) const {
    return nth(q, row / model.kv_heads).data() +
           (static_cast<std::ptrdiff_t>(seen_ - 1) * model.q_heads + row % model.kv_heads * model.group() + head) * model.head_dim;
  }
  [[nodiscard]] double logit(std::int32_t row, std::int32_t head, std::int32_t i) const {
    return dot(query(row, head), key(row, i)) / std::sqrt(model.head_dim);
  }
  [[nodiscard]] std::vector<double> logits(std::int32_t row, std::int32_t head, std::int32_t begin, std::int32_t end) const {
    std::vector<double> z;
    for (std::int32_t i = begin; i < end; ++i) z.push_back(logit(row, head, i));
    return z;
  }
  [[nodiscard]] double dot(const float* a, const float* b) const { return test::dot(a, b, model.head_dim); }
  // The bound of Quest for tokens [begin, end) and one query head: each channel takes the end that helps it most.
  [[nodiscard]] double bound(std::int32_t row, std::int32_t head, std::int32_t begin, std::int32_t end) const {
    double sum = 0;
    for (std::int32_t c = 0; c < model.head_dim; ++c) {
      const auto [low, high] = channel_range(row, c, begin, end);
      const auto x = static_cast<double>(query(row, head)[c]);
      sum += std::max(x * low, x * high);
    }
    return sum / std::sqrt(model.head_dim);
  }
  // The largest of the row's query heads.
  [[nodiscard]] double group_bound(std::int32_t row, std::int32_t begin, std::int32_t end) const {
    double most = -1e30;
    for (std::int32_t h = 0; h < model.group(); ++h) most = std::max(most, bound(row, h, begin, end));
    return most;
  }
  // Smallest and largest value of a key channel.
  [[nodiscard]] std::pair<double, double> channel_range(std::int32_t row, std::int32_t c, std::int32_t begin, std::int32_t end) const {
    double low = 1e30, high = -1e30;
    for (std::int32_t i = begin; i < std::min(end, seen_); ++i) {
      low = std::min(low, static_cast<double>(key(row, i)[c]));
      high = std::max(high, static_cast<double>(key(row, i)[c]));
    }
    return {low, high};
  }
  // q . mean key of tokens [begin, end) / sqrt(d).
  [[nodiscard]] double mean_logit(std::int32_t row, std::int32_t head, std::int32_t begin, std::int32_t end) const {
    const std::vector<double> z = logits(row, head, begin, std::min(end, seen_));
    return std::accumulate(z.begin(), z.end(), 0.0) / static_cast<double>(z.size());
  }
  // Group mean of the softmax over all tokens held.
  [[nodiscard]] std::vector<double> attention(std::int32_t row) const {
    std::vector<double> mean(static_cast<std::size_t>(seen_), 0.0);
    for (std::int32_t h = 0; h < model.group(); ++h) {
      const std::vector<double> p = softmax(logits(row, h, 0, seen_));
      for (std::size_t i = 0; i < p.size(); ++i) mean[i] += p[i] / model.group();
    }
    return mean;
  }
  [[nodiscard]] std::int32_t tokens() const { return seen_; }

  ModelShape model;
  KvStore store;
  Ops ops;
  std::int32_t window_tokens = 0;
  std::int64_t attended = 0;             // by the last decode step, over all rows
  std::vector<std::vector<float>> k, q;  // per sequence [tokens, heads, head_dim]
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<SeqStep> seqs;
  std::vector<Queries> queries, window;
  std::vector<const std::int32_t*> id_rows;

 private:
  static void extend(std::vector<float>& to, const std::vector<float>& more) { to.insert(to.end(), more.begin(), more.end()); }
  [[nodiscard]] Queries last_queries(std::size_t s, std::int32_t count, std::int32_t end) const {
    const auto at = static_cast<std::ptrdiff_t>(end - count) * model.q_heads * model.head_dim;
    return {store.has_data() ? q[s].data() + at : nullptr, count, end - count};
  }
  std::uint64_t seed_;
  std::int32_t prompt_tokens_, seen_ = 0;
};

// A selector that has seen the prompt.
struct PrefilledWith {
  std::int32_t window = 0, layer = -1, budget = 0;  // layer -1: the third one, or the last; budget 0: its own
  std::uint64_t seed = 3;
};
class Prefilled : public Decode {
 public:
  Prefilled(ModelShape shape, std::int32_t num_sequences, std::int32_t prompt_tokens, const std::string& name,
            const std::string& parameters = "{}", PrefilledWith with = {})
      : Decode(shape, num_sequences, prompt_tokens, with.seed),
        part(make_part<SelectorRegistry>(name, parameters)),
        layer_(with.layer < 0 ? std::min(2, shape.num_layers - 1) : with.layer) {
    window_tokens = with.window;
    if (with.budget > 0) part->set_budget({with.budget});
    prefill(*part, layer_);
  }
  std::vector<std::vector<std::int32_t>> decode() { return Decode::decode(*part, layer_); }
  // In each of `steps` decode steps the selection is that which `tokens_of_row(row, step)` gives.
  template <class F>
  void expect_rows(std::int32_t steps, F&& tokens_of_row) {
    for (std::int32_t t = 0; t < steps; ++t) {
      const auto rows = decode();
      for (std::int32_t r = 0; r < store.num_rows(); ++r)
        EXPECT_EQ(nth(rows, r), tokens_of_row(r, t))
            << "group " << model.group() << ", " << tokens() << " tokens, row " << r << ", step " << t;
    }
  }
  std::unique_ptr<Selector> part;

 private:
  std::int32_t layer_;
};

// Tokens [0, head), those of the units (unit_tokens from u * unit_tokens on), and [tail, n).
inline std::vector<std::int32_t> tokens_of(const std::vector<std::int32_t>& units, std::int32_t unit_tokens, std::int32_t head,
                                           std::int32_t tail, std::int32_t n) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < head; ++i) tokens.push_back(i);
  for (const std::int32_t u : units)
    for (std::int32_t i = u * unit_tokens; i < (u + 1) * unit_tokens; ++i) tokens.push_back(i);
  for (std::int32_t i = tail; i < n; ++i) tokens.push_back(i);
  return tokens;
}

inline Ints shifted(Ints x, std::int32_t by) {
  for (std::int32_t& i : x) i += by;
  return x;
}

inline Ints tokens_in(const Selection& chosen, std::int32_t row) {
  return {chosen.index + chosen.index_first[row], chosen.index + chosen.index_first[row + 1]};
}

// The k best of `scores`, ties to the lower index, ascending.
inline std::vector<std::int32_t> best(const std::vector<double>& scores, std::size_t k) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return nth(scores, a) > nth(scores, b); });
  order.resize(std::min(k, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

// How many of `now` are not in `before`.
inline std::int64_t newcomers(const std::vector<std::int32_t>& now, const std::vector<std::int32_t>& before) {
  std::vector<std::int32_t> out;
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(), std::back_inserter(out));
  return static_cast<std::int64_t>(out.size());
}

// Records counts that depend on data, then plays them where there are only shapes.
class Played final : public CountSource {
 public:
  void fill(std::string_view purpose, int, std::span<std::int32_t> counts) override {
    for (std::int32_t& c : counts) {
      if (!plays_) {
        all_.emplace_back(purpose, c);
      } else if (at_ == all_.size() || all_[at_].first != purpose || all_[at_].second > c) {
        fits_ = false;  // asked for something else, or the recorded count exceeds its bound
      } else {
        c = all_[at_++].second;
      }
    }
  }
  void play() { plays_ = true; }
  [[nodiscard]] bool fitted() const { return fits_ && at_ == all_.size(); }

 private:
  bool plays_ = false, fits_ = true;
  std::vector<std::pair<std::string, std::int32_t>> all_;
  std::size_t at_ = 0;
};

// The attention output of a decode step over the selection and the segments that the selector adds.
inline std::vector<float> attended_output(Decode& d, Selector& selector) {
  d.append(1);
  LayerStep s = d.step();
  selector.update(s);
  const Selection chosen = selector.select(s);
  std::vector<Segment> segments(1);
  segments[0].kv = s.kv;
  segments[0].index_first = chosen.index_first, segments[0].index = chosen.index;
  selector.add_segments(s, segments);
  const auto width = static_cast<std::size_t>(d.model.q_heads * d.model.head_dim);
  std::vector<float> out(d.k.size() * width);
  std::vector<float*> rows;
  for (std::size_t i = 0; i < d.k.size(); ++i) rows.push_back(out.data() + i * width);
  d.ops(Attend{segments.data(), static_cast<std::int32_t>(segments.size()), d.queries.data(), rows.data()});
  return out;
}

// softmax(z) . rows of v, each of length d.
inline std::vector<double> attend_plain(const std::vector<double>& z, const std::vector<std::vector<double>>& v) {
  const double top = *std::max_element(z.begin(), z.end());
  std::vector<double> out(v.front().size(), 0.0);
  double sum = 0;
  for (const double x : z) sum += std::exp(x - top);
  for (std::size_t i = 0; i < z.size(); ++i)
    for (std::size_t c = 0; c < out.size(); ++c) out[c] += std::exp(z[i] - top) / sum * v[i][c];
  return out;
}

}  // namespace kvlab::test
