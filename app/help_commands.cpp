#include "app/help_commands.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <ostream>

#include "app/commands/cite.h"
#include "app/commands/complete.h"
#include "app/commands/completion.h"
#include "app/commands/describe.h"
#include "app/commands/front_door.h"
#include "app/commands/offers.h"
#include "app/schema/schema.h"
#include "base/text.h"

namespace kvlab {

namespace {

using Choose = std::function<void(std::function<int(std::ostream&)>)>;

// 0 if standard output is no terminal.
std::size_t terminal_columns() {
  winsize size{};
  return ::isatty(STDOUT_FILENO) == 1 && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

int print_list(const HelpArguments& a, std::ostream& out) {
  if (a.kind.empty()) {
    out << (a.json ? kinds_as_json() : join(list_kinds(), "\n") + "\n");
    return 0;
  }
  const std::vector<Item> items = list_items(a.kind);
  out << (a.json ? items_as_json(items, false) : items_as_text(items, terminal_columns()));
  return 0;
}

int print_description(const HelpArguments& a, std::ostream& out) {
  const std::vector<Item> items = describe_items(a.name);
  if (a.json) {
    out << items_as_json(items, true);
    return 0;
  }
  for (const Item& item : items) out << description_as_text(item);
  return 0;
}

void add_lists(CLI::App& app, HelpArguments& a, const Choose& choose) {
  CLI::App* list = app.add_subcommand("list", "what experiments can name: " + join(list_kinds(), ", "));
  list->add_option("kind", a.kind, join(list_kinds(), ", ") + "; default: print these kinds")
      ->check(offers(Offer::kWords, join(list_kinds(), " ")));
  list->add_flag("--json", a.json, "as JSON");
  list->callback([&a, choose] { choose([&a](std::ostream& out) { return print_list(a, out); }); });
  CLI::App* describe = app.add_subcommand(
      "describe", "a policy's source and parameters, or what a model or GPU is; a model also by its config.json or folder");
  describe->add_option("name", a.name, "as `kvlab list` prints it, or the path of a model")
      ->required()
      ->check(offers(Offer::kNames, join(list_kinds(), " ")))
      ->check(offers(Offer::kFiles));
  describe->add_flag("--json", a.json, "as JSON");
  describe->callback([&a, choose] { choose([&a](std::ostream& out) { return print_description(a, out); }); });
}

void add_completion(CLI::App& app, HelpArguments& a, const Choose& choose) {
  CLI::App* completion = app.add_subcommand("completion", "print a script that completes command lines in bash, zsh or fish");
  completion->add_option("shell", a.shell, "bash, zsh or fish")->required()->check(offers(Offer::kWords, join(completion_shells(), " ")));
  completion->callback([&a, choose] {
    choose([&a](std::ostream& out) {
      out << completion_script(a.shell);
      return 0;
    });
  });
  CLI::App* complete = app.add_subcommand("complete", "print the words that may replace the last of these")->group("");
  complete->add_option("words", a.words, "of a command line, after --");
  complete->callback([&a, &app, choose] {
    choose([&a, &app](std::ostream& out) {
      add_front_door(app);
      out << completion_as_text(completion_of(app, a.words));
      return 0;
    });
  });
}

}  // namespace

void add_help_commands(CLI::App& app, HelpArguments& a, const Choose& choose) {
  add_lists(app, a, choose);
  CLI::App* schema = app.add_subcommand("schema", "print the JSON Schema of experiment files, for editors");
  schema->callback([choose] {
    choose([](std::ostream& out) {
      out << experiment_schema();
      return 0;
    });
  });
  add_completion(app, a, choose);
  CLI::App* cite = app.add_subcommand("cite", "print BibTeX of what a result or these policies rest on, and of KVLab");
  cite->add_option("name", a.cited, "results folders, and policies as `kvlab list` prints them")
      ->required()
      ->check(offers(Offer::kNames, join(cited_kinds(), " ")))
      ->check(offers(Offer::kResults));
  cite->callback([&a, choose] {
    choose([&a](std::ostream& out) {
      out << citations(a.cited);
      return 0;
    });
  });
}

}  // namespace kvlab
