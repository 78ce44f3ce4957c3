// Orders, predictors and optional columns in experiments: results by class and client, and errors that say what to do.
#include <algorithm>

#include "tests/app/app_fixture.h"

namespace kvlab {
namespace {

// The service of one class or client.
std::string attainment(const CsvTable& service, const std::string& group, const std::string& name) {
  for (const auto& row : service.rows)
    if (row[service.at("group")] == group && row[service.at("name")] == name) return row[service.at("slo_attainment_frac")];
  return "no such row";
}

struct OrderRunTest : AppTest {
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
  for (const auto& row : table.rows)
    if (row[table.at("group")] == "client") requests += std::stoi(row[table.at("requests")]);
  EXPECT_EQ(requests, 60);
  const CsvTable groups = read_csv("out/request_groups.csv");
  EXPECT_EQ(groups.columns, (std::vector<std::string>{"run", "request", "client", "class"}));
  ASSERT_EQ(groups.rows.size(), 60U);
  for (const auto& row : table.rows) {
    const std::string group = row[table.at("group")];
    if (group == "clients") continue;
    const auto is_its = [&](const auto& request) { return request[groups.at(group)] == row[table.at("name")]; };
    EXPECT_EQ(std::to_string(std::count_if(groups.rows.begin(), groups.rows.end(), is_its)), row[table.at("requests")])
        << row[table.at("name")];
  }
  EXPECT_EQ(std::stod(attainment(table, "class", "chat")), 0) << "no request is that fast";
  EXPECT_GT(std::stod(attainment(table, "class", "batch")), 0.5) << "held to the run's targets";
}

TEST_F(OrderRunTest, TargetsByClassAndClient) {
  const std::string classes = "clients: {num: 2}, classes: {chat: {share_frac: 0.5}, batch: {share_frac: 0.5}}";
  ASSERT_EQ(run("scheduler: vllm_v1\n", classes).status, 0);
  const auto with = [&](const std::string& slo) { return call({"run", "e.yaml", "--out", "out", "--force", "--set", "slo=" + slo}); };
  ASSERT_EQ(with("{classes: {chat: {ttft_ms: 0.001}, batch: {tbt_ms: {p99: 1000}}}}").status, 0);
  CsvTable service = read_csv("out/service.csv");
  EXPECT_EQ(attainment(service, "class", "chat"), "0.000000");
  EXPECT_EQ(attainment(service, "class", "batch"), "1.000000");
  const double all = number(read_csv("out/summary.csv"), "slo_attainment_frac");
  EXPECT_GT(all, 0.2);
  EXPECT_LT(all, 0.8);
  ASSERT_EQ(with("{ttft_ms: 0.001, classes: {batch: {}}, clients: {1: {e2e_ms: 0.001}}}").status, 0);
  service = read_csv("out/service.csv");
  EXPECT_EQ(attainment(service, "class", "chat"), "0.000000");
  EXPECT_EQ(std::stod(attainment(service, "client", "0")), 0) << "its chats are late, its batch is not judged";
  EXPECT_EQ(std::stod(attainment(service, "client", "1")), 0);
  EXPECT_EQ(attainment(service, "class", "batch"), "0.000000") << "those of client 1";
}

TEST_F(OrderRunTest, QualityOfExperienceIsPerfectWhereTextComesFasterThanItIsRead) {
  const Called called = run("scheduler: vllm_v1\nqoe: {}\n");
  ASSERT_EQ(called.status, 0) << called.err;
  const auto mean = [] {
    const CsvTable summary = read_csv("out/summary.csv"), service = read_csv("out/service.csv");
    EXPECT_EQ(text(service, "group"), "client");
    EXPECT_GT(number(service, "qoe_mean"), 0);
    EXPECT_LE(number(summary, "qoe_min"), number(summary, "qoe_p10"));
    return number(summary, "qoe_mean");
  };
  EXPECT_EQ(mean(), 1);
  call_ok({"run", "e.yaml", "--out", "out", "--set", "qoe={ttft_ms: 1, tokens_per_s: 10000}"});
  EXPECT_LT(mean(), 0.6) << "no engine is that fast";
  ASSERT_EQ(call({"run", "e.yaml", "--out", "out2", "--set", "qoe={tokens_per_s: 0}"}).status, 2);
}

TEST_F(OrderRunTest, TargetsOfTheTraceCountInTheSummary) {
  write("t.csv", "arrival_ns,prompt_tokens,output_tokens,tbt_slo_ms\n0,100,20,0.000001\n0,100,20,1000\n0,100,20,\n");
  write("e.yaml",
        "name: small\nmodel: llama-3.1-8b\nhardware: h100\ntrace: {file: t.csv}\nmemory: {num_blocks: 600}\nscheduler: vllm_v1\n");
  EXPECT_EQ(text(summary_after({"e.yaml"}), "slo_attainment_frac"), "0.500000") << "the third has no target";
  EXPECT_EQ(text(summary_after({"e.yaml", "--set", "slo={ttft_ms: 100000}"}), "slo_attainment_frac"), "0.666667");
}

TEST_F(OrderRunTest, TargetsOfNoClassOfAFileAreRefused) {
  write("t.csv", "arrival_ns,prompt_tokens,output_tokens,client,class\n0,100,20,ann,chat\n0,100,20,7,code\n");
  write("e.yaml",
        "name: small\nmodel: llama-3.1-8b\nhardware: h100\ntrace: {file: t.csv}\nmemory: {num_blocks: 600}\nscheduler: vllm_v1\n"
        "slo: {classes: {cod: {ttft_ms: 500}}}\n");
  EXPECT_EQ(call({"run", "e.yaml", "--out", "out"}).err,
            "kvlab: e.yaml:7:22: the trace has no request of class 'cod'; its classes are chat, code; did you mean 'code'?\n");
  const auto clients = [&](const std::string& name) {
    return call({"run", "e.yaml", "--out", "out", "--set", "slo={clients: {" + name + ": {ttft_ms: 500}}}"});
  };
  EXPECT_EQ(clients("ann").status, 0) << clients("ann").err;
  EXPECT_EQ(clients("7").status, 0);
  EXPECT_THAT(clients("8").err, HasSubstr("the trace has no request of client '8'; its clients are 7, "));
}

TEST_F(OrderRunTest, NoTableWithoutTheColumns) {
  write("e.yaml", std::string(kSmall) + "scheduler: vllm_v1\norder: {srpt: {preemptive: false}}\n");
  call_ok({"run", "e.yaml", "--out", "out"});
  for (const char* file : {"out/service.csv", "out/request_groups.csv"}) EXPECT_FALSE(fs::exists(file)) << file;
}

TEST_F(OrderRunTest, ErrorsSayWhatToDo) {
  const Called column = run("scheduler: vllm_v1\norder: priority\n");
  EXPECT_EQ(column.status, 2);
  EXPECT_THAT(column.err, has_all({"e.yaml:10", "the column 'priority', which request 0"}));
  const Called overtaking = run("scheduler: orca\norder: srpt\n");
  EXPECT_EQ(overtaking.status, 2);
  EXPECT_THAT(overtaking.err, HasSubstr("choose 'scheduler: vllm_v1'"));
  EXPECT_THAT(run("scheduler: vllm_v1\norder: spt\n").err, HasSubstr("did you mean"));
  write("p.csv", "request,predicted_output\n0,5\n");
  const Called no_row = run("scheduler: vllm_v1\norder: sjf\npredictor: {recorded: {file: p.csv}}\n");
  EXPECT_THAT((no_row.err + no_row.out), has_all({"p.csv: no row for request 1", "e.yaml:11:"})) << no_row.err << no_row.out;
}

TEST_F(OrderRunTest, WeightsNameClientsOfTheTrace) {
  EXPECT_EQ(run("scheduler: vllm_v1\norder: {vtc: {weights: {0: 2, 2: 0.5}}}\n").status, 0);
  const Called unknown = run("scheduler: vllm_v1\norder: {vtc: {weights: {bob: 2}}}\n");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, has_all({"names the client 'bob', which no request of the trace has", "hash): 0, 1, 2"}));
}

TEST_F(OrderRunTest, S3UsesThePredictor) {
  const Called called = run("scheduler: s3\npredictor: {bucket: {max_output_tokens: 512}}\n");
  EXPECT_EQ(called.status, 0) << called.err;
  EXPECT_THAT(called.out + called.err, Not(HasSubstr("changes nothing")));
}

}  // namespace
}  // namespace kvlab
