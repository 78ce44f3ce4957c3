#include "base/config/registration.h"

#include "base/text.h"
#include "base/usage.h"

namespace kvlab {

void fail_unknown(const Params& p, const std::string& kind, const std::string& name, const std::vector<std::string>& known) {
  p.fail("unknown " + kind + " '" + name + "'" + suggestion(name, known));
}

void note_registered_source(const std::string& source) { UsageLog::note_source(source); }

}  // namespace kvlab
