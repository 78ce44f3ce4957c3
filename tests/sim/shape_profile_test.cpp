// Profiles made of tables by shape: profile: {aisimulate: {...}}.
#include <functional>

#include "sim/cost/profile.h"
#include "sim/cost/roofline_prices.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

std::string rows_of(const std::string& header, const std::vector<std::vector<int>>& points,
                    const std::function<double(const std::vector<int>&)>& ns) {
  std::string text = header + "\n";
  for (const std::vector<int>& point : points) {
    for (const int x : point) text += std::to_string(x) + ",";
    text += std::to_string(ns(point)) + "\n";
  }
  return text;
}

// Experts over two GPUs take 7000 + 100 tokens ns, cut 7000 + 200 tokens ns. Products take 1000 + n k / 16 + m ns, decode attention 100 +
// rows KV-heads context ns, prompts 500 + tokens^2 / 100 ns.
class ShapeFolder {
 public:
  explicit ShapeFolder(const std::string& gemm_type = "bfloat16", int kv_heads = 2) {
    folder_.write("meta.yaml",
                  "schema_version: 1\ntables: by_shape\ntime_unit: ns\nsystem: tiny\nbackend: vllm\nversion: \"0.24.0\"\ndevice: \"Tiny\"\n"
                  "hardware: \"\"\nsource: \"a test\"\nnotes:\n  - \"lint: 3 of 9 rows left out\"\n");
    std::vector<std::vector<int>> gemm, decode, prefill;
    for (const int n : {16, 48})
      for (const int k : {16, 48})
        for (const int m : {1, 2, 4, 8, 64}) gemm.push_back({n, k, m});
    folder_.write("gemm_" + gemm_type + ".csv",
                  rows_of("n,k,m,time_ns", gemm, [](const auto& p) { return 1000 + p[0] * p[1] / 16.0 + p[2]; }));
    for (const int window : {0, 8})
      for (const int rows : {1, 2, 4, 8})
        for (const int context : {2, 16, 64, 256}) decode.push_back({window, 4, kv_heads, 2 * kv_heads, rows, context});
    folder_.write("attention_decode_bfloat16.csv", rows_of("window,head_dim,kv_heads,q_heads,rows,context,time_ns", decode,
                                                           [](const auto& p) { return (p[0] == 0 ? 100 : 50000) + p[4] * p[2] * p[5]; }));
    std::string text = "window,head_dim,kv_heads,q_heads,tokens,more_ns,time_ns\n";
    for (const int tokens : {1, 16, 64, 256}) {
      const double own = tokens * tokens / 100.0;
      text += "0,4," + std::to_string(kv_heads) + "," + std::to_string(4) + "," + std::to_string(tokens) + "," + std::to_string(own + 1) +
              "," + std::to_string(500 + own) + "\n";
    }
    folder_.write("attention_prefill_bfloat16.csv", text);
    std::vector<std::vector<int>> experts;
    for (const int tp : {1, 2})
      for (const int tokens : {1, 16, 32, 64}) experts.push_back({16, 32, 4, 2, tp, 3 - tp, tokens});
    folder_.write("moe_" + gemm_type + ".csv", rows_of("hidden,intermediate,experts,experts_per_token,tp,ep,tokens,time_ns", experts,
                                                       [](const auto& p) { return 7000 + p[4] * 100 * p[6]; }));
    folder_.write("all_reduce.csv", "bytes,ranks,time_ns\n256,2,4000\n65536,2,9000\n");
    folder_.write("card.yaml", kTinyCard);
  }
  [[nodiscard]] const std::string& path() const { return folder_.path(); }
  [[nodiscard]] std::string experiment(const std::string& more = "") const {
    return roofline_experiment(folder_, "profile: {aisimulate: {dir: " + path() + more + "}}\n");
  }

 private:
  TempFolder folder_;
};

struct ShapeProfile : ::testing::Test {
  [[nodiscard]] CostSetup load(const std::string& more = "") const { return setup_of(folder.experiment() + more); }
  ShapeFolder folder;
};

const ProfileOp& op_of(const CostSetup& setup, const std::string& name) {
  for (const ProfileOp& op : setup.profile->ops)
    if (op.name == name) return op;
  throw InternalError("no operation " + name);
}

double ns_of(const CostSetup& setup, const std::string& name, double count) {
  return op_of(setup, name).times.at(std::span(&count, 1)).ps / 1000;
}

