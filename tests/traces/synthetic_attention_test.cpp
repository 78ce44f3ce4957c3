#include "traces/synthetic_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/traces/trace_test_files.h"

namespace kvlab {
namespace {

constexpr const char* kSizes = "layers: 3, q_heads: 4, kv_heads: 2, prompt_tokens: 1500, decode_tokens: 36";

SyntheticAttentionShape shape_of(const std::string& more) {
  Params p = Params::from_text("{" + more + "}");
  return read_synthetic_attention(p);
}

SyntheticAttentionShape usual_shape() { return shape_of(kSizes); }

// The attention of one query of one layer, straight from the definition: [query + 1] values that add up to 1.
class Rows {
 public:
  Rows(const SyntheticAttention& made, const SyntheticAttentionShape& shape, std::int32_t layer)
      : shape_(shape), tensors_(made.layer(layer)) {}

  [[nodiscard]] std::vector<double> operator()(std::int32_t q_head, std::int32_t query) const {
    const std::int32_t kv_head = q_head / (shape_.q_heads / shape_.kv_heads);
    std::vector<double> row;
    for (std::int32_t t = 0; t <= query; ++t) {
      double dot = 0;
      for (std::int32_t c = 0; c < shape_.head_dim; ++c)
        dot += static_cast<double>(tensors_.q[at(query, q_head, shape_.q_heads, c)]) *
               static_cast<double>(tensors_.k[at(t, kv_head, shape_.kv_heads, c)]);
      row.push_back(dot / std::sqrt(shape_.head_dim));
    }
    const double most = *std::max_element(row.begin(), row.end());
    for (double& s : row) s = std::exp(s - most);
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    for (double& s : row) s /= sum;
    return row;
  }

