# Writes OUTPUT, a C++ file with the hash of each source in ROOT and the build's SETTINGS (app/results/code_version.h). A source that registers
# policies and has no header of its own name is used by nothing but the runs that make its policies.
#   cmake -DROOT=... -DOUTPUT=... -DSETTINGS=... -P source_table.cmake
set(sources)
foreach(folder base kernels policies serving sim engine traces calibrate app)
  file(GLOB_RECURSE found RELATIVE ${ROOT} ${ROOT}/${folder}/*.cpp ${ROOT}/${folder}/*.h ${ROOT}/${folder}/*.cu ${ROOT}/${folder}/*.cuh)
  list(APPEND sources ${found})
endforeach()
list(SORT sources)
set(rows "")
foreach(source ${sources})
  file(SHA256 ${ROOT}/${source} hash)
  string(SUBSTRING ${hash} 0 16 hash)
  set(is_policy false)
  string(REGEX REPLACE "\\.cpp$" ".h" header ${source})
  if(source MATCHES "^policies/.*\\.cpp$" AND NOT EXISTS ${ROOT}/${header})
    file(STRINGS ${ROOT}/${source} registered REGEX "KVLAB_REGISTER\\(" LIMIT_COUNT 1)
    if(registered)
      set(is_policy true)
    endif()
  endif()
  string(APPEND rows "    {\"${source}\", \"${hash}\", ${is_policy}},\n")
endforeach()
string(REGEX REPLACE "[\\\"]" "'" settings "${SETTINGS}")
file(WRITE ${OUTPUT} "#include \"app/results/code_version.h\"\n\nnamespace kvlab {\n\nnamespace {\n\nconstexpr SourceFile kSources[] = {\n${rows}};\n\n}  // namespace\n\n"
  "std::span<const SourceFile> source_table() { return kSources; }\n\n"
  "std::string_view build_settings() { return \"${settings}\"; }\n\n}  // namespace kvlab\n")