TEST_F(ShapeProfile, ProductsHaveTheModelsOwnWidths) {
  const CostSetup setup = load();
  EXPECT_NEAR(ns_of(setup, "qkv_proj", 4), 1000 + 32 * 16 / 16.0 + 4, 1e-3);  // n = (4 + 2 * 2) heads of 4
  EXPECT_NEAR(ns_of(setup, "o_proj", 8), 1000 + 16 * 16 / 16.0 + 8, 1e-3);
  EXPECT_NEAR(ns_of(setup, "down_proj", 2), 1000 + 16 * 32 / 16.0 + 2, 1e-3);
  EXPECT_EQ(op_of(setup, "o_proj").at_best, Footing::kInside);
  EXPECT_EQ(std::tuple(op_of(setup, "qkv_proj").at_best, op_of(setup, "qkv_proj").per_layer), std::tuple(Footing::kInterpolated, 1));
  EXPECT_EQ(op_of(setup, "lm_head").axis, ProfileOp::Axis::kSequences);
  EXPECT_THAT(setup.profile->notes, ::testing::Contains("lint: 3 of 9 rows left out"));
}

// The first layer has a dense MLP, the others a narrower one beside their experts.
TEST_F(ShapeProfile, LayersThatDifferHaveTheirOwnProducts) {
  const CostSetup setup =
      setup_of("model: glm-4.5-air\nhardware: " + folder.path() + "/card.yaml\nprofile: {aisimulate: {dir: " + folder.path() +
               ", missing: roofline, impossible: keep}}\n");
  std::vector<double> times;
  for (const ProfileOp& op : setup.profile->ops) {
    if (op.name != "down_proj") continue;
    EXPECT_EQ(op.layer_class, times.size());
    times.push_back(op.times.samples().front().time.real());
  }
  ASSERT_EQ(times.size(), 2U);
  const auto width = [](std::int64_t w) { return static_cast<double>(w); };
  EXPECT_NEAR(times[0] / times[1], width(setup.model.intermediate) / width(setup.model.shared_intermediate), 1e-6);
  const TokenPrice price = setup.prices->tokens(4);
  const RooflinePrices roofline(setup.model, setup.hardware, setup.parallel, setup.collectives);
  const std::vector<LayerClass> classes = layer_classes(setup.model);
  for (std::size_t i = 0; i < classes.size(); ++i) {
    std::vector<OpWork> ops;
    layer_ops(setup.model, setup.parallel, classes[i], 4, ops);
    double expected = 0;
    for (const OpWork& op : ops)
      if (!has_times(*setup.profile, op.op)) expected += op.times * roofline.op_ps(op);
    for (const ProfileOp& op : setup.profile->ops)
      if (op.layer_class == i) expected += time_of_op(op, 4, setup.profile->tile_rows).ps;
    EXPECT_NEAR(price.layers[i].linear.total(), expected, 1e-6 * expected) << i;
  }
}

// Beyond the widest measured product in proportion.
TEST_F(ShapeProfile, WiderProductsAreExtrapolated) {
  const CostSetup setup = load();
  EXPECT_NEAR(ns_of(setup, "lm_head", 4), (1000 + 48 + 4) * 64.0 / 48, 1e-3);
  EXPECT_EQ(op_of(setup, "lm_head").at_best, Footing::kExtrapolated);
  double count = 4;
  EXPECT_EQ(time_of_op(op_of(setup, "lm_head"), 4, 16).footing, Footing::kExtrapolated);
  EXPECT_EQ(op_of(setup, "lm_head").times.at(std::span(&count, 1)).footing, Footing::kInside);
}

Picoseconds attention_of(const CostSetup& setup, const StepShape& shape) {
  return make_cost_model(setup)->step(shape).of(CostPart::kAttention);
}

TEST_F(ShapeProfile, DecodeAttention) {
  const CostSetup setup = load();
  // Two layers; four rows of 31 cached tokens and their own, between contexts of 16 and 64.
  EXPECT_EQ(attention_of(setup, decode_shape(4, 4 * 31, 31, 31)).count(), 2 * 1000 * (100 + 4 * 2 * 32));
}

// Twice the KV heads are as much work as twice the rows.
TEST_F(ShapeProfile, MoreKvHeadsThanMeasuredCountAsRows) {
  const ShapeFolder one_head("bfloat16", 1);
  const CostSetup setup = setup_of(one_head.experiment());
  EXPECT_EQ(attention_of(setup, decode_shape(4, 4 * 31, 31, 31)).count(), 2 * 1000 * (100 + 8 * 32));
  EXPECT_THAT(setup.profile->notes, ::testing::Contains(HasSubstr("attention of 2 KV heads is taken from that of 1 with 2 times")));
}

