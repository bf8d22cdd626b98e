# Writes OUTPUT, the C++ source of cluster::shipped_files(), from the TOML files of the list DESCRIPTIONS. It runs at build time.
set(delimiter molen_toml)
set(rows "")
foreach(description IN LISTS DESCRIPTIONS)
  get_filename_component(name ${description} NAME_WE)
  file(READ ${description} text)
  string(FIND "${text}" ")${delimiter}\"" end)
  if(NOT end EQUAL -1)
    message(FATAL_ERROR "${description}: the text has )${delimiter}\", which ends a raw string literal; write it otherwise")
  endif()
  string(APPEND rows "    {\"${name}\", R\"${delimiter}(${text})${delimiter}\"},\n")
endforeach()
file(WRITE ${OUTPUT} "// Written by src/cluster/embed.cmake from clusters/*.toml.
#include \"cluster/shipped_files.h\"

namespace molen::cluster {

std::span<const ShippedFile> shipped_files() {
  static constexpr ShippedFile kFiles[] = {
${rows}  };
  return kFiles;
}

}  // namespace molen::cluster
")
