// The text of fetched packages, read from their archives.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "data/fetch.h"

namespace molen::data {

// The packages of a fetch folder, unpacked again from their archives. The files in root/ beside the archives are not
// used: they are for people to look at, and may have been changed. Each archive is compared with fetch.json before it
// is unpacked. The licence in fetch.json is compared with the unpacked copyright file.
class UnpackedPackages {
 public:
  // Unpacks into `scratch`, which must be the caller's own; the destructor removes it.
  UnpackedPackages(const fs::path& fetched, const fs::path& scratch, Progress progress);
  ~UnpackedPackages();
  UnpackedPackages(const UnpackedPackages&) = delete;
  UnpackedPackages& operator=(const UnpackedPackages&) = delete;

  // Returns the folder with the files of `package`. Throws UsageError when the archive is missing or altered, or when
  // its licence differs.
  fs::path root(const std::string& package);

 private:
  void unpack(const FetchedPackage& package);
  const FetchedPackage& find(const std::string& package) const;

  fs::path fetched_, scratch_;
  Progress progress_;
  FetchRecord record_;
  std::set<std::string> unpacked_;
};

}  // namespace molen::data