TEST_F(ShapeProfile, PromptsShareOneCall) {
  const CostSetup setup = load();
  const auto of = [&](const std::vector<PrefillPiece>& pieces) {
    StepShape shape;
    shape.prefills = pieces;
    return attention_of(setup, shape).real() / 2000;
  };
  EXPECT_NEAR(of({{64, 0}}), 540.96, 1e-3);
  EXPECT_NEAR(of({{64, 0}, {16, 0}}), 540.96 + 2.56 + 1, 1e-3);  // more_ns in place of the second one's own time
  // The last 64 of 128 tokens: their share of the pairs of the whole, whose time is on the line from 64 to 256 tokens.
  const double whole = 540.96 + (1155.36 - 540.96) * 64 / 192;
  EXPECT_NEAR(of({{64, 64}}), whole * (64 * 64 + 64 * 65 / 2.0) / (128 * 129 / 2.0), 1e-3);
  EXPECT_NEAR(of({{64, 192}}), of({{64, 64}}) + (of({{64, 256}}) - of({{64, 64}})) * 128 / 192, 1e-2);
  EXPECT_NEAR(of({{16, 256}}), 100 + 2 * 272, 1e-3);  // no less than a decode row that reads as much
  EXPECT_NEAR(of({{512, 0}}), 1155.36 * (512 * 513) / (256 * 257), 1e-2);
}

TEST_F(ShapeProfile, LongPromptsAreExtrapolated) {
  const CostSetup setup = load();
  const auto footing = [&](std::int32_t tokens, std::int32_t before, Footing f) {
    return prompt_cost(*make_cost_model(setup), {tokens, before}).of(f);
  };
  EXPECT_GT(footing(64, 64, Footing::kInterpolated), footing(64, 512, Footing::kInterpolated));
  EXPECT_GT(footing(64, 512, Footing::kExtrapolated), footing(64, 64, Footing::kExtrapolated));
}

TEST_F(ShapeProfile, CollectivesComeFromTheFolder) {
  const CostSetup setup = load("parallel: {tp: 2}\n");
  EXPECT_NEAR(ns_of(setup, "o_proj", 8), 1000 + 16 + 8, 1e-3);  // k = 8: level below 16
  const StepCost cost = make_cost_model(setup)->step(decode_shape(8, 8 * 31, 31, 31));
  EXPECT_EQ(cost.of(CostPart::kCollective).count(),
            5 * 4000 * 1000);  // two a layer, one for the embedding; 256 bytes
}

