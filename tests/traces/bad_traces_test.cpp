#include <fstream>
#include <sstream>

#include "tests/traces/trace_test_files.h"

namespace kvlab {
namespace {

// One line of tests/bad_traces/expected.txt: file, message ({file}: its path, {config}: the mapping that names it), and
// the other keys of that mapping.
struct BadTrace {
  std::string file, message, options;
};

void PrintTo(const BadTrace& bad, std::ostream* out) { *out << bad.file; }

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) text.replace(at, what.size(), by);
  return text;
}

std::vector<BadTrace> bad_traces() {
  std::vector<BadTrace> all;
  std::ifstream expected(KVLAB_SOURCE_DIR "/tests/bad_traces/expected.txt");
  for (std::string line; std::getline(expected, line);) {
    std::istringstream parts(line);
    BadTrace bad;
    std::getline(parts, bad.file, '\t');
    std::getline(parts, bad.message, '\t');
    std::getline(parts, bad.options, '\t');
    all.push_back(bad);
  }
  return all;
}

class BadTraces : public testing::TestWithParam<BadTrace> {};

TEST_P(BadTraces, StopsWithThisMessage) {
  const BadTrace& bad = GetParam();
  const std::string path = KVLAB_SOURCE_DIR "/tests/bad_traces/" + bad.file;
  ASSERT_TRUE(std::filesystem::exists(path));
  const std::string yaml = "file: " + path + "\n" + replaced(bad.options, ", ", "\n") + "\n";
  const std::string message = error_of([&] { InMemoryTrace(trace_of(yaml)); });
  EXPECT_EQ(message, replaced(replaced(bad.message, "{file}", path), "{config}", "<test>"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(All, BadTraces, testing::ValuesIn(bad_traces()));

TEST(BadTraces, EveryFileIsInTheList) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KVLAB_SOURCE_DIR "/tests/bad_traces"))
    if (entry.path().filename() != "expected.txt") ++files;
  EXPECT_EQ(files, bad_traces().size());
  EXPECT_GE(files, 25U);
}

TEST(BadTraces, MissingFileAndFolder) {
  EXPECT_EQ(error_of([] { open_trace("/nonexistent/t.csv"); }), "/nonexistent/t.csv: cannot be opened: No such file or directory");
  EXPECT_EQ(error_of([] { open_trace("/tmp"); }), "/tmp: is a directory; a trace file is expected");
}

TEST(BadTraces, TooLongALine) {
  const std::string text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + std::string(LineReader::kMaxLineBytes + 1, '1');
  EXPECT_EQ(error_of([&] { read_all(text); }), "f:2: the line is longer than 64 MiB; a trace holds one request per line");
}

}  // namespace
}  // namespace kvlab
