#include "app/runs/plan/model_folder.h"

#include <filesystem>

#include "app/runs/plan/input_files.h"
#include "base/hugging_face.h"
#include "base/usage.h"

namespace kvlab {

std::string read_model_folder(const Params& p, const std::string& text) {
  const std::string path = p.resolve_file(text);
  std::error_code error;
  if (std::filesystem::is_directory(path, error) || !is_hub_id(text)) return path;
  const std::string folder = p.reading("model", [&] { return weights_folder(text); });
  for (const std::filesystem::path& file : files_of_model(folder)) UsageLog::note_file(file.string());
  return folder;
}

}  // namespace kvlab
