#include "app/runs/sweep/run_publisher.h"

#include <chrono>
#include <utility>

#include "app/results/safe_files.h"

namespace kvlab {

namespace {

constexpr std::size_t kMostWaiting = 64;
constexpr std::chrono::seconds kLongestWait{1};

template <class Work>
std::exception_ptr error_of(const Work& work) {
  try {
    work();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

RunPublisher::RunPublisher(std::filesystem::path runs) : runs_(std::move(runs)), thread_([this] { loop(); }) {}

RunPublisher::~RunPublisher() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RunPublisher::add(FreshRun run, Done done) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.size() < kMostWaiting; });
  waiting_.push_back({std::move(run), std::move(done)});
  const bool is_heard = waiting_.size() == 1 || waiting_.size() == kMostWaiting;
  lock.unlock();
  if (is_heard) changed_.notify_all();
}

void RunPublisher::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_over_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    changed_.wait_for(lock, kLongestWait, [&] { return is_over_ || waiting_.size() >= kMostWaiting; });
    std::vector<Waiting> batch = std::exchange(waiting_, {});
    lock.unlock();
    changed_.notify_all();
    publish(std::move(batch));
    lock.lock();
  }
}

void RunPublisher::publish(std::vector<Waiting> batch) const {
  const bool are_on_disk = sync_file_system(runs_);
  std::vector<std::exception_ptr> errors;
  for (Waiting& one : batch)
    errors.push_back(error_of([&] {
      if (!are_on_disk) one.run.sync();  // throws for a run that cannot be written
      one.run.publish();
    }));
  const std::exception_ptr of_names = error_of([&] { sync_path(runs_); });
  for (std::size_t i = 0; i < batch.size(); ++i) batch[i].done(errors[i] ? errors[i] : of_names);
}

}  // namespace kvlab
