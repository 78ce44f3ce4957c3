#include "base/config/asked_keys.h"

#include <utility>

namespace kvlab {

namespace {

thread_local AskedKeys* newest_asked_keys = nullptr;

}  // namespace

AskedKeys::AskedKeys(std::string file) : file_(std::move(file)), outer_(newest_asked_keys) { newest_asked_keys = this; }

AskedKeys::~AskedKeys() { newest_asked_keys = outer_; }

bool AskedKeys::listens() { return newest_asked_keys != nullptr; }

void AskedKeys::note(const std::string& file, Asked asked) {
  if (newest_asked_keys != nullptr && file.starts_with(newest_asked_keys->file_)) newest_asked_keys->all_.push_back(std::move(asked));
}

}  // namespace kvlab