 private:
  [[nodiscard]] std::size_t at(std::int32_t t, std::int32_t head, std::int32_t heads, std::int32_t c) const {
    return static_cast<std::size_t>((t * heads + head) * shape_.head_dim + c);
  }
  const SyntheticAttentionShape& shape_;
  LayerTensors tensors_;
};

double mass_of(const std::vector<double>& row, const std::vector<TokenRole>& roles, TokenRole role) {
  double mass = 0;
  for (std::size_t t = 0; t < row.size(); ++t) mass += roles[t] == role ? row[t] : 0;
  return mass;
}

// Mean mass of a role over queries from `begin` in steps of `step`, over the heads that retrieve, or do not, or all.
struct Measured {
  double sink = 0, needle = 0, heavy = 0, recurring = 0, recent = 0;
};

Measured measure(const SyntheticAttention& made, const SyntheticAttentionShape& shape, std::int32_t layer, std::int32_t begin,
                 std::int32_t end, std::int32_t step, std::int32_t q_head_begin, std::int32_t q_head_end) {
  const Rows rows(made, shape, layer);
  Measured sum;
  int count = 0;
  for (std::int32_t h = q_head_begin; h < q_head_end; ++h) {
    const std::vector<TokenRole> roles = made.roles(layer, h / (shape.q_heads / shape.kv_heads));
    for (std::int32_t i = begin; i < end; i += step, ++count) {
      const std::vector<double> row = rows(h, i);
      sum.sink += mass_of(row, roles, TokenRole::kSink);
      sum.needle += mass_of(row, roles, TokenRole::kNeedle);
      sum.heavy += mass_of(row, roles, TokenRole::kHeavy);
      sum.recurring += mass_of(row, roles, TokenRole::kRecurring);
      std::int32_t near = 0;  // the share refers to ordinary tokens
      for (std::size_t t = row.size(); t-- > 0 && near < shape.recent_tokens;)
        if (roles[t] == TokenRole::kOrdinary) sum.recent += row[t], ++near;
    }
  }
  return {sum.sink / count, sum.needle / count, sum.heavy / count, sum.recurring / count, sum.recent / count};
}

struct UsualAttention : ::testing::Test {
  const SyntheticAttentionShape shape = usual_shape();
  const SyntheticAttention made{shape, 5};
};

TEST_F(UsualAttention, SharesHoldInEveryLayer) {
  for (std::int32_t l = 0; l < shape.layers; ++l) {
    const double part = l / 2.0;
    const auto share = [&](const LayerShare& s) { return s.first_frac + part * (s.last_frac - s.first_frac); };
    const Measured m = measure(made, shape, l, 400, 1468, 23, 0, shape.q_heads);
    EXPECT_NEAR(m.sink, share(shape.sink), 0.15 * share(shape.sink)) << l;
    EXPECT_NEAR(m.heavy, share(shape.heavy), 0.15 * share(shape.heavy)) << l;
    EXPECT_NEAR(m.recent, share(shape.recent), 0.2 * share(shape.recent)) << l;
    EXPECT_NEAR(m.recurring, share(shape.recurring), 0.3 * share(shape.recurring)) << l;
    EXPECT_LT(m.needle, 0.03) << l;  // nobody looks for them before the question: 16 of 400 to 1468 tokens
  }
}

TEST(SyntheticAttention, SharesHoldForTheSmallestAndForLargerHeads) {
  for (const char* head : {"head_dim: 32, outlier_channels: 4", "head_dim: 40", "head_dim: 128"}) {
    const SyntheticAttentionShape shape = shape_of(std::string(kSizes) + ", " + head);
    const SyntheticAttention made(shape, 3);
    const Measured m = measure(made, shape, 2, 700, 1468, 31, 0, shape.q_heads);
    EXPECT_NEAR(m.sink, shape.sink.last_frac, 0.15 * shape.sink.last_frac) << head;
    EXPECT_NEAR(m.heavy, shape.heavy.last_frac, 0.15 * shape.heavy.last_frac) << head;
    EXPECT_NEAR(m.recent, shape.recent.last_frac, 0.25 * shape.recent.last_frac) << head;
  }
}

TEST(SyntheticAttention, NeedlesAreFoundByTheQuestionAndByRetrievalHeadsOnly) {
  SyntheticAttentionShape shape = usual_shape();
  shape.kv_heads = shape.q_heads = 6;
  const SyntheticAttention made(shape, 5);
  int retrieving = 0;
  for (std::int32_t h = 0; h < shape.kv_heads; ++h) {
    const Measured m = measure(made, shape, 2, 1468, 1536, 3, h, h + 1);
    retrieving += made.retrieves(2, h) ? 1 : 0;
    if (made.retrieves(2, h)) {
      EXPECT_NEAR(m.needle, shape.needle.last_frac, 0.25 * shape.needle.last_frac) << h;
    } else {
      EXPECT_LT(m.needle, 0.01) << h;
    }
    EXPECT_NEAR(m.sink, shape.sink.last_frac, 0.15 * shape.sink.last_frac) << h;
  }
  EXPECT_GT(retrieving, 0);
  EXPECT_LT(retrieving, 6);
}

TEST_F(UsualAttention, AttentionFallsOffWithDistance) {
  const Rows rows(made, shape, 2);
  const std::vector<TokenRole> roles = made.roles(2, 0);
  const std::vector<std::int32_t> edges{0, 4, 16, 64, 256, 1024};
  std::vector<double> per_token(edges.size() - 1);
  for (std::size_t band = 0; band < per_token.size(); ++band) {
    int count = 0;
    for (std::int32_t i = 1100; i < 1468; i += 11) {
      const std::vector<double> row = rows(1, i);
      for (std::int32_t distance = edges[band]; distance < edges[band + 1]; ++distance) {
        const auto t = static_cast<std::size_t>(i - distance);
        if (roles[t] == TokenRole::kOrdinary) per_token[band] += row[t], ++count;
      }
    }
    per_token[band] /= count;
  }
  for (std::size_t band = 1; band < per_token.size(); ++band) EXPECT_LT(per_token[band], 0.8 * per_token[band - 1]) << band;
  EXPECT_GT(per_token[0], 30 * per_token.back());
}

TEST_F(UsualAttention, RecurringTokensMatterOncePerPeriod) {
  const Rows rows(made, shape, 2);
  const std::vector<TokenRole> roles = made.roles(2, 1);
  double in_phase = 0, out_of_phase = 0;
  for (std::size_t t = 0; t < 1000; ++t) {
    if (roles[t] != TokenRole::kRecurring) continue;
    for (std::int32_t beat = 1; beat <= 4; ++beat) {
      const std::int32_t i = static_cast<std::int32_t>(t) + beat * shape.recurrence_period_tokens;
      in_phase += rows(2, i)[t];
      out_of_phase += rows(2, i + shape.recurrence_period_tokens / 3)[t];
    }
  }
  EXPECT_GT(in_phase, 0);
  EXPECT_GT(in_phase, 20 * out_of_phase);
}

TEST_F(UsualAttention, LateLayersAreMoreConcentrated) {
  std::vector<double> entropies;
  for (std::int32_t l = 0; l < shape.layers; ++l) {
    const Rows rows(made, shape, l);
    double entropy = 0;
    for (std::int32_t i = 1000; i < 1450; i += 30)
      for (const double w : rows(0, i)) entropy -= w > 0 ? w * std::log(w) / 15 : 0;
    entropies.push_back(entropy);
  }
  EXPECT_GT(entropies[0], entropies[1] + 0.5);
  EXPECT_GT(entropies[1], entropies[2] + 0.5);
}

TEST_F(UsualAttention, SinkValuesAreSmallAndOutlierChannelsLarge) {
  const LayerTensors layer = made.layer(1);
  std::vector<double> channel(64);
  double sink = 0, other = 0;
  for (std::size_t t = 0; t < 1536; ++t)
    for (std::size_t c = 0; c < 64; ++c) {
      channel[c] += std::fabs(static_cast<double>(layer.k[t * 128 + 64 + c])) / 1536;
      const auto v = static_cast<double>(layer.v[t * 128 + 64 + c]);
      (t < 4 ? sink : other) += v * v / (t < 4 ? 4 : 1532) / 64;
    }
  EXPECT_NEAR(std::sqrt(sink), 0.05, 0.01);
  EXPECT_NEAR(std::sqrt(other), 1, 0.02);
  std::sort(channel.begin(), channel.end());
  EXPECT_LT(channel[61], 1.6);
  EXPECT_NEAR(channel[62], 10, 0.5);
  EXPECT_NEAR(channel[63], 10, 0.5);
}

TEST(SyntheticAttention, SameSeedSameBytes) {
  const SyntheticAttentionShape shape = usual_shape();
  const LayerTensors one = SyntheticAttention(shape, 5).layer(1);
  const AttentionTrace trace = SyntheticAttention(shape, 5).trace();
  EXPECT_EQ(std::tuple(one.q, one.k, one.v), std::tuple(trace.layers[1].q, trace.layers[1].k, trace.layers[1].v));
  EXPECT_NE(one.k, trace.layers[2].k);
  EXPECT_NE(one.k, SyntheticAttention(shape, 6).layer(1).k);
}

TEST(SyntheticAttention, MakesATraceThatIsWrittenAndRead) {
  const TempFolder folder;
  const SyntheticAttentionShape shape = shape_of(
      "layers: 2, q_heads: 2, kv_heads: 1, head_dim: 40, prompt_tokens: 100, decode_tokens: 3, chunk_tokens: 40, needles: 3, "
      "needle_tokens: 20, sink_tokens: 8");
  const AttentionTrace trace = SyntheticAttention(shape, 1).trace();
  EXPECT_EQ(trace.chunk_ends, (std::vector<std::int32_t>{40, 80, 100}));
  EXPECT_EQ(trace.needles, (std::vector<std::pair<std::int32_t, std::int32_t>>{{8, 28}, {28, 48}, {48, 68}}));  // they just fit
  EXPECT_EQ(trace.question_begin, 68);
  const std::string path = folder.file("s.safetensors");
  write_attention_trace(path, trace, TraceFloat::kF32);
  const AttentionTrace read = read_attention_trace(path);
  EXPECT_EQ(std::tuple(read.num_tokens, read.layers[1].q, read.needles), std::tuple(103, trace.layers[1].q, trace.needles));
}

TEST(SyntheticAttention, SmallestSizes) {
  for (const char* sizes : {"head_dim: 32, prompt_tokens: 1, decode_tokens: 0", "head_dim: 32, prompt_tokens: 1, decode_tokens: 1",
                            "head_dim: 96, prompt_tokens: 4, decode_tokens: 0", "head_dim: 32, prompt_tokens: 129, outlier_channels: 4"}) {
    SyntheticAttentionShape shape = shape_of("layers: 1, q_heads: 1, kv_heads: 1, needles: 0, question_tokens: 0, " + std::string(sizes));
    const AttentionTrace trace = SyntheticAttention(shape, 1).trace();
    EXPECT_NO_THROW(check_attention_trace(trace, "t"));
    for (const float q : trace.layers[0].q) ASSERT_TRUE(std::isfinite(q)) << sizes;
  }
}

TEST(SyntheticAttention, ShapesThatAreRefused) {
  const auto error = [](const std::string& more) {
    const std::string message = error_of([&] { shape_of(std::string(kSizes) + ", " + more); });
    const std::size_t at = message.rfind(": ");
    return at == std::string::npos ? message : message.substr(at + 2);
  };
  EXPECT_EQ(error("head_dim: 36"), "head_dim = 36 is no multiple of 8 from 32");
  EXPECT_EQ(error("outlier_channels: 9"), "outlier_channels = 9 exceeds an eighth of head_dim = 64");
  EXPECT_EQ(error("question_tokens: 1500"), "question_tokens = 1500 leaves nothing of prompt_tokens = 1500");
  EXPECT_EQ(error("needles: 184"), "184 needles of 8 tokens do not fit into 1464 prompt tokens between sinks and question");
  EXPECT_EQ(error("needles: 183"), "no error");
  EXPECT_EQ(error("sink_last_frac: 0.9"), "the shares of the last layer add up to 1.42; at most 0.98 is allowed");
  EXPECT_EQ(error("sink_first_frac: 0.9"), "the shares of the first layer add up to 1.08; at most 0.98 is allowed");
  SyntheticAttentionShape shape = usual_shape();
  shape.q_heads = 3;
  EXPECT_EQ(problem_of(shape), "q_heads = 3 is no multiple of kv_heads = 2");
  EXPECT_THROW(SyntheticAttention(shape, 1), InternalError);
}

TEST(SyntheticAttention, ParametersAreDescribed) {
  std::vector<ParamDoc> docs;
  Params p = Params::describing("synthetic", docs);
  read_synthetic_attention(p);
  ASSERT_FALSE(docs.empty());
  EXPECT_EQ(std::tuple(docs.front().key, docs.back().key), std::tuple("layers", "outlier_scale"));
  for (const ParamDoc& doc : docs) EXPECT_FALSE(doc.meaning.empty()) << doc.key;
}

}  // namespace
}  // namespace kvlab
