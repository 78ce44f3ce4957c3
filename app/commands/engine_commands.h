#pragma once

#include "app/commands/calibrate.h"
#include "app/commands/command.h"
#include "app/commands/label.h"
#include "app/commands/logits.h"
#include "app/commands/record.h"
#include "app/commands/tokenize.h"

namespace kvlab {

struct EngineArguments {
  RecordCommand record;
  LogitsCommand logits;
  LabelCommand label;
  CalibrateCommand calibrate;
  TokenizeCommand tokenize;
};

// `arguments` must live until the chosen command has run.
void add_engine_commands(CLI::App& app, EngineArguments& arguments, Command& chosen);

}  // namespace kvlab
