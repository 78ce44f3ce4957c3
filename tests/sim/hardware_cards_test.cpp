// Hardware files are read once for each process: again only where a text has changed.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/usage.h"
#include "tests/sim/cost_support.h"

namespace kvlab {
namespace {

std::string tables(int ns) {
  return "hardware: card\nsource: made up\ntables:\n  - {op: all_reduce, ranks: 2, points: [[1024, " + std::to_string(ns) + "]]}\n";
}

class HardwareCards : public ::testing::Test {
 protected:
  HardwareCards() {
    folder_.write("sums.yaml", tables(4000));
    folder_.write("card.yaml", std::string(kTinyCard) + "collectives: sums.yaml\n");
  }
  [[nodiscard]] HardwareSpec load() const { return load_hardware_spec(folder_.file("card.yaml"), folder_.path()); }
  [[nodiscard]] static double sum_ps(const HardwareSpec& h) { return h.collectives->tables.front().at(1024).ps; }
  TempFolder folder_;
};

TEST_F(HardwareCards, TheSameTextIsReadOnce) {
  const HardwareSpec first = load(), second = load();
  EXPECT_EQ(first.collectives, second.collectives);  // one object
  EXPECT_EQ(first.memory_bytes, second.memory_bytes);
  EXPECT_EQ(sum_ps(second), 4e6);
}

TEST_F(HardwareCards, AChangedTextIsReadAgain) {
  EXPECT_EQ(sum_ps(load()), 4e6);
  folder_.write("sums.yaml", tables(5000));
  EXPECT_EQ(sum_ps(load()), 5e6);
  folder_.write("card.yaml", std::string(kTinyCard) + "sms: 7\ncollectives: sums.yaml\n");
  EXPECT_EQ(load().sms, 7);
  folder_.write("card.yaml", std::string(kTinyCard) + "smms: 7\n");
  EXPECT_NE(error_of([&] { static_cast<void>(load()); }), "no error");
  folder_.write("card.yaml", kTinyCard);
  EXPECT_TRUE(load().collectives->tables.empty());
}

TEST_F(HardwareCards, AMissingFileOfTablesIsAnError) {
  static_cast<void>(load());
  std::filesystem::remove(folder_.file("sums.yaml"));
  EXPECT_NE(error_of([&] { static_cast<void>(load()); }), "no error");
}

// Input files of a run are noted whether they are read or not.
TEST_F(HardwareCards, BothFilesAreNotedEachTime) {
  for (int i = 0; i < 2; ++i) {
    const UsageLog log;
    static_cast<void>(load());
    EXPECT_EQ(log.files(), (std::set<std::string>{folder_.file("card.yaml"), folder_.file("sums.yaml")})) << i;
  }
}

TEST_F(HardwareCards, RunsOfASweepLoadItTogether) {
  std::vector<double> found(8);
  std::vector<std::thread> threads;
  for (double& ps : found)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) ps = sum_ps(load());
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, std::vector<double>(8, 4e6));
}

}  // namespace
}  // namespace kvlab
