// A kind of run that this file alone defines: the sweep runs it, joins its tables and prints its report.
#include "app/results/results.h"
#include "app/results/run_files.h"
#include "tests/app/app_fixture.h"

namespace kvlab {

namespace {

class EchoRun final : public PreparedRun {
 public:
  EchoRun(RunKind& kind, Params& p) : PreparedRun(kind), word_(p.text("word", "what to say")) {
    together = p.flag("together", false, "runs are done as a batch");
    p.reject_unread();
  }
  Findings run(RunFiles& files, const RunOptions& /*options*/) override {
    files.add_file("echo.csv", "run,word\n" + files.id() + "," + word_ + "\n");
    Findings findings;
    findings.rows = {{{"length", std::to_string(word_.size())}, {"in_batch", in_batch ? "1" : "0"}}};
    findings.add_note("an echo");
    return findings;
  }
  bool together = false, in_batch = false;

 private:
  std::string word_;
};

}  // namespace

class Echo final : public RunKind {
 public:
  using RunKind::RunKind;
  std::unique_ptr<PreparedRun> read(Params& p, std::uint64_t /*seed*/) override {
    auto run = std::make_unique<EchoRun>(*this, p);
    together_ = run->together;
    return run;
  }
  [[nodiscard]] std::set<std::string> tables() const override { return {"echo.csv"}; }
  bool run_together(const RunBatch& batch) override {
    if (!together_) return false;
    for (const std::size_t place : batch.places) {
      const RunSpec& spec = batch.experiment.runs[place];
      Params p = batch.experiment.params(spec);
      read_kind(p);
      EchoRun run(*this, p);
      run.in_batch = true;
      execute_prepared(run, {batch.experiment, spec, batch.folder.runs(), batch.origin_of(place), [] {}}, {});
      batch.finish(place, nullptr, 0);
    }
    return true;
  }

 private:
  [[nodiscard]] std::vector<std::string> metrics() const override { return {"length", "in_batch"}; }
  bool together_ = false;
};

KVLAB_REGISTER(RunKind, Echo, "echo", "for this test", "");

namespace {

using RunKindTest = AppTest;

TEST_F(RunKindTest, NewKindIsOneFile) {
  write("echo.yaml", "kind: echo\nword: [a, four]\n");
  EXPECT_THAT(call_ok({"run", "echo.yaml"}).out, has_all({"length", "note (all 2 runs): an echo"}));
  const CsvTable summary = read_csv("results/echo/summary.csv"), echo = read_csv("results/echo/echo.csv");
  ASSERT_EQ(summary.rows.size(), 2U);
  EXPECT_EQ(std::tuple(text(summary, "length", 1), text(summary, "in_batch", 1)), std::tuple("4", "0"));
  ASSERT_EQ(echo.rows.size(), 2U);
  EXPECT_EQ(echo.rows[1], (std::vector<std::string>{run_id("results/echo", 1), "four"}));
  EXPECT_THAT(call({"run", "echo.yaml"}).out, HasSubstr("2 of 2 runs were there already"));
}

TEST_F(RunKindTest, KindMayDoItsRunsTogether) {
  write("echo.yaml", "kind: echo\ntogether: true\nword: [a, four]\n");
  EXPECT_EQ(column(summary_after({"echo.yaml"}), "in_batch"), (std::vector<std::string>{"1", "1"}));
}

TEST_F(RunKindTest, UnknownKindsAreRefusedWithThoseThereAre) {
  write("echo.yaml", "kind: ecco\nword: a\n");
  EXPECT_THAT(error_of_call({"run", "echo.yaml"}), testing::AllOf(HasSubstr("echo.yaml:1:7"), HasSubstr("echo")));
  EXPECT_THAT(call({"run", "echo.yaml", "--set", "kind=echo", "--set", "host=replay"}).err,
              HasSubstr("'host: replay' and 'host: engine' exclude 'kind: echo'"));
}

}  // namespace
}  // namespace kvlab