// Ranks of 8 and of 8 or 24 tokens; two layers.
TEST_F(ShapeProfile, ExpertsTakeTheTokensOfAllRanks) {
  const TempFolder models;
  const std::string moe = models.write("moe.yaml", kTinyMoe);
  const std::string experiment = folder.experiment(), rest = experiment.substr(experiment.find('\n') + 1);
  const auto experts = [&](const std::string& parallel, std::int64_t others) {
    GroupTokens group;
    group.add(8, 8);
    group.add(others, others);
    StepShape shape = decode_shape(8, 8 * 31, 31, 31);
    shape.group = &group;
    const CostSetup setup = setup_of("model: " + moe + "\n" + rest + "parallel: " + parallel + "\n");
    return make_cost_model(setup)->step(shape).of(CostPart::kExperts).count();
  };
  EXPECT_EQ(experts("{dp: 2, ep: 2}", 24) - experts("{dp: 2, ep: 2}", 8), 2 * 16 * 100'000);
  EXPECT_EQ(experts("{dp: 2}", 24) - experts("{dp: 2}", 8), 2 * 16 * 200'000);
}

TEST_F(ShapeProfile, MissingTablesAreNamed) {
  const ShapeFolder fp8("fp8");
  const std::string error = error_of([&] { setup_of(fp8.experiment()); });
  EXPECT_THAT(error, HasSubstr("no table of qkv_proj, o_proj, gate_up_proj, down_proj, lm_head"));
  EXPECT_THAT(error, ::testing::Not(HasSubstr("layernorm")));
  EXPECT_NO_THROW(setup_of(fp8.experiment(", missing: roofline")));
}

TEST_F(ShapeProfile, TheErrorIsTheCommandToType) {
  const std::string error = error_of([] {
    setup_of("model: llama-3.1-8b\nhardware: h100\nprofile: {aisimulate: {system: h100_sxm, version: 0.99.0, dir: no/such/folder}}\n");
  });
  EXPECT_THAT(error, HasSubstr("./kvlab profile convert --format aisimulate --system h100_sxm --backend vllm --version 0.99.0 --out "
                               "no/such/folder"));
  const std::string unnamed = error_of([] { setup_of("model: llama-3.1-8b\nhardware: h100\nprofile: {aisimulate: {backend: vllm}}\n"); });
  EXPECT_THAT(unnamed, HasSubstr("'aisimulate' needs 'system' and 'version', or 'dir'"));
}

// A profile format is one file: this one has all that a format needs.

using ::testing::Contains;

class OneFile final : public ProfileFormat {
 public:
  explicit OneFile(Params& /*p*/) {}
  [[nodiscard]] std::string parameters() const override { return "path, colour"; }
  [[nodiscard]] std::pair<std::string, std::string> mark() const override { return {"one.csv", "of a test"}; }
  [[nodiscard]] bool is_form_of(const std::string& folder) const override { return std::filesystem::exists(folder + "/one.csv"); }
  [[nodiscard]] Profile read(const std::string& folder, int tp) const override {
    throw InputError("read " + folder + " for tp " + std::to_string(tp));
  }
};

KVLAB_REGISTER(ProfileFormat, OneFile, "one_file", "a test's own", "");

TEST(ProfileFormats, AreNamedByTheRegistryOurOwnFirst) {
  const std::vector<std::string> names = profile_format_names();
  EXPECT_EQ(names.front(), kOwnProfileFormat);
  for (const char* name : {"aisimulate", "bundle", "vidur", "one_file"}) EXPECT_THAT(names, Contains(name));
  EXPECT_EQ(std::find(names.begin(), names.end(), "roofline"), names.end()) << "it has no tables";
}

TEST(ProfileFormats, AFolderHasTheFormatOfItsFiles) {
  const TempFolder folder;
  EXPECT_THAT(error_of([&] { static_cast<void>(profile_format_of(folder.path())); }), HasSubstr("one.csv of a test"));
  folder.write("one.csv", "");
  EXPECT_EQ(profile_format_of(folder.path()), "one_file");
}

TEST(ProfileFormats, AnExperimentChoosesARegisteredOne) {
  const auto error = [](const std::string& profile) {
    return error_of([&] {
      Params p = Params::from_text("model: llama-3.1-8b\nhardware: h100\nprofile: " + profile + "\n");
      static_cast<void>(read_cost_setup(p));
    });
  };
  EXPECT_THAT(error("{one_file: {path: /there}}"), HasSubstr("read /there for tp 1"));
  EXPECT_THAT(error("{one_fil: {path: /there}}"), HasSubstr("unknown profile format 'one_fil'; did you mean 'one_file'?"));
  std::vector<ParamDoc> docs;
  Params p = Params::describing("experiment", docs);
  static_cast<void>(read_cost_setup(p));
  EXPECT_THAT(docs.front().meaning, HasSubstr("{one_file: {path, colour}}"));
}

// Names of a profile's tables.

// A table's name is its file's; what it counts as is `covers`. Profiles of earlier calibrations have rotary_emb and lm_head where those
// of a GPU now have rope_qk and linear_head.
TEST(KvlabProfile, TablesOfEitherNamePredictTheSame) {
  const TempFolder bundle, older, newer;
  write_tiny_bundle(bundle);
  const Profile profile = *setup_of(tiny_experiment(bundle)).profile;
  write_kvlab_profile(profile, older.path());
  Profile renamed = profile;
  for (ProfileOp& op : renamed.ops)
    for (const auto& [from, to] : {std::pair{"rotary_emb", "rope_qk"}, {"lm_head", "linear_head"}})
      if (op.name == from) op.name = to;
  write_kvlab_profile(renamed, newer.path());
  EXPECT_NE(profile_hash(read_kvlab_profile(newer.path(), 1)), profile_hash(profile)) << "it was renamed";
  const auto model_of = [](const TempFolder& folder) { return make_cost_model(setup_of(tiny_experiment(folder, "kvlab"))); };
  const auto a = model_of(older), b = model_of(newer);
  for (const std::int32_t rows : {1, 3, 16}) {
    const StepShape shape = decode_shape(rows, 40 * rows, 40, 40);
    EXPECT_GT(a->step(shape).total, Picoseconds{});
    EXPECT_EQ(a->step(shape).total, b->step(shape).total);
    EXPECT_EQ(a->prefill_seconds(20 * rows, 0), b->prefill_seconds(20 * rows, 0));
  }
}

}  // namespace
}  // namespace kvlab
