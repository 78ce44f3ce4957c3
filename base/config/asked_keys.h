#pragma once

#include <string>
#include <vector>

namespace kvlab {

// Keys that readers asked one config for on this thread while the object exists, whether the config has them or not: what a format knows.
// The newest object of a thread gets the notes.
class AskedKeys {
 public:
  struct Asked {
    std::string path;                                 // "memory.num_blocks"
    std::string type, fallback, range, meaning = {};  // as ParamDoc has them; type "": a mapping, or only looked for
  };

  // file: the name of the config; a name with a place after it counts too.
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
