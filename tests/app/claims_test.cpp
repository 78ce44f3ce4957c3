#include <cmath>
#include <nlohmann/json.hpp>

#include "app/claims/claim.h"
#include "app/runs/kinds/run_kind.h"
#include "tests/app/app_fixture.h"
#include "tests/error_of.h"

namespace kvlab {
namespace {

using ::testing::StartsWith;

// ---- verdicts ----

Published ratio(double value, double to = 0) { return {value, to == 0 ? value : to, 1, "x", "speed", "abstract"}; }

void expect_verdicts(const Published& p, Criterion criterion, const std::map<Verdict, std::vector<double>>& ours_by_verdict) {
  for (const auto& [verdict, all] : ours_by_verdict)
    for (const double ours : all) EXPECT_EQ(judge(p, criterion, ours), verdict) << ours;
}

constexpr Verdict kSame = Verdict::kReproduced, kSide = Verdict::kDirection, kOther = Verdict::kNotReproduced;

TEST(ClaimVerdict, CountsBordersAndSides) {
  expect_verdicts(ratio(3), Criterion::kFactor, {{kSame, {1.5, 3, 6}}, {kSide, {1.499, 6.001, 100, 1.0001}}, {kOther, {1, 0.9, -3}}});
  expect_verdicts(ratio(3), Criterion::kNumber, {{kSame, {2.7, 3.3}}, {kSide, {2.699, 3.301}}});
  expect_verdicts(ratio(2, 4), Criterion::kNumber, {{kSame, {1.8, 4.4}}, {kSide, {4.41}}});  // a range is widened at both ends
  expect_verdicts(ratio(3, 4), Criterion::kFactor, {{kSame, {8}}});
  expect_verdicts({20, 20, {}, "%", "useful memory", "figure 2"}, Criterion::kNumber, {{kSame, {22}}, {kOther, {22.1}}});  // no side
  // Reductions have their side below no effect.
  expect_verdicts({-41, -41, 0, "%", "memory", "abstract"}, Criterion::kNumber, {{kSame, {-45}}, {kSide, {-20}}, {kOther, {1}}});
  expect_verdicts(ratio(0.4), Criterion::kFactor, {{kSide, {0.9}}});
  expect_verdicts(ratio(3), Criterion::kDirection, {{kSide, {3}}, {kOther, {1}}});  // no figure is reproduced
}

// ---- measures ----

const Measure::Tables kTables = {
    {"ours", parse_csv("run,trace.rate_per_s,seed,tokens,wait_ms\na,1,1,10,5\nb,2,1,20,50\nc,4,1,60,500\n", "ours.csv")},
    {"base", parse_csv("run,seed,tokens,wait_ms\nd,1,15,\n", "base.csv")}};

double value_of(const std::string& text) { return Measure::parse(text, "c.yaml:9:10", {"ours", "base"}).value(kTables); }
std::string error_in(const std::string& text) {
  return error_of([&] { value_of(text); });
}

TEST(ClaimMeasure, IsArithmeticOverMeansOrTheLargestWithinLimits) {
  EXPECT_DOUBLE_EQ(value_of("ours.tokens / base.tokens"), 2);
  EXPECT_DOUBLE_EQ(value_of("100 * (1 - base.tokens / ours.tokens) - 8 / 2 / 2"), 48);
  EXPECT_DOUBLE_EQ(value_of("-base.tokens + 2 * 3"), -9);
  EXPECT_DOUBLE_EQ(value_of("max(ours.tokens) - min(ours.tokens) + median(ours.tokens) + mean(base.tokens)"), 85);
  EXPECT_DOUBLE_EQ(value_of("largest(ours.rate_per_s, ours.wait_ms <= 50)"), 2);
  EXPECT_DOUBLE_EQ(value_of("largest(ours.trace.rate_per_s, ours.wait_ms <= 499, ours.tokens >= 5) * 10"), 20);
  EXPECT_EQ(error_in("largest(ours.rate_per_s, ours.wait_ms <= 4)"),
            "c.yaml:9:10: 'largest(ours.rate_per_s)': no row is within the limits: add smaller values to the axis");
  EXPECT_EQ(error_in("largest(ours.rate_per_s, ours.wait_ms <= 500)"),
            "c.yaml:9:10: 'largest(ours.rate_per_s)': the largest of all, 4, is within the limits: add larger values to the axis");
}

TEST(ClaimMeasure, ErrorsNameThePlaceAndWhatMayBeMeant) {
  EXPECT_EQ(error_in("ours.token"), "c.yaml:9:10: unknown metric 'token' of run 'ours'; did you mean 'tokens'?");
  EXPECT_EQ(error_in("our.tokens"), "c.yaml:9:10: measure 'our.tokens': unknown run 'our'; did you mean 'ours'?");
  EXPECT_EQ(error_in("mx(ours.tokens)"), "c.yaml:9:10: measure 'mx(ours.tokens)': unknown function 'mx'; did you mean 'max'?");
  EXPECT_EQ(error_in("base.wait_ms"), "c.yaml:9:10: 'base.wait_ms' has no number in row 1 of base.csv ('')");
  EXPECT_EQ(error_in("1 / (base.tokens - 15)"), "c.yaml:9:10: measure '1 / (base.tokens - 15)': division by zero");
  EXPECT_THAT(error_in("ours.tokens base.tokens"), HasSubstr("expected + - * / or the end, found 'base.tokens'"));
  EXPECT_THAT(error_in("(ours.tokens"), HasSubstr("expected ')' at its end"));
  EXPECT_THAT(error_in("ours.tokens /"), HasSubstr("ends where a number or RUN.METRIC is expected"));
  EXPECT_THAT(error_in("tokens"), HasSubstr("expected RUN.METRIC, such as ours.output_tokens_per_s, found 'tokens'"));
  EXPECT_THAT(error_in("largest(ours.tokens, base.wait_ms <= 4)"), HasSubstr("limits of 'largest' are of one run: 'ours'"));
}

// ---- files ----

// One request of 159 prompt tokens and one output token: ceil(159 / 16) = 10 blocks, or the 2048 / 16 = 128 that Orca (Max) reserves.
const char* const kTiny =
    "system: paged memory\n"
    "paper: \"ours (1): nobody 2026\"\n"
    "published: {value: 12.8, unit: x, of: memory of a request, where: nowhere}\n"
    "baseline: Orca (Max)\n"
    "setting: one request\n"
    "counts: number\n"
    "recalled: [nothing]\n"
    "experiment:\n"
    "  model: llama-3.1-8b\n"
    "  hardware: h100\n"
    "  max_model_len: 2048\n"
    "  memory: {num_blocks: 600}\n"
    "  trace: {generate: {requests: 1, arrival: {constant: {rate_per_s: 1}}, prompt_tokens: 159, output_tokens: 1}}\n"
    "runs:\n"
    "  ours: {scheduler: vllm_v0}\n"
    "  baseline: {scheduler: {orca: {reservation: max}}}\n"
    "measure: baseline.kv_used_peak_frac / ours.kv_used_peak_frac\n";

std::string with(const std::string& from, const std::string& to) {
  std::string text = kTiny;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string parse_error(const std::string& from, const std::string& to) {
  return error_of([&] { parse_claim(with(from, to), "tiny.yaml"); });
}

TEST(ClaimFile, ErrorsNameTheLine) {
  EXPECT_THAT(parse_error("baseline: Orca (Max)\n", ""), HasSubstr("the claim needs 'baseline'"));
  EXPECT_THAT(parse_error("where: nowhere", "were: nowhere"), StartsWith("tiny.yaml:3:"));
  EXPECT_THAT(parse_error("counts: number", "count: number"), HasSubstr("'counts'"));
  EXPECT_THAT(parse_error("counts: number", "counts: numbr"), StartsWith("tiny.yaml:6:9: "));
  EXPECT_THAT(parse_error("recalled:", "recaled:"),
              HasSubstr("tiny.yaml:7:1: unknown key 'recaled' in the claim; did you mean 'recalled'?"));
  EXPECT_THAT(parse_error("value: 12.8", "value: 1"), HasSubstr("tiny.yaml:3:20: the published figure holds 1"));
  EXPECT_THAT(parse_error("unit: x", "unit: \"%\""), "no error");
  EXPECT_THAT(parse_error("  ours: {scheduler: vllm_v0}", "  our: {scheduler: vllm_v0}"),
              HasSubstr("tiny.yaml:17:10: measure 'baseline.kv_used_peak_frac / ours.kv_used_peak_frac': unknown run 'ours'"));
  std::string text = with("counts: number", "counts: factor");
  text.replace(text.find("12.8"), 4, "1.9");
  EXPECT_THAT(error_of([&] { parse_claim(text, "tiny.yaml"); }), HasSubstr("tiny.yaml:6:9: 'factor' would let a figure of no effect pass"));
}

TEST(ClaimFile, AnInlineExperimentKeepsItsLines) {
  const Claim claim = parse_claim(with("  max_model_len: 2048", "  max_model_lenn: 2048"), "tiny.yaml");
  const Experiment experiment = claim.experiment(claim.runs[0]);
  RunKinds kinds;
  Params p = experiment.params(experiment.runs[0]);
  EXPECT_THAT(error_of([&] { kinds.read(p, 1); }), StartsWith("tiny.yaml:11:3: unknown key 'max_model_lenn'"));
}

using ClaimsTest = AppTest;

TEST_F(ClaimsTest, ATinyClaimIsTheRatioComputedByHand) {
  write("tiny.yaml", kTiny);
  const Called called = call_ok({"reproduce", "tiny.yaml", "--json", "--quiet"});
  const nlohmann::json list = nlohmann::json::parse(called.out);
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(std::tuple(list[0].size(), list[0]["name"], list[0]["system"], list[0]["published"]),
            std::tuple(5U, "tiny", "paged memory", 12.8));
  EXPECT_NEAR(list[0]["ours"].get<double>(), 128.0 / 10.0, 1e-3);
  EXPECT_EQ(list[0]["verdict"], "reproduced");
}

TEST_F(ClaimsTest, AFigureThatDoesNotComeOutIsNoError) {
  write("tiny.yaml", with("12.8", "40"));
  EXPECT_THAT(call_ok({"reproduce", "tiny.yaml", "--out", "page"}).out, HasSubstr("verdict      direction (within 10 % counts)"));
  EXPECT_THAT(read("page/claims.md"),
              HasSubstr("| [tiny](#tiny) | paged memory | Orca (Max) | 40x memory of a request | 12.8x | direction |"));
  EXPECT_EQ(read_csv("page/claims.csv").rows.size(), 1U);
  EXPECT_EQ(call({"reproduce", "tiny.yaml", "--out", "again", "--jobs", "1"}).status, 0);
  EXPECT_EQ(read("page/claims.csv"), read("again/claims.csv"));
}

TEST_F(ClaimsTest, ErrorsHaveAStatusAndOneLine) {
  EXPECT_EQ(call({"reproduce", "sarathi_over_vlm"}).err, "kvlab: unknown claim 'sarathi_over_vlm'; did you mean 'sarathi_over_vllm'?\n");
  EXPECT_EQ(call({"reproduce"}).status, 2);
  EXPECT_EQ(call({"reproduce", "tiny", "--all"}).status, 2);
  write("tiny.yaml", with("ours.kv_used_peak_frac\n", "ours.kv_use_peak_frac\n"));
  EXPECT_EQ(error_of_call({"reproduce", "tiny.yaml", "--quiet"}),
            "kvlab: claim tiny: tiny.yaml:17:10: unknown metric 'kv_use_peak_frac' of run 'ours'; did you mean 'kv_used_peak_frac'?\n");
  write("tiny.yaml", with("ours: {scheduler: vllm_v0}", "ours: {scheduler: vllm_v9}"));
  EXPECT_THAT(error_of_call({"reproduce", "tiny.yaml", "--quiet"}),
              StartsWith("kvlab: claim tiny: tiny.yaml:15:9: run 'ours': --set scheduler=vllm_v9: unknown scheduler"));
}

TEST_F(ClaimsTest, AShippedClaimIsRunByItsName) {
  EXPECT_EQ(nlohmann::json::parse(call_ok({"reproduce", "sarathi_end_to_end", "--json", "--quiet"}).out).at(0).at("verdict"), "reproduced");
}

// ---- the shipped files ----

TEST(ShippedClaims, AreReadWithAllOfTheirRunsAndAreOnThePageOfResults) {
  const std::string page = read_file(KVLAB_SOURCE_DIR "/docs/results/claims.md");
  std::size_t claims = 0;
  for (const auto& entry : fs::directory_iterator(KVLAB_SOURCE_DIR "/claims")) {
    if (entry.path().extension() != ".yaml") continue;
    ++claims;
    const std::string name = entry.path().stem().string();
    SCOPED_TRACE(name);
    EXPECT_THAT(page, HasSubstr("\n### " + name + "\n")) << "make the page again: ./kvlab reproduce --all --out docs/results";
    const Claim claim = load_claim(entry.path().string());
    EXPECT_FALSE(claim.note.empty());
    for (const ClaimRun& run : claim.runs) {
      const Experiment experiment = claim.experiment(run);
      for (const RunSpec& spec : {experiment.runs.front(), experiment.runs.back()}) {
        RunKinds kinds;
        Params p = experiment.params(spec);
        EXPECT_NE(kinds.read(p, spec.seed), nullptr);
      }
    }
  }
  EXPECT_GE(claims, 30U);
}

const char* const kHeader =
    "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,gemm_quant_mode,moe_quant_mode,batch_size,tp_"
    "size,pp_size,attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms\n";

struct PointsTest : AppTest {
  static Called validate(const std::string& rows, const std::vector<std::string>& more = {}) {
    write("points.csv", kHeader + rows);
    return call({"validate", "--points", "points.csv", "--out", "out"}, more);
  }
  // The reason in left_out.csv of the only row.
  static std::string reason_of(const std::string& row) {
    EXPECT_EQ(validate(row).status, 0);
    const CsvTable left_out = read_csv("out/left_out.csv");
    return left_out.rows.size() == 1 ? left_out.rows[0][1] : std::to_string(left_out.rows.size()) + " rows are left out";
  }
  static std::vector<std::vector<std::string>> points() { return read_csv("out/points.csv").rows; }
};

const std::string kGood =
    "good,silicon_concurrency=3; wip=False,vllm,0.19.0,meta-llama/Llama-3.1-8B-Instruct,h100_sxm,,agg,128,16,,,9,2,1,,1,1,30,4\n";

// The mean TPOT of requests 3 to 5 in the experiment that the row describes.
double tpot_of_experiment() {
  double sum_ms = 0;
  const CsvTable requests = read_csv("results/same/requests.csv");
  const auto at = [&](std::size_t row, const char* column) { return std::stod(requests.rows[row][requests.at(column)]); };
  for (std::size_t i = 0; i < requests.rows.size(); ++i)
    if (at(i, "request") >= 3 && at(i, "request") < 6) sum_ms += (at(i, "last_token_ns") - at(i, "first_token_ns")) * 1e-6 / 15;
  return sum_ms / 3;
}

TEST_F(PointsTest, ARowIsTheExperimentThatItStandsFor) {
  const Called called = validate(kGood +
                                 "two,,vllm,0.19.0,meta-llama/Llama-3.1-70B,h100_sxm,fp8,disagg,1024,1024,fp8,fp8,,,,,,,30,4\n"
                                 "three,,vllm,0.19.0,acme/Nobody-1T,h100_sxm,fp8,agg,1024,1024,fp8,fp8,8,8,1,1,8,1,30,4\n"
                                 "four,,vllm,0.19.0,meta-llama/Llama-3.1-70B,abacus,fp8,agg,1024,1024,fp8,fp8,8,8,1,1,8,1,30,4\n");
  ASSERT_EQ(called.status, 0) << called.err;
  write("same.yaml",
        "model: llama-3.1-8b\nhardware: h100\nparallel: {tp: 2}\nengine: {vllm: {version: 0.19.0}}\nscheduler: vllm_v1\n"
        "trace: {generate: {requests: 9, arrival: {closed_loop: {concurrency: 3}}, prompt_tokens: 128, output_tokens: 16}}\n");
  call_ok({"run", "same.yaml"});
  const double expected = tpot_of_experiment();
  EXPECT_EQ(read_csv("out/points.csv").columns,
            (std::vector<std::string>{"id", "group", "real_tpot_ms", "simulated_tpot_ms", "diff_frac", "basis"}));
  ASSERT_EQ(points().size(), 1U);
  EXPECT_EQ(std::tuple(points()[0][0], points()[0][1], points()[0][2]),
            std::tuple("good", "h100_sxm tp2 vllm Llama-3.1-8B-Instruct", "4.000000"));
  EXPECT_NEAR(std::stod(points()[0][3]), expected, 2e-6);
  EXPECT_NEAR(std::stod(points()[0][4]), expected / 4 - 1, 2e-6);
  EXPECT_EQ(points()[0][5], "roofline");
}

TEST_F(PointsTest, GroupsAndReasonsAreCounted) {
  const std::string slower = "good2" + kGood.substr(4, kGood.rfind(',') - 4) + ",400\n";
  const Called called = validate(kGood + slower +
                                 "two,,vllm,0.19.0,meta-llama/Llama-3.1-70B,h100_sxm,fp8,disagg,1024,1024,fp8,fp8,,,,,,,30,4\n"
                                 "three,,vllm,0.19.0,meta-llama/Llama-3.1-70B,h100_sxm,fp8,disagg,1024,1024,fp8,fp8,,,,,,,30,4\n");
  ASSERT_EQ(called.status, 0) << called.err;
  const CsvTable groups = read_csv("out/groups.csv");
  EXPECT_EQ(groups.columns, (std::vector<std::string>{"group", "basis", "rows", "median_abs_diff_frac"}));
  ASSERT_EQ(groups.rows.size(), 2U);
  EXPECT_EQ(groups.rows[0][0], "h100_sxm tp2 vllm Llama-3.1-8B-Instruct");
  EXPECT_EQ(std::tuple(groups.rows[1][0], groups.rows[1][2]), std::tuple("all", "2"));
  const double a = std::abs(std::stod(points()[0][4])), b = std::abs(std::stod(points()[1][4]));
  EXPECT_NEAR(std::stod(groups.rows[1][3]), (a + b) / 2, 2e-6);
  EXPECT_EQ(read("out/left_out.csv"), "id,reason\ntwo,mode disagg\nthree,mode disagg\n");
  EXPECT_THAT(called.out, has_all({"4 rows: 2 simulated, 2 left out\n", "   2  mode disagg\n"}));
}

TEST_F(PointsTest, ReasonsOfRowsThatCannotBeExpressed) {
  const auto dense = [](const std::string& system, const std::string& load, const std::string& parallel, const std::string& tpot) {
    return "x,,vllm,0.19.0,meta-llama/Llama-3.1-8B,h" + system + "00_sxm,,agg," + load + "," + parallel + ",30," + tpot + "\n";
  };
  EXPECT_EQ(reason_of("x,,vllm,1,acme/Nobody-1T,h100_sxm,fp8,agg,128,16,fp8,fp8,8,8,1,1,8,1,30,4\n"),
            "model acme/Nobody-1T is not shipped");
  EXPECT_EQ(reason_of("x,,vllm,1,meta-llama/Llama-3.1-8B,abacus,,agg,128,16,,,8,1,1,1,1,1,30,4\n"), "system abacus has no hardware file");
  EXPECT_EQ(reason_of("x,,tgi,1,meta-llama/Llama-3.1-8B,h100_sxm,,agg,128,16,,,8,1,1,1,1,1,30,4\n"), "engine tgi has no scheduler");
  EXPECT_EQ(reason_of("x,,vllm,1,meta-llama/Llama-3.1-8B,h100_sxm,fp4,agg,128,16,nvfp4,nvfp4,8,1,1,1,1,1,30,4\n"),
            "H100 SXM 80GB has no fp4 rate");
  EXPECT_EQ(reason_of("x,,vllm,1,meta-llama/Llama-3.1-8B,h100_sxm,w3,agg,128,16,w3,w3,8,1,1,1,1,1,30,4\n"),
            "weights in w3 have no quantization_config");
  EXPECT_EQ(reason_of(dense("1", "128,16,,,8", "1,1,1,1,1", "")), "no TPOT was measured");
  EXPECT_EQ(reason_of(dense("1", ",16,,,8", "1,1,1,1,1", "4")), "no isl");
  EXPECT_EQ(reason_of(dense("1", "128,16,,,", "1,1,1,1,1", "4")), "no concurrency");
  EXPECT_EQ(reason_of(dense("1", "128,1,,,8", "1,1,1,1,1", "4")), "one output token has no TPOT");
  EXPECT_EQ(reason_of(dense("2", "128,16,,,8", "2,1,2,1,1", "4")), "data-parallel ranks of a model without experts");
  EXPECT_EQ(reason_of(dense("2", "128,16,,,8", "16,1,1,1,1", "4")), "more GPUs than fast links of h200_sxm join (8)");
  EXPECT_THAT(reason_of(dense("2", "128,16,,,8", "3,1,1,1,1", "4")), HasSubstr("'tp' = 3 does not divide the 32 query heads"));
}

// Experts are cut over tp, or spread over ep, with ranks of data parallelism or without; the rest is named.
TEST_F(PointsTest, Experts) {
  const auto row = [](const std::string& parallel) {
    return "x,,vllm,1,Qwen/Qwen3-30B-A3B,h100_sxm,,agg,64,4,,,4," + parallel + ",30,4\n";
  };
  for (const char* parallel : {"4,1,1,4,1", "4,1,1,1,4", "2,1,2,4,1", "2,1,2,1,4"}) {
    ASSERT_EQ(validate(row(parallel)).status, 0);
    EXPECT_EQ(points().size(), 1U) << parallel << read("out/left_out.csv");
  }
  EXPECT_EQ(points()[0][1], "h100_sxm tp2 dp2 vllm Qwen3-30B-A3B");
  EXPECT_EQ(reason_of(row("4,1,1,2,2")), "experts are cut over moe_tp_size and moe_ep_size at once");
  EXPECT_EQ(reason_of(row("4,1,1,2,1")), "moe_tp_size x moe_ep_size differs from tp_size x attention_dp_size");
}

// The row's modes and precision make a variant of the model: half the bytes of weights take less time.
TEST_F(PointsTest, WeightsAndKvInTheFormatsOfTheRow) {
  const std::string row = "a,,vllm,1,meta-llama/Llama-3.1-8B,h100_sxm,,agg,128,16,,,4,1,1,1,1,1,30,4\n",
                    fp8 = "b,,vllm,1,meta-llama/Llama-3.1-8B,h100_sxm,fp8,agg,128,16,fp8,fp8,4,1,1,1,1,1,30,4\n";
  ASSERT_EQ(validate(row + fp8).status, 0);
  ASSERT_EQ(points().size(), 2U);
  EXPECT_LT(std::stod(points()[1][3]), 0.75 * std::stod(points()[0][3]));
  EXPECT_THAT(read("out/models/llama-3.1-8b-fp8-kv-fp8.yaml"), has_all({"quant_method: fp8", "kv_cache_dtype: fp8"}));
}

TEST_F(PointsTest, TheProfileIsThatOfTheRow) {
  EXPECT_EQ(validate(kGood, {"--profile", "roofline"}).status, 0);
  EXPECT_EQ(points()[0][5], "roofline");
  EXPECT_EQ(validate(kGood, {"--profile", "{bundle: {path: \"$system/$backend/$backend_version\"}}"}).status, 0);
  EXPECT_TRUE(points().empty());
  EXPECT_THAT(read("out/left_out.csv"), HasSubstr("h100_sxm/vllm/0.19.0"));
}

TEST_F(PointsTest, BadFiles) {
  const auto error = [](const std::string& text) {
    write("bad.csv", text);
    const std::string error = error_of_call({"validate", "--points", "bad.csv", "--out", "out"});
    EXPECT_FALSE(fs::exists("out"));
    return error;
  };
  const std::string header = kHeader;
  std::string without = header;
  without.erase(without.find("tp_size,"), 8);
  EXPECT_THAT(error(without), HasSubstr("kvlab: bad.csv:1: has no column 'tp_size'"));
  std::string bad = kGood;
  bad.replace(bad.find(",128,16"), 7, ",many,16");
  EXPECT_EQ(error(header + bad), "kvlab: bad.csv:2: 'isl' is not a whole number from 0 to 2^30: 'many'\n");
  EXPECT_EQ(error(header + kGood.substr(0, kGood.rfind(',')) + ",fast\n"), "kvlab: bad.csv:2: 'silicon_tpot_ms' is not a number: 'fast'\n");
  EXPECT_THAT(call({"validate", "--points", "none.csv", "--out", "out"}).err, HasSubstr("none.csv"));
  EXPECT_EQ(call({"validate", "--points", "bad.csv"}).status, 2);
  EXPECT_EQ(call({"validate"}).status, 2);
}

}  // namespace
}  // namespace kvlab
