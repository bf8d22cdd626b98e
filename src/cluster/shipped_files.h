// The texts of clusters/*.toml, which the build compiles in (embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace molen::cluster {

struct ShippedFile {
  std::string_view name;  // the file's name without .toml
  std::string_view text;
};

std::span<const ShippedFile> shipped_files();

}  // namespace molen::cluster
