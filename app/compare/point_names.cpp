#include "app/compare/point_names.h"

#include <memory>
#include <utility>

#include "base/config/config_file.h"
#include "base/config/params.h"

namespace kvlab {

namespace {

std::map<std::string, PointNames::System> read_systems(Params p) {
  std::map<std::string, PointNames::System> systems;
  for (const std::string& key : p.keys()) {
    auto [hardware, own] = p.named(key, "", "a name in profiles/hardware");
    systems[key] = {hardware, own.required<int>("gpus", 1, 1 << 20, "GPUs that fast links join")};
    own.reject_unread();
  }
  return systems;
}

std::map<std::string, PointNames::Model> read_models(Params p) {
  std::map<std::string, PointNames::Model> models;
  for (const std::string& key : p.keys()) {
    auto [name, own] = p.named(key, "", "a name in profiles/models");
    models[key] = {name, own.choice("format", {"row", "own"}, 0, "whose word counts on how weights are stored") == 1};
    own.reject_unread();
  }
  return models;
}

std::map<std::string, std::string> read_texts(Params p, const std::string& meaning) {
  std::map<std::string, std::string> texts;
  for (const std::string& key : p.keys()) texts[key] = p.text(key, meaning);
  return texts;
}

}  // namespace

PointNames load_point_names(const std::string& file) {
  const std::shared_ptr<const ConfigFile> config = load_config(file);
  Params p(config, std::make_shared<const Choices>(), "names of points");
  PointNames names;
  names.systems = read_systems(p.child("systems", "systems"));
  names.models = read_models(p.child("models", "models"));
  names.kv_types = read_texts(p.child("kv_cache", "kv_cache"), "type of cached keys and values");
  names.schedulers = read_texts(p.child("schedulers", "schedulers"), "scheduler of the engine's steps");
  for (const std::string& key : p.child("formats", "formats").keys()) names.formats[key] = std::as_const(config->root)["formats"][key];
  p.reject_unread();
  return names;
}

}  // namespace kvlab
