#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvlab {

// Keys that readers asked one config for on this thread during the object's life, present or not. Only a thread's newest object gets them.
class AskedKeys {
 public:
  struct Asked {
    std::string path;                                 // "memory.num_blocks"
    std::string type, fallback, range, meaning = {};  // as in ParamDoc; type "": a mapping, or looked for
  };

  // `file`: the config's name, also with a place.
  explicit AskedKeys(std::string file) : file_(std::move(file)), outer_(std::exchange(newest_, this)) {}
  ~AskedKeys() { newest_ = outer_; }
  AskedKeys(const AskedKeys&) = delete;
  AskedKeys& operator=(const AskedKeys&) = delete;

  [[nodiscard]] const std::vector<Asked>& all() const { return all_; }

  static bool listens() { return newest_ != nullptr; }  // an object exists on this thread
  static void note(const std::string& file, Asked asked) {
    if (listens() && file.starts_with(newest_->file_)) newest_->all_.push_back(std::move(asked));
  }

 private:
  static inline thread_local AskedKeys* newest_ = nullptr;
  std::string file_;
  AskedKeys* outer_;
  std::vector<Asked> all_;
};

}  // namespace kvlab
