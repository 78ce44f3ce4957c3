#pragma once

#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

#include "app/results/results.h"
#include "app/runs/accuracy.h"
#include "app/runs/experiment.h"
#include "app/runs/input_files.h"
#include "app/runs/replayed_sample.h"
#include "app/runs/run.h"

namespace kvlab {

// Samples of accuracy setups by their text.
using SampleSets = std::map<std::string, std::vector<EvalSample>>;
// Errors (InputError with FILE:LINE): samples that cannot be read, or that the model does not take.
std::vector<EvalSample> read_samples(const AccuracySetup& setup);

// Runs that grade a model's answers, sample by sample: a sample runs over the full cache once, and every recipe starts from that result.
// Grades are stored in partial/ of the results folder until their run is complete, so that an interrupted run can continue.
class GradedRuns {
 public:
  struct Job {
    std::size_t place = 0;  // in Experiment::runs
    RunOrigin origin;
  };
  // Called once per job, with the error that ended it, if any, and the seconds that were its own.
  using Finish = std::function<void(std::size_t place, std::exception_ptr error, double wall_s)>;

  // `samples` has those of every job and outlives this.
  GradedRuns(const Experiment& experiment, const SampleSets& samples, const InputFiles& inputs, const ResultsFolder& folder,
             const std::atomic<bool>& stop, Finish finish)
      : experiment_(experiment), samples_(samples), inputs_(inputs), folder_(folder), stop_(stop), finish_(std::move(finish)) {}

  // Jobs that share model and samples are done together. An estimate of the time goes to `log` before it starts.
  void run(const std::vector<Job>& jobs, std::ostream* log);

 private:
  struct Graded;
  struct Set;
  void run_set(Set& set, std::ostream* log);
  std::size_t refuse_early(Set& set);
  void grade_block(Set& set, std::size_t begin, std::size_t end);
  static void add_grades(Graded& run, std::span<const GradedAnswer> answers, const std::map<std::int32_t, ReplayedSample>& recorded,
                         std::uint64_t seed);
  void write(Set& set, Graded& run);

  const Experiment& experiment_;
  const SampleSets& samples_;
  const InputFiles& inputs_;
  const ResultsFolder& folder_;
  const std::atomic<bool>& stop_;
  Finish finish_;
};

}  // namespace kvlab
