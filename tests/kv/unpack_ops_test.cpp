#include "sim/kv_cost/recipe_footprint.h"
#include "tests/kv/host_fixture.h"
#include "tests/short_run.h"

namespace kvlab::test {
namespace {

constexpr ModelShape kUnpackModel{4, 8, 2, 64, 128};
constexpr std::int64_t kLayers = 4, kUnpackRows = 8;  // layers x KV heads

// A decode step after this number of tokens, all of which are held.
SeqState whole_at(std::int32_t held) { return {held, held - 4, held, 0, false, false, false}; }

struct UnpackSum {
  std::int64_t launches = 0, bytes = 0;
  friend bool operator==(const UnpackSum&, const UnpackSum&) = default;
};
using UnpackSums = std::map<std::string, UnpackSum>;
UnpackSums charged(const Recipe& recipe, KvReads reads, const std::vector<SeqState>& seqs, const std::string& at_rest = "") {
  RecipeFootprint footprint(recipe, kUnpackModel, 16, reads, at_rest);
  std::vector<SeqState> batch;
  for (const SeqState& seq : seqs) batch.push_back(seq.taking(1));
  UnpackSums all;
  for (const PolicyOp& o : work_of(footprint, batch).ops) all[std::string(o.name)] = {o.launches, o.bytes};
  return all;
}

// The work that unpacking adds to a step of these sequences.
UnpackSums unpacked(const Recipe& recipe, const std::vector<SeqState>& seqs) {
  const UnpackSums decoded = charged(recipe, KvReads::kDecoded, seqs);
  UnpackSums more;
  for (const auto& [op, with] : charged(recipe, KvReads::kUnpacked, seqs)) {
    const auto at = decoded.find(op);
    const UnpackSum without = at == decoded.end() ? UnpackSum{} : at->second;
    if (with != without) more[op] = {with.launches - without.launches, with.bytes - without.bytes};
  }
  return more;
}
UnpackSums unpacked(const std::string& recipe, std::int32_t held) { return unpacked(load_recipe(recipe), {whole_at(held)}); }

// Bytes of a row: a position and `words` words of statistics, and K or V of n tokens with their list, in two bytes a number: each into
// pages and out again.
std::int64_t word_bytes(std::int64_t tokens, std::int64_t words) { return 2 * 2 * 4 * (1 + words) * tokens; }
std::int64_t vector_bytes(std::int64_t n) { return 2 * (4 * n + 2 * 2 * 64 * n); }

// In a row of 304 tokens, kivi2 has encoded two blocks of 128 of K, channel by channel in groups of 32 tokens, and all but 128 of V, in
// groups of 32 channels: 12 bytes a group.
TEST(UnpackOps, Kivi2ByHand) {
  constexpr std::int64_t kKeys = 64 * (256 / 32) * 12 + 256 * 64 * 2 + 256 * 4, kValues = 176 * 2 * 12 + 176 * 64 * 2 + 176 * 4;
  const UnpackSums more = unpacked("kivi2", 304);
  EXPECT_EQ(more,
            (UnpackSums{{"dequantize", {2 * kLayers, kUnpackRows * (kKeys + kValues)}},
                        {"token_copy", {6 * kLayers, kUnpackRows * (word_bytes(304, 1) + vector_bytes(304 - 256) + vector_bytes(128))}}}));
}

// Each token is encoded as soon as it is there: nothing else is copied than words.
TEST(UnpackOps, Fp8ByHand) {
  constexpr std::int64_t kTokens = 160, kSide = kTokens * (64 * 1 + 64 * 2 + 4);
  EXPECT_EQ(unpacked("fp8", kTokens), (UnpackSums{{"cast", {2 * kLayers, 2 * kUnpackRows * kSide}},
                                                  {"token_copy", {2 * kLayers, kUnpackRows * word_bytes(kTokens, 1)}}}));
}

// Three operations on one list of 300 tokens leave 4 of K and 4 of V; two on lists of 180 and 120 as many.
TEST(UnpackOps, ATokenIsNotEncodedWhereNoListHasIt) {
  const UnpackSums gear = unpacked("gear", 304);
  EXPECT_EQ(gear.size(), 4U);
  for (const char* op : {"dequantize", "low_rank_rebuild", "restore_outliers"}) EXPECT_EQ(gear.at(op).launches, 2 * kLayers) << op;
  EXPECT_EQ(gear.at("token_copy"), (UnpackSum{6 * kLayers, kUnpackRows * (word_bytes(304, 1) + 2 * vector_bytes(4))}));
  const UnpackSums zip = unpacked("zipcache", 304);
  EXPECT_EQ(zip.at("dequantize").launches, 4 * kLayers);
  EXPECT_EQ(zip.at("token_copy"), (UnpackSum{6 * kLayers, kUnpackRows * (word_bytes(304, 2) + 2 * vector_bytes(4))}));
}

// ThinK keeps 39 of 64 channels of K of all but the newest 32 tokens, and V as it is. A cut vector comes back whole.
TEST(UnpackOps, PrunedChannelsAreCopied) {
  const std::int64_t pruned = 272 * (4 + 2 * (39 + 64));
  EXPECT_EQ(
      unpacked("think", 304),
      (UnpackSums{{"token_copy", {7 * kLayers, kUnpackRows * (word_bytes(304, 1) + pruned + vector_bytes(32) + vector_bytes(304))}}}));
}

TEST(UnpackOps, MustafarUnpacksWithItsOwnOperation) {
  const UnpackSums more = unpacked("mustafar50", 304);
  EXPECT_EQ(more.at("unsparsify").launches, 2 * kLayers);
  EXPECT_EQ(more.at("token_copy").bytes, kUnpackRows * (word_bytes(304, 1) + 2 * vector_bytes(32)));
}

TEST(UnpackOps, NothingRestsThatIsNotEncoded) {
  for (const char* name : {"full", "quest", "cachegen"}) EXPECT_EQ(unpacked(name, 304), UnpackSums{}) << name;
  EXPECT_EQ(unpacked("kivi2", 100), UnpackSums{}) << "shorter than what stays in full precision";
}

// Between two steps of 16 tokens sizes are in proportion.
TEST(UnpackOps, SizesAreInProportion) {
  const UnpackSum at_304 = unpacked("kivi2", 304).at("dequantize"), at_300 = unpacked("kivi2", 300).at("dequantize");
  EXPECT_EQ(at_300.launches, at_304.launches);
  EXPECT_NEAR(static_cast<double>(at_300.bytes), static_cast<double>(at_304.bytes) * 300 / 304, 1);
}

TEST(UnpackOps, SequencesComeOneAfterAnother) {
  const UnpackSum one = unpacked("kivi2", 304).at("dequantize"), other = unpacked("kivi2", 608).at("dequantize");
  const UnpackSum both = unpacked(load_recipe("kivi2"), {whole_at(304), whole_at(608)}).at("dequantize");
  EXPECT_EQ(both, (UnpackSum{one.launches + other.launches, one.bytes + other.bytes}));
}

// k_cache: keys of all tokens stay on the GPU, and the values that are read; layers 0 and 1 have no lower tier. Among 1024 tokens the four
// query heads of a KV head read at most 4 * 128, and the newest.
TEST(UnpackOps, ATierCopiesWhatItKeepsHere) {
  const std::int64_t words = KvPolicy(load_recipe("kcache"), kUnpackModel).num_words();
  EXPECT_EQ(unpacked("kcache", 1024),
            (UnpackSums{{"token_copy", {6 * 2, 2 * 2 * (word_bytes(1024, words) + vector_bytes(1024) + vector_bytes(513))}}}));
  // infinigen: layer 0 has none, elsewhere keys and values are read alike, a fifth of the tokens by each query head at most.
  const UnpackSum infinigen = unpacked("infinigen", 1024).at("token_copy");
  const std::int64_t infinigen_words = KvPolicy(load_recipe("infinigen"), kUnpackModel).num_words();
  EXPECT_EQ(infinigen.launches, 6 * 3);
  const std::int64_t read = infinigen.bytes - 3 * 2 * word_bytes(1024, infinigen_words);
  EXPECT_GT(read, 3 * 2 * 2 * vector_bytes(1024 / 5));
  EXPECT_LT(read, 3 * 2 * 2 * vector_bytes(1024));
}

// Blocks that others may find stay decoded, until their sequence leaves them.
TEST(UnpackOps, NamedSequencesStayDecoded) {
  const Recipe recipe = load_recipe("snapkv_kivi2", 304);
  SeqState seq{800, 796, 308, 0, true, false, false};
  const UnpackSums cut = unpacked(recipe, {seq});
  EXPECT_GT(cut.at("dequantize").bytes, 0);
  seq.is_named = true;
  EXPECT_EQ(unpacked(recipe, {seq}), cut);
  seq = whole_at(304);
  EXPECT_EQ(unpacked(load_recipe("kivi2"), {seq}).size(), 2U);
  seq.is_named = true;
  EXPECT_EQ(unpacked(load_recipe("kivi2"), {seq}), UnpackSums{});
  EXPECT_EQ(unpacked(load_recipe("infinigen"), {seq}), UnpackSums{});
}

// If a profile has the whole as one operation: K and V of the packed sequences, once a step, and nothing more from CPU memory.
TEST(UnpackOps, AWholeThatWasMeasuredStandsForItsParts) {
  const auto with_whole = [](const std::string& name, const std::vector<SeqState>& seqs) {
    return charged(load_recipe(name), KvReads::kUnpacked, seqs, at_rest_of(name));
  };
  constexpr std::int64_t kTokenBytes = kUnpackRows * 2 * 64 * 2;
  for (const std::string name : {"kivi2", "infinigen"}) {
    UnpackSums expected = charged(load_recipe(name), KvReads::kDecoded, {whole_at(304), whole_at(100)});
    expected.erase("fetch");
    expected["at_rest/" + name] = {1, 404 * kTokenBytes};
    EXPECT_EQ(with_whole(name, {whole_at(304), whole_at(100)}), expected);
  }
  SeqState named = whole_at(304);
  named.is_named = true;
  EXPECT_FALSE(with_whole("kivi2", {named}).contains("at_rest/kivi2"));
}

// For a prompt cut to 304 tokens, the part that kivi2 has encoded of 304; four tokens more are in proportion.
TEST(UnpackOps, ACutSequenceIsWhatIsLeftOfItsPrompt) {
  const Recipe recipe = load_recipe("snapkv_kivi2", 304);
  const UnpackSum whole = unpacked("kivi2", 304).at("dequantize");
  EXPECT_EQ(unpacked(recipe, {{800, 800, 304, 0, true, false}}).at("dequantize"), whole);
  const UnpackSum grown = unpacked(recipe, {{804, 800, 308, 0, true, false}}).at("dequantize");
  EXPECT_EQ(grown.launches, whole.launches);
  EXPECT_NEAR(static_cast<double>(grown.bytes), static_cast<double>(whole.bytes) * 308 / 304, 1);
}

// If decode evicts encoded tokens, rows stay decoded from then on.
TEST(UnpackOps, RowsThatLoseEncodedTokensStayDecoded) {
  const Recipe recipe = recipe_of("{recipe: h2o, budget_tokens: 400, format: {kivi: {bits: 2}}}");
  EXPECT_GT(unpacked(recipe, {{304, 300, 304, 0, false, false}}).at("dequantize").bytes, 0) << "nothing is lost yet";
  EXPECT_EQ(unpacked(recipe, {{800, 700, 400, 0, true, false}}), UnpackSums{});
}

// True if unpacking adds anything in three decode steps after the prompt; it takes nothing away.
bool unpacks(const Recipe& recipe, std::int32_t prompt) {
  RecipeFootprint decoded(recipe, kUnpackModel, 16, KvReads::kDecoded), anew(recipe, kUnpackModel, 16, KvReads::kUnpacked);
  SeqState seq{0, prompt, 0, 0, false, false};
  bool adds = false;
  for (std::int32_t next = prompt; seq.seen_tokens < prompt + 3; next = 1) {
    std::vector<SeqState> a{seq.taking(next)}, b = a;
    const PolicyWork less = work_of(decoded, a), more = work_of(anew, b);
    adds |= more.ops.size() > less.ops.size();
    for (std::size_t i = 0; i < less.ops.size(); ++i) {
      EXPECT_EQ(more.ops.at(i).name, less.ops[i].name);
      EXPECT_GE(more.ops.at(i).bytes, less.ops[i].bytes) << less.ops[i].name;
      adds |= more.ops[i].bytes > less.ops[i].bytes;
    }
    decoded.step(seq.taking(next));
    seq = anew.step(seq.taking(next)).after(seq.taking(next));
  }
  return adds;
}

// Every recipe that serves runs, and only those with codes or tiers unpack.
TEST(UnpackOps, EveryRecipeThatServes) {
  for (const std::string& name : recipes_in({"cost"})) {
    if (left_out_of_short_run(name)) continue;
    Recipe recipe = load_recipe(name);
    const KvPolicy policy(recipe, kUnpackModel);
    if (policy.needs().future_queries) continue;
    if (recipe.has_budget) recipe = with_budget(name, 300);
    SCOPED_TRACE(name);
    const bool has_tiers = policy.lower(kUnpackModel.num_layers - 1) != Selector::Lower::kNothing;
    const bool has_codes = name != "cachegen" && recipe.format != "native" && recipe.format != "low_rank_keys";
    EXPECT_EQ(unpacks(recipe, 500), has_tiers || has_codes || recipe.disposal == "low_precision");
    unpacks(recipe, 1);
  }
  EXPECT_TRUE(unpacks(recipe_of("{recipe: pyramidkv, budget_tokens: 130, format: {cast: {type: fp8_e4m3}}}"), 500))
      << "rows of unequal length";
}

// The sizes of steps and what attention reads are those of decoded KV, and the parts run once for 16 lengths.
TEST(UnpackOps, MemoryAndAttentionAreThoseOfDecodedKv) {
  for (const char* name : {"kivi2", "dfloat11", "zipcache", "infinigen"}) {
    RecipeFootprint decoded(load_recipe(name), kUnpackModel, 16, KvReads::kDecoded),
        anew(load_recipe(name), kUnpackModel, 16, KvReads::kUnpacked);
    for (std::int32_t n = 300; n < 340; ++n) {
      std::vector<SeqState> a{whole_at(n).taking(1)}, b = a;
      work_of(decoded, a), work_of(anew, b);
      EXPECT_EQ(a.front().attended_tokens, b.front().attended_tokens) << name << " at " << n;
      EXPECT_EQ(decoded.step(whole_at(n).taking(1)).kept_pages, anew.step(whole_at(n).taking(1)).kept_pages) << name << " at " << n;
    }
  }
  UnpackOps ops(load_recipe("kivi2"), kUnpackModel);
  for (std::int32_t n = 305; n <= 320; ++n) ops.add(n, n * kUnpackRows);
  EXPECT_EQ(ops.runs(), 1);
}

}  // namespace
}  // namespace kvlab::test
