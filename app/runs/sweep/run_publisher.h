#pragma once

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "app/results/run_files.h"

namespace kvlab {

// Publishes finished runs once all their files are on disk: many after one sync of the file system, by a thread, so that runs do not wait
// for the disk. A run waits a second at most.
class RunPublisher {
 public:
  // error: null if the run has its name, also after a power cut. Called by the thread; must not throw.
  using Done = std::function<void(const std::exception_ptr& error)>;

  explicit RunPublisher(std::filesystem::path runs);
  ~RunPublisher();  // publishes those that wait
  RunPublisher(const RunPublisher&) = delete;
  RunPublisher& operator=(const RunPublisher&) = delete;

  // Blocks while 64 runs wait. Thread-safe.
  void add(FreshRun run, Done done);

 private:
  struct Waiting {
    FreshRun run;
    Done done;
  };
  void loop();
  void publish(std::vector<Waiting> batch) const;

  std::filesystem::path runs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Waiting> waiting_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace kvlab
