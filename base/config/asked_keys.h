#pragma once

#include <string>
#include <vector>

namespace kvlab {

// Keys that readers asked one config for on this thread during the object's life, present or not. The newest object of a thread gets the
// notes.
class AskedKeys {
 public:
  struct Asked {
    std::string path;                                 // "memory.num_blocks"
    std::string type, fallback, range, meaning = {};  // as in ParamDoc; type "": a mapping, or only looked for
  };

  // file: name of the config, also with a place after it.
  explicit AskedKeys(std::string file);
  ~AskedKeys();
  AskedKeys(const AskedKeys&) = delete;
  AskedKeys& operator=(const AskedKeys&) = delete;

  [[nodiscard]] const std::vector<Asked>& all() const { return all_; }

  static bool listens();  // an object exists on this thread
  static void note(const std::string& file, Asked asked);

 private:
  std::string file_;
  AskedKeys* outer_;
  std::vector<Asked> all_;
};

}  // namespace kvlab
