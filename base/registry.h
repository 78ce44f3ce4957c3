#pragma once

#include <functional>
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
  std::string summary;  // one line: its purpose
  std::string source;   // paper, or system and version
};

// The known implementations of one interface by name. KVLAB_REGISTER adds one.
template <class Interface>
class Registry {
 public:
  using Make = std::function<std::unique_ptr<Interface>(Params&)>;
  struct Entry {
    Card card;
    Make make;
    std::string source;       // file that registered it, or the name that code_version() knows it by
    bool is_compiled = true;  // false: added while the program runs
  };

  template <class Policy>
  static bool add(Card card, const char* source = __builtin_FILE()) {
    const std::string name = card.name;
    const auto make = [](Params& p) -> std::unique_ptr<Interface> { return std::make_unique<Policy>(p); };
    const bool is_new = table().try_emplace(name, Entry{std::move(card), make, source}).second;
    if (!is_new) throw InternalError("two implementations are registered as '" + name + "'");
    return true;
  }

  // Adds an implementation while the program runs, such as a policy written in Python, or replaces one that was added this way. Not while
  // another thread reads the registry. InputError if a compiled implementation has the name.
  static void add_running(Card card, Make make, std::string source) {
    const auto found = table().find(card.name);
    if (found != table().end() && found->second.is_compiled) throw InputError("'" + card.name + "' is the name of a built-in policy");
    const std::string name = card.name;
    table().insert_or_assign(name, Entry{std::move(card), std::move(make), std::move(source), false});
  }

  // Builds `name` from its parameters and refuses parameters that it did not read. The error on an unknown name suggests similar
  // names, or lists the known ones.
  static std::unique_ptr<Interface> make(const std::string& name, Params& p, const std::string& kind) {
    const auto found = table().find(name);
    if (found == table().end()) p.fail("unknown " + kind + " '" + name + "'" + suggestion(name, names()));
    UsageLog::note_source(found->second.source.c_str());
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

// Registers Policy, a class in the same namespace, as an implementation of Interface when the program starts; the last arguments are
// the members of its Card. A policy's file ends in one such line:
//   KVLAB_REGISTER(Scheduler, Sarathi, "sarathi", "stall-free chunked prefill", "Agrawal et al. 2024");
// The variable is named after the class, so that files compiled as one (CMAKE_UNITY_BUILD) do not define the same one twice.
#define KVLAB_REGISTER(Interface, Policy, ...) \
  [[maybe_unused]] const bool Policy##_is_registered = ::kvlab::Registry<Interface>::add<Policy>(::kvlab::Card{__VA_ARGS__})
