#include <set>

#include "policies/kv/format/probes.h"
#include "tests/kv/format_fixture.h"
#include "tests/kv/host_fixture.h"

namespace kvlab::test {
namespace {

// Parameters that bring a format's block (or window) down to `block_tokens`.
struct Small {
  std::int32_t block_tokens;
  const char* parameters;
};

const std::map<std::string, Small> kSmall{{"cachegen", {10, "{}"}},
                                          {"cast", {1, "{}"}},
                                          {"dfloat11", {64, "{}"}},
                                          {"fireq", {1, "{}"}},
                                          {"gear", {10, "{group: 8, buffer_tokens: 10}"}},
                                          {"kivi", {8, "{group_tokens: 4, residual_tokens: 8}"}},
                                          {"kvquant", {1, "{}"}},
                                          {"low_rank_keys", {9, "{rank: 9}"}},
                                          {"mustafar", {8, "{recent_tokens: 8}"}},
                                          {"native", {1, "{}"}},
                                          {"palu", {1, "{}"}},
                                          {"per_channel", {8, "{group_tokens: 8, residual_tokens: 3}"}},
                                          {"per_token", {3, "{group_channels: 8, residual_tokens: 3}"}},
                                          {"qserve", {1, "{}"}},
                                          {"scaled_fp8", {1, "{}"}},
                                          {"think", {8, "{window_tokens: 8}"}},
                                          {"turboquant", {1, "{keys: inner_product}"}},
                                          {"zipcache", {10, "{block_tokens: 10}"}}};

TEST(AllFormats, EachIsTestedHere) {
  std::vector<std::string> listed;
  for (const auto& [name, small] : kSmall) listed.push_back(name);
  EXPECT_EQ(FormatRegistry::names(), listed);
}

// Groups of 1, 3, 4 and 8 query heads, at the edges of a block.
TEST(AllFormats, AreSoundForGroupsOfHeadsAndEdgesOfBlocks) {
  for (const auto& [name, small] : kSmall)
    for (const std::int32_t q_heads : {2, 6, 8, 16})
      for (const std::int32_t n : {0, 1, small.block_tokens - 1, small.block_tokens, small.block_tokens + 1}) {
        SCOPED_TRACE(name + " of " + std::to_string(n) + " tokens, " + std::to_string(q_heads) + " query heads");
        expect_sound(name, small.parameters, {1, q_heads, 2, 16, 32}, n, n == 0 ? 0 : small.block_tokens + 2);
      }
}

// Rows that lost all their tokens continue with those of decode, with the same calls on shapes.
TEST(AllFormats, EmptiedRowsGoOn) {
  for (const auto& [name, small] : kSmall) {
    SCOPED_TRACE(name);
    const std::int32_t n = small.block_tokens + 1;
    FormatRun with(name, small.parameters, {1, 8, 2, 16, 32}, n, 0), without(name, small.parameters, {1, 8, 2, 16, 32}, n, 0, false);
    for (FormatRun* run : {&with, &without}) {
      for (std::int32_t r = 0; r < 2; ++r) run->store.shrink(r, 0);
      run->step(0);
      for (std::int32_t t = 0; t < 2 * n; ++t) run->step(1);
    }
    EXPECT_EQ(with.ops.log(), without.ops.log());
    for (std::int32_t r = 0; r < 2; ++r) {
      ASSERT_EQ(with.store.len(r), 2 * n);
      for (std::int32_t i = 0; i < 2 * n; ++i)
        for (std::int32_t c = 0; c < 16; ++c) ASSERT_TRUE(std::isfinite(with.key(r, i, c)) && std::isfinite(with.value(r, i, c)));
    }
  }
}

TEST(AllFormats, BytesGrowWithTokensAndStayBelowFullPrecisionForLongRows) {
  const ModelShape m{1, 8, 8, 128, 1024};
  for (const auto& [name, small] : kSmall) {
    const auto format = make_part<FormatRegistry>(name, small.parameters);
    std::int64_t before = 0;
    for (const std::int32_t n : {1, 2, 100, 1000, 10000}) {
      EXPECT_GT(format->row_bytes(m, 0, n), before) << name << n;
      before = format->row_bytes(m, 0, n);
    }
    EXPECT_LE(before, 10000LL * 128 * 2 * 2) << name;
    EXPECT_LE(format->transfer_bytes(m, 0, 10000), before) << name;
    EXPECT_EQ(format->row_bytes(m, 0, 0), 0) << name;
  }
}

TEST(AllFormats, FinerIsNearer) {
  struct Ladder {
    const char* name;
    std::vector<std::string> parameters;  // coarse to fine
    bool values;
  };
  const auto bits = [](const std::string& more, bool from_one = false) {
    std::vector<std::string> all;
    for (const char* b : {"1", "2", "4", "8"})
      if (from_one || *b != '1') all.push_back("{bits: " + std::string(b) + more + "}");
    return all;
  };
  const Ladder ladders[] = {
      {"kivi", bits(", group_tokens: 8, residual_tokens: 8", true), true},
      {"per_token", bits("", true), true},
      {"per_token", bits(", group_channels: 8, residual_tokens: 4"), true},
      {"per_channel", bits("", true), true},
      {"per_channel", bits(", group_tokens: 8, residual_tokens: 4"), true},
      {"gear", bits(""), true},
      {"qserve", bits(""), true},
      {"fireq", bits(""), true},
      {"zipcache", {"{salient_bits: 2, other_bits: 2}", "{salient_bits: 4, other_bits: 4}", "{salient_bits: 8, other_bits: 8}"}, true},
      {"zipcache", {"{salient_frac: 0}", "{salient_frac: 0.5}", "{salient_frac: 1}"}, true},
      {"cachegen",
       {"{fine_levels: 4, coarse_levels: 4}", "{fine_levels: 16, coarse_levels: 16}", "{fine_levels: 64, coarse_levels: 64}"},
       true},
      {"cast", {"{type: fp8_e5m2}", "{type: fp8_e4m3}", "{type: bf16}", "{type: fp16}"}, true},
      {"mustafar",
       {"{key_sparsity: 0.7, value_sparsity: 0.7}", "{key_sparsity: 0.5, value_sparsity: 0.5}", "{key_sparsity: 0.3, value_sparsity: 0.3}"},
       true},
      {"think", {"{ratio: 0.6}", "{ratio: 0.4}", "{ratio: 0.2}"}, false},
      {"low_rank_keys", {"{rank_frac: 0.1}", "{rank_frac: 0.2}", "{rank_frac: 0.4}"}, false}};
  for (const Ladder& ladder : ladders) {
    double k = 1e9, v = 1e9;
    for (const std::string& parameters : ladder.parameters) {
      FormatRun run(ladder.name, parameters, {1, 8, 2, 64, 128}, 100, 3);
      EXPECT_GT(run.error(false), 0) << ladder.name << parameters;
      EXPECT_LT(run.error(false), k) << ladder.name << parameters;
      if (ladder.values) {
        EXPECT_LT(run.error(true), v) << ladder.name << parameters;
      }
      k = run.error(false), v = run.error(true);
    }
  }
}

TEST(NativeFormat, ChangesNothingAndCallsNothing) {
  FormatRun run("native", "{}", {1, 8, 2, 64, 128}, 33, 5, true, 8);
  for (std::int32_t h = 0; h < 2; ++h) EXPECT_EQ(std::tuple(run.changed_keys(h), run.changed_values(h)), std::tuple(0, 0));
  EXPECT_TRUE(run.ops.log().empty());
  EXPECT_EQ(run.format->num_words(), 0);
  for (const std::int32_t kv_bytes : {2, 4})
    EXPECT_EQ(run.format->row_bytes({1, 8, 8, 128, 1024, kv_bytes}, 0, 100), 2 * 100 * 128 * kv_bytes);
}

// Heads of 128 channels, or of 100.
struct RowBytes {
  const char *name, *parameters;
  std::int32_t tokens;
  std::int64_t expected;
  std::int32_t head_dim = 128;
};
constexpr const char* kKivi = "{bits: 2, group_tokens: 32, residual_tokens: 128}";
constexpr const char* k8v4 = "{key_bits: 8, value_bits: 4}";
// K: 256 of 300 tokens at 8 + 1 bits, 44 at 16. V: 172 at 4 + 1 bits, 128 at 16.
constexpr std::int64_t kKivi8 = 256 * 128 * 9 / 8 + 172 * 128 * 5 / 8 + (44 + 128) * 128 * 2;
const std::vector<RowBytes> kRowBytes{
    // 68 pruned tokens: K 120 bytes, V 24 of bitmaps and offsets and 64 numbers; 32 dense ones.
    {"mustafar", "{key_sparsity: 0.7, value_sparsity: 0.5, recent_tokens: 32}", 100, 68 * (120 + 24 + 128) + 32 * 2 * 128 * 2},
    {"think", "{ratio: 0.4, window_tokens: 32}", 100, (68 * (77 + 128) + 32 * 256) * 2 + 16},  // 51 channels go for 68 tokens
    {"qserve", "{}", 10, 2 * 10 * 68},                                                         // 4.25 bits per element
    {"fireq", "{}", 10, 2 * 10 * 66 + 2 * 128},                                                // a scale, and the channel scales
    // Codes 2 bits and 32 / 64 more, K and V; factors; outliers 12 per channel of K, 2 per token of V.
    {"gear", "{bits: 2, group: 64, outliers_frac: 0.02, prompt_rank: 4}", 640,
     2 * 640 * 128 * 10 / 4 / 8 + 2 * 2 * 4 * (640 + 128) + 128 * 12 * 4 + 640 * 2 * 4},
    // 600 at 4 bits and 400 at 2; per token 4 bytes of zero and scale in V, per channel twice 4 bytes in K; scales of V.
    {"zipcache", "{}", 1000, 600 * 64 * 2 + 400 * 32 * 2 + 1000 * 4 + 2 * 128 * 4 + 2 * 128},
    {"kivi", kKivi, 100, 2 * 100 * 128 * 2},
    // K: 256 of 300 tokens at 3 bits, 44 at 16. V: 172 at 3 bits, 128 at 16.
    {"kivi", kKivi, 300, (256 + 172) * 128 * 3 / 8 + (44 + 128) * 128 * 2},
    {"turboquant", "{}", 10, 10 * 2 * (2 + 64)},
    {"turboquant", "{key_bits: 3, value_bits: 2}", 10, 10 * (2 + 48 + 2 + 32)},
    {"turboquant", "{keys: inner_product}", 10, 10 * (2 + 48 + 2 + 16 + 2 + 64)},
    // Two outliers of 3 bytes; V: centre and half range. Parameters: 2 x 128 + 8 for K, 8 for V; one token in fp16.
    {"kvquant", "{bits: 3, outliers_frac: 0.01, sinks_tokens: 1}", 100, 100 * (6 + 48 + 6 + 48 + 4) + 4 * (264 + 8) + 2 * 2 * 128},
    // 140 tokens are beyond the residual, and 128 of them fill groups: 2 of 16 + 4 bytes per channel; 22 dense ones.
    {"per_channel", "{bits: 2, group_tokens: 64, residual_tokens: 10}", 150, 2 * (128 * 2 * (16 + 4) + 22 * 128 * 2)},
    // Groups of 32 channels: 16 + 4 bytes at 4 bits, four of them per token; the newest 7 tokens are dense.
    {"per_token", "{bits: 4, group_channels: 32, residual_tokens: 7}", 100, 2 * (93 * 4 * 20 + 7 * 256)},
    {"per_token", "{bits: 2}", 10, 2 * 10 * 29, 100},  // whole heads: 25 + 4 bytes
    {"per_token", "{bits: 4}", 10, 2 * 10 * 68},
    {"cast", "{type: fp8_e4m3}", 11, 2 * 11 * 128},
    {"cast", "{type: bf16}", 11, 4 * 11 * 128},
    {"palu", "{rank_frac: 0.25}", 100, 100 * 2 * (2 * 32) + 2 * 4 * 32 * 128},
    // A scale of 4 bytes for each token of K and of V, or for each of both sides of a row, which holds the layer's too.
    {"scaled_fp8", "{scale: token}", 100, 2 * 100 * (128 + 4)},
    {"scaled_fp8", "{scale: token, type: fp8_e5m2}", 100, 2 * 100 * (128 + 4)},
    {"scaled_fp8", "{scale: head}", 100, 2 * (100 * 128 + 4)},
    {"scaled_fp8", "{scale: head, type: fp8_e5m2}", 100, 2 * (100 * 128 + 4)},
    {"scaled_fp8", "{scale: tensor}", 100, 2 * (100 * 128 + 4)},
    {"scaled_fp8", "{scale: tensor, type: fp8_e5m2}", 100, 2 * (100 * 128 + 4)},
    // Two widths. Zero and scale are 32 bits a group: of 32 tokens (kivi), 64 tokens (per_channel) or the head (per_token, qserve);
    // fireq has 16.
    {"kivi", k8v4, 300, kKivi8},
    {"kivi", "{bits: 4, key_bits: 8}", 300, kKivi8},
    {"kivi", "{bits: 8, value_bits: 4}", 300, kKivi8},
    {"per_token", k8v4, 10, 10 * (128 + 4) + 10 * (64 + 4)},
    {"per_token", "{key_bits: 4, value_bits: 8}", 10, 10 * (64 + 4) + 10 * (128 + 4)},
    {"qserve", k8v4, 10, 10 * (128 + 4) + 10 * (64 + 4)},
    {"fireq", k8v4, 10, 10 * (128 + 2) + 10 * (64 + 2) + 2 * 128},
    {"per_channel", k8v4, 64, 128 * (64 + 4) + 128 * (32 + 4)}};

TEST(AllFormats, RowBytesByHand) {
  for (const RowBytes& b : kRowBytes)
    EXPECT_EQ(make_part<FormatRegistry>(b.name, b.parameters)->row_bytes({1, 8, 8, b.head_dim, 8 * b.head_dim}, 0, b.tokens), b.expected)
        << b.name << b.parameters << b.tokens;
}

AttentionTrace trace_of(std::int32_t prompt_tokens) {
  return synthetic_trace("layers: 2, q_heads: 8, kv_heads: 2, head_dim: 64, outlier_channels: 0, decode_tokens: 4, prompt_tokens: " +
                         std::to_string(prompt_tokens));
}

struct Saving {
  const char* name;
  double least_bytes, most_bytes, most_error;
};

// Bytes as the papers count them for 600 tokens and heads of 64. Errors are ceilings, for K without large channels: two bits and
// pruning change the sharp attention generated here by about the size of its output.
TEST(FormatRecipes, SaveWhatTheirPapersSay) {
  const Sampled full = with_reference(trace_of(600));
  for (const Saving& e :
       {Saving{"fp16", 1, 1, 1e-3}, Saving{"bf16", 1, 1, 1e-2}, Saving{"fp8", 0.5, 0.5, 0.1}, Saving{"int8_per_token", 0.53, 0.54, 0.03},
        Saving{"flexgen_int4", 0.28, 0.29, 0.4}, Saving{"int4_per_channel", 0.28, 0.36, 0.4}, Saving{"kivi4", 0.4, 0.5, 0.2},
        Saving{"kivi2", 0.3, 0.42, 1.5}, Saving{"qserve_kv4", 0.28, 0.29, 0.4}, Saving{"fireq", 0.26, 0.28, 0.4},
        Saving{"mustafar50", 0.6, 0.65, 0.8}, Saving{"mustafar70", 0.48, 0.52, 1.5}, Saving{"think", 0.8, 0.82, 0.8},
        Saving{"gear", 0.3, 0.45, 0.3}, Saving{"zipcache", 0.2, 0.3, 1.2}, Saving{"zipvl", 0.2, 0.35, 0.8}, Saving{"cachegen", 1, 1, 0.3},
        Saving{"dfloat11", 0.55, 0.75, 1e-2},
        // 2 + 32 bytes of 128; with the sketch 4 more for K. KVQuant: one outlier of 3 bytes, and the first token.
        Saving{"turboquant4", 0.26, 0.27, 0.4}, Saving{"turboquant3", 0.2, 0.21, 0.8}, Saving{"turboquant4_qjl", 0.26, 0.28, 1.5},
        Saving{"kvquant4", 0.27, 0.31, 0.4}, Saving{"kvquant3", 0.21, 0.25, 0.8},
        // Half the numbers, and a basis of 4 x 32 x 64 bytes for each side.
        Saving{"palu", 0.6, 0.62, 2}}) {
    const ReplayResult result = full.replayed(load_recipe(e.name));
    EXPECT_GE(result.resident_bytes_frac, e.least_bytes) << e.name;
    EXPECT_LE(result.resident_bytes_frac, e.most_bytes) << e.name;
    EXPECT_GT(result.mean.output_rel_err, 0) << e.name;
    EXPECT_LT(result.mean.output_rel_err, e.most_error) << e.name;
    EXPECT_NEAR(result.mean.attention_mass, 1, 1e-5) << e.name;  // no token is dropped
  }
}

TEST(FormatRecipes, CompositionsDropAndEncode) {
  const Sampled full = with_reference(trace_of(600));
  const ReplayResult both = full.replayed(load_recipe("snapkv_kivi2", 256)), cut = full.replayed(load_recipe("snapkv", 256));
  EXPECT_EQ(both.kept_tokens, 256);
  EXPECT_LT(both.resident_bytes_frac, cut.resident_bytes_frac);
  EXPECT_GT(both.mean.output_rel_err, cut.mean.output_rel_err);
  EXPECT_EQ(full.replayed(load_recipe("knorm_int4")).kept_tokens, 300);
}

std::set<std::int32_t> positions(const Probes& probes, std::int32_t prompt, std::int32_t begin, std::int32_t end) {
  std::set<std::int32_t> at;
  std::int32_t last = -1;
  for (const Probes::Range& r : probes.ranges({0, begin, end - begin, prompt, -1}, begin, end)) {
    EXPECT_LT(last, r.begin) << "ranges are apart";
    EXPECT_LT(r.begin, r.end);
    for (std::int32_t p = r.begin; p < r.end; ++p) at.insert(p);
    last = r.end;
  }
  return at;
}

// Prompt of 1000 tokens, a tenth of each kind: the newest 100, and a run of 8 in each stretch of 80.
TEST(Probes, OfThePromptByHand) {
  const std::set<std::int32_t> at = positions({0.1, 100}, 1000, 0, 1000);
  for (std::int32_t p = 900; p < 1000; ++p) EXPECT_TRUE(at.contains(p)) << p;
  for (std::int32_t stretch = 0; stretch < 880; stretch += 80) {
    const auto first = at.lower_bound(stretch);
    ASSERT_LE(*first, stretch + 72);
    for (std::int32_t p = *first; p < *first + 8; ++p) EXPECT_TRUE(at.contains(p)) << p;
    EXPECT_EQ(std::distance(first, at.lower_bound(stretch + 80)), 8) << "stretch at " << stretch;
  }
}

// Decode: the newest 5 of every 50, and one of every 10.
TEST(Probes, OfDecodeByHand) {
  const std::set<std::int32_t> at = positions({0.1, 50}, 30, 30, 530);
  for (std::int32_t stretch = 0; stretch < 500; stretch += 10) {
    const auto count = std::distance(at.lower_bound(30 + stretch), at.lower_bound(40 + stretch));
    if (stretch % 50 == 40) {
      EXPECT_TRUE(count == 5 || count == 6) << stretch;
      for (std::int32_t p = 65 + stretch - 30; p < 70 + stretch - 30; ++p) EXPECT_TRUE(at.contains(p)) << p;
    } else {
      EXPECT_EQ(count, 1) << stretch;
    }
  }
}

TEST(Probes, ChunksChangeNothing) {
  const Probes probes{0.05, 100};
  const std::set<std::int32_t> whole = positions(probes, 777, 0, 1500);
  for (const std::int32_t chunk : {1, 7, 64, 333}) {
    std::set<std::int32_t> parts;
    for (std::int32_t begin = 0; begin < 1500; begin += chunk) parts.merge(positions(probes, 777, begin, std::min(1500, begin + chunk)));
    EXPECT_EQ(parts, whole) << "chunks of " << chunk;
  }
}

}  // namespace
}  // namespace kvlab::test
