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

}  // namespace
}  // namespace kvlab
