#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "policies/kv/recipe.h"

namespace kvlab {

// Counts that depended on data, as a computing host settled them, in order.
class RecordedCounts final : public CountSource {
 public:
  struct Entry {
    std::string purpose;
    std::int32_t layer = 0;
    std::int64_t step = 0;  // of the run, prefill chunks included
    std::vector<std::int32_t> counts;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  void begin_step(std::int64_t step) override { step_ = step; }
  void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) override;
  [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::int64_t step_ = 0;
  std::vector<Entry> entries_;
};

// Gives recorded counts out again in their order: the run on shapes is then the recorded one, call by call. Errors (InputError): the
// run asks for something else than comes next, or for more than was recorded.
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

// Draws for each sequence one of the vectors recorded for this purpose and layer (all heads of a sequence together, so that their
// correlation stays), cut to the bounds. Recordings are of one sequence. Same seed, same counts. Error (InputError): nothing was
// recorded for a purpose and layer, or with other sizes.
class DrawnCounts final : public CountSource {
 public:
  DrawnCounts(std::span<const RecordedCounts::Entry> entries, std::uint64_t seed);
  void begin_step(std::int64_t step) override { step_ = step, calls_ = 0; }
  void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) override;

 private:
  std::map<std::pair<std::string, std::int32_t>, std::vector<std::vector<std::int32_t>>> recorded_;
  std::uint64_t seed_;
  std::int64_t step_ = 0, calls_ = 0;  // calls in this step
};

// What an allocator says that rows keep on average (Allocator::expected), for one sequence at a time; all other counts stay at their
// bounds. The memory of a sequence whose heads compete is then that of its budget, not that of every head winning.
class ExpectedCounts final : public CountSource {
 public:
  ExpectedCounts(const Recipe& recipe, const ModelShape& model)
      : model_(model), name_(recipe.allocator), allocator_(recipe.make_allocator()) {}
  void set_target(std::int32_t tokens) { target_ = tokens; }
  void fill(std::string_view purpose, int layer, std::span<std::int32_t> counts) override;

 private:
  ModelShape model_;
  std::string name_;
  std::unique_ptr<Allocator> allocator_;
  std::int32_t target_ = 0;
};

}  // namespace kvlab
