#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/params.h"
#include "base/text.h"
#include "base/usage.h"

namespace kvlab {

// The description of a policy that `kvlab list` and `kvlab describe` print, beside its parameters.
struct Card {
  std::string name;     // as written in YAML
  std::string summary;  // one line: what it does
  std::string source;   // paper, or system and version
};

// The known implementations of one interface by name. A policy's file ends in one line:
//   const bool registered = SchedulerRegistry::add<Sarathi>({"sarathi", "stall-free chunked prefill", "Agrawal et al. 2024"});
template <class Interface>
class Registry {
 public:
  struct Entry {
    Card card;
    std::unique_ptr<Interface> (*make)(Params&);
    const char* source;  // file that registered it
  };

  template <class Policy>
  static bool add(Card card, const char* source = __builtin_FILE()) {
    const std::string name = card.name;
    const auto make = [](Params& p) -> std::unique_ptr<Interface> { return std::make_unique<Policy>(p); };
    const bool is_new = table().try_emplace(name, Entry{std::move(card), make, source}).second;
    if (!is_new) throw InternalError("two implementations are registered as '" + name + "'");
    return true;
  }

  // Builds `name` from its parameters and refuses parameters that it did not read. For an unknown name the message lists the known ones.
  static std::unique_ptr<Interface> make(const std::string& name, Params& p, const std::string& kind) {
    const auto found = table().find(name);
    if (found == table().end()) p.fail("unknown " + kind + " '" + name + "'" + suggestion(name, names()));
    UsageLog::note_source(found->second.source);
    std::unique_ptr<Interface> made = found->second.make(p);
    p.reject_unread();
    return made;
  }

  static std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const auto& [name, entry] : table()) all.push_back(name);
    return all;
  }

  static const std::map<std::string, Entry>& table_view() { return table(); }

 private:
  static std::map<std::string, Entry>& table() {  // function-local, so that registration order across files does not matter
    static std::map<std::string, Entry> entries;
    return entries;
  }
};

}  // namespace kvlab
