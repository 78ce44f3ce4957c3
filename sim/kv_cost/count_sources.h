#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "policies/kv/recipe/recipe.h"

namespace kvlab {

class RecordedCounts final : public CountSource {
 public:
  struct Entry {
    std::string purpose;
    std::int32_t layer = 0;
    std::int64_t step = 0;  // with prefill chunks
    std::vector<std::int32_t> counts;
    std::int32_t turn = 0;  // of purpose, layer and step
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  void begin_step(std::int64_t step) override { step_ = step, turns_.clear(); }
  void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) override;
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::int64_t step_ = 0;
  std::map<std::pair<std::string, std::int32_t>, std::int32_t> turns_;  // in this step
  std::vector<Entry> entries_;
};

// Replays in order. Throws InputError if the run asks for something else or more.
class ScriptedCounts final : public CountSource {
 public:
  explicit ScriptedCounts(std::vector<RecordedCounts::Entry> entries) : entries_(std::move(entries)) {}
  void begin_step(std::int64_t step) override { step_ = step; }
  void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) override;
  [[nodiscard]] bool used_up() const { return next_ == entries_.size(); }

 private:
  std::vector<RecordedCounts::Entry> entries_;
  std::size_t next_ = 0;
  std::int64_t step_ = 0;
};

// Each batch place follows a drawn recording: its counts at recorded steps, else a drawn step's, cut to the bounds. Deterministic by seed.
// Throws InputError for purpose and layer or sizes not recorded.
class DrawnCounts final : public CountSource {
 public:
  DrawnCounts(std::span<const RecordedCounts::Entry> entries, std::uint64_t seed);
  void begin_step(std::int64_t step) override { step_ = step, turns_.clear(); }
  void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) override;

 private:
  using Counts = std::vector<std::vector<std::int32_t>>;  // [recording][row]
  struct Turn {
    Counts all;
    std::map<std::int64_t, Counts> at_step;
  };
  using Place = std::pair<std::string, std::int32_t>;  // purpose, layer
  std::map<Place, std::vector<Turn>> recorded_;
  std::map<Place, std::int32_t> turns_;
  std::uint64_t seed_;
  std::int64_t step_ = 0;
};

// Means by Allocator::expected, one sequence at a time; others at their bounds.
class ExpectedCounts final : public CountSource {
 public:
  ExpectedCounts(const Recipe& recipe, const ModelShape& model)
      : model_(model), name_(recipe.allocator), allocator_(recipe.make_allocator()) {}
  // Rows hold at most `full` (Trigger::full), cut to `tokens` on average. 0: not cut, counts at their bounds.
  void set_target(std::int32_t tokens, std::int32_t full, std::int32_t sequence_tokens) {
    target_ = tokens, full_ = full, sequence_tokens_ = sequence_tokens;
  }
  void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) override;

 private:
  ModelShape model_;
  std::string name_;
  std::unique_ptr<Allocator> allocator_;
  std::int32_t target_ = 0, full_ = 0, sequence_tokens_ = 0;
};

}  // namespace kvlab
