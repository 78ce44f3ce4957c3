#include "base/usage.h"

namespace kvlab {

namespace {

thread_local UsageLog* newest = nullptr;

}  // namespace

UsageLog::UsageLog() : outer_(newest) { newest = this; }

UsageLog::~UsageLog() { newest = outer_; }

void UsageLog::note_source(const char* file) {
  if (newest != nullptr) newest->sources_.insert(file);
}

void UsageLog::note_file(const std::string& file) {
  if (newest != nullptr) newest->files_.insert(file);
}

}  // namespace kvlab
