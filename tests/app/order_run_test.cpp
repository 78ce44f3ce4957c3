// Orders, predictors and optional columns in experiments: results by class and client, and errors that say what to do.
#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

class OrderRunTest : public AppTest {
 protected:
  static Called run(const std::string& more, const std::string& generate = "clients: {num: 3}") {
    std::string text = kSmall;
    text.replace(text.find("requests: 60"), 12, "requests: 60, " + generate);
    write("e.yaml", text + more);
    return call({"run", "e.yaml", "--out", "out", "--force"});
  }
};

TEST_F(OrderRunTest, ServiceByClassAndClient) {
  const Called called = run("scheduler: vllm_v1\norder: vtc\n",
                            "clients: {num: 2}, classes: {chat: {share_frac: 0.5, ttft_slo_ms: 0.001}, batch: {share_frac: 0.5}}");
  ASSERT_EQ(called.status, 0) << called.err;
  const CsvTable table = read_csv("out/service.csv");
  ASSERT_EQ(table.rows.size(), 5U);
  int requests = 0;
  for (const auto& row : table.rows) {
    if (row[table.at("group")] != "client") continue;
    requests += std::stoi(row[table.at("requests")]);
  }
  EXPECT_EQ(requests, 60);
  for (const auto& row : table.rows) {
    const double attained = row[table.at("slo_attainment_frac")].empty() ? -1 : std::stod(row[table.at("slo_attainment_frac")]);
    if (row[table.at("name")] == "chat") {
      EXPECT_EQ(attained, 0) << "nobody is that fast";
    }
    if (row[table.at("name")] == "batch") {
      EXPECT_GT(attained, 0.5) << "held to the run's targets";
    }
  }
}

TEST_F(OrderRunTest, NoTableWithoutTheColumns) {
  std::string text = kSmall;
  write("e.yaml", text + "scheduler: vllm_v1\norder: {srpt: {preemptive: false}}\n");
  ASSERT_EQ(call({"run", "e.yaml", "--out", "out"}).status, 0);
  EXPECT_FALSE(std::filesystem::exists("out/service.csv"));
}

TEST_F(OrderRunTest, ErrorsSayWhatToDo) {
  const Called column = run("scheduler: vllm_v1\norder: priority\n");
  EXPECT_EQ(column.status, 2);
  EXPECT_NE(column.err.find("e.yaml:10"), std::string::npos) << column.err;
  EXPECT_NE(column.err.find("the column 'priority', which request 0"), std::string::npos) << column.err;
  const Called overtaking = run("scheduler: orca\norder: srpt\n");
  EXPECT_EQ(overtaking.status, 2);
  EXPECT_NE(overtaking.err.find("choose 'scheduler: vllm_v1'"), std::string::npos) << overtaking.err;
  const Called unknown = run("scheduler: vllm_v1\norder: spt\n");
  EXPECT_NE(unknown.err.find("did you mean"), std::string::npos) << unknown.err;
  const Called no_row = [&] {
    write("p.csv", "request,predicted_output\n0,5\n");
    return run("scheduler: vllm_v1\norder: sjf\npredictor: {recorded: {file: p.csv}}\n");
  }();
  EXPECT_NE((no_row.err + no_row.out).find("p.csv: no row for request 1"), std::string::npos) << no_row.err << no_row.out;
  EXPECT_NE((no_row.err + no_row.out).find("e.yaml:11:"), std::string::npos) << no_row.err << no_row.out;
}

TEST_F(OrderRunTest, WeightsNameClientsOfTheTrace) {
  EXPECT_EQ(run("scheduler: vllm_v1\norder: {vtc: {weights: {0: 2, 2: 0.5}}}\n").status, 0);
  const Called unknown = run("scheduler: vllm_v1\norder: {vtc: {weights: {bob: 2}}}\n");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_NE(unknown.err.find("names the client 'bob', which no request of the trace has"), std::string::npos) << unknown.err;
  EXPECT_NE(unknown.err.find("hash): 0, 1, 2"), std::string::npos) << unknown.err;
}

TEST_F(OrderRunTest, S3UsesThePredictor) {
  const Called called = run("scheduler: s3\npredictor: {bucket: {max_output_tokens: 512}}\n");
  EXPECT_EQ(called.status, 0) << called.err;
  EXPECT_EQ((called.out + called.err).find("changes nothing"), std::string::npos) << called.out << called.err;
}

TEST_F(OrderRunTest, ListedAndDescribed) {
  EXPECT_NE(call({"list", "orders"}).out.find("longest_prefix"), std::string::npos);
  const std::string srpt = call({"describe", "srpt"}).out;
  EXPECT_NE(srpt.find("preemptive"), std::string::npos) << srpt;
}

}  // namespace
}  // namespace kvlab
