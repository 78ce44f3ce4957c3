#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "app/cli.h"
#include "app/runs/sweep/progress.h"
#include "base/csv.h"
#include "base/read_file.h"
#include "tests/has_all.h"

namespace kvlab {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::Not;

// The result of one call of the program.
struct Called {
  int status = 0;
  std::string out, err;
};

// A scratch folder as working directory, and the project's own profiles.
class AppTest : public ::testing::Test {
 protected:
  AppTest() {
    before_ = fs::current_path();
    folder_ = fs::temp_directory_path() /
              ("kvlab_app_" + std::to_string(::getpid()) + "_" + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    fs::current_path(folder_);
    ::setenv("KVLAB_PROFILES", KVLAB_SOURCE_DIR "/profiles", 1);
    ::unsetenv("KVLAB_RESULT_FILE");
  }
  ~AppTest() override {
    std::error_code ignored;
    fs::current_path(before_, ignored);
    fs::remove_all(folder_, ignored);
  }

  static Called call(std::vector<std::string> arguments, const std::vector<std::string>& more = {}) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::ostringstream out, err;
    Called called;
    called.status = run_cli(arguments, out, err);
    called.out = out.str();
    called.err = err.str();
    return called;
  }
  // The same of a call that has to succeed.
  static Called call_ok(const std::vector<std::string>& arguments, const std::vector<std::string>& more = {}) {
    Called called = call(arguments, more);
    if (called.status != 0) throw std::runtime_error("status " + std::to_string(called.status) + ": " + called.err);
    return called;
  }
  // The message of a call that has to fail.
  static std::string error_of_call(const std::vector<std::string>& arguments, const std::vector<std::string>& more = {}, int status = 2) {
    const Called called = call(arguments, more);
    EXPECT_EQ(called.status, status) << called.err;
    return called.err;
  }
  // The same of a call that was asked to stop before it began.
  static std::string error_when_stopped(const std::vector<std::string>& arguments, const std::vector<std::string>& more = {}) {
    stop_requested() = true;
    std::string error = error_of_call(arguments, more, 130);
    stop_requested() = false;
    return error;
  }
  static std::string read(const fs::path& path) { return read_if_there(path); }
  // The id of the run in a row of a folder's summary.csv, and its folder.
  static std::string run_id(const fs::path& folder, std::size_t row = 0) { return read_csv(folder / "summary.csv").rows.at(row).at(0); }
  static fs::path run_folder(const fs::path& folder, std::size_t row = 0) { return folder / "runs" / run_id(folder, row); }
  // Complete runs that a folder holds.
  static std::size_t num_runs(const fs::path& folder) {
    std::size_t count = 0;
    std::error_code error;
    for (const auto& run : fs::directory_iterator(folder / "runs", error)) count += run.path().filename().string().starts_with(".") ? 0 : 1;
    return count;
  }
  static const std::string& text(const CsvTable& table, const std::string& column, std::size_t row = 0) {
    return table.rows.at(row).at(table.at(column));
  }
  static double number(const CsvTable& table, const std::string& column, std::size_t row = 0) {
    return std::stod(text(table, column, row));
  }
  // A column's texts, its numbers, and their sum.
  static std::vector<std::string> column(const CsvTable& table, const std::string& name) {
    std::vector<std::string> texts;
    for (const auto& row : table.rows) texts.push_back(row.at(table.at(name)));
    return texts;
  }
  static std::vector<double> numbers_in(const CsvTable& table, const std::string& name) {
    std::vector<double> numbers;
    for (const std::string& text : column(table, name)) numbers.push_back(std::stod(text));
    return numbers;
  }
  static double sum(const CsvTable& table, const std::string& name) {
    const std::vector<double> numbers = numbers_in(table, name);
    return std::accumulate(numbers.begin(), numbers.end(), 0.0);
  }
  // The summary of a run that has to succeed; without --quiet, which leaves out the folder's name.
  static CsvTable summary_after(const std::vector<std::string>& arguments) {
    const std::string out = call_ok({"run"}, arguments).out, folder = out.substr(out.find("wrote ") + 6);
    return read_csv(folder.substr(0, folder.find('\n')) + "/summary.csv");
  }
  // Makes the folders of the path, too.
  static void write(const fs::path& path, const std::string& text) {
    if (path.has_parent_path()) fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }

  fs::path folder_, before_;
};

// A small experiment: 60 requests, seconds of simulated time.
inline const char* const kSmall =
    "name: small\n"
    "model: llama-3.1-8b\n"
    "hardware: h100\n"
    "trace: {generate: {requests: 60, arrival: {poisson: {rate_per_s: 8}}, prompt_tokens: {fixed: {value: 300}}, output_tokens: {uniform: "
    "{min: 1, max: 80}}}}\n"
    "memory: {num_blocks: 600}\n"
    "max_model_len: 2048\n"
    "slo: {ttft_ms: 200, tpot_ms: 20}\n"
    "timeline_interval_ms: 500\n";

// With kSmall as small.yaml.
struct SmallTest : AppTest {
  SmallTest() { write("small.yaml", std::string(kSmall) + "scheduler: vllm_v1\n"); }
};

}  // namespace kvlab
