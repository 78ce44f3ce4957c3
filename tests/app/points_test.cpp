#include <cmath>

#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

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
