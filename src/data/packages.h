// The text of fetched packages, as their archives hold it.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "data/fetch.h"

namespace molen::data {

// Packages of a fetch folder, unpacked anew from their archives: root/ beside the archives is for people to look at and
// may have been changed since. Before a package is unpacked its archive is compared with fetch.json, and the licence
// that fetch.json gives it with the copyright file that comes out.
class UnpackedPackages {
 public:
  // Unpacks into `scratch`, which must be the caller's own and is removed in the end.
  UnpackedPackages(const fs::path& fetched, const fs::path& scratch, Progress progress);
  ~UnpackedPackages();
  UnpackedPackages(const UnpackedPackages&) = delete;
  UnpackedPackages& operator=(const UnpackedPackages&) = delete;

  // Where the files of `package` are. Throws UsageError where the archive is gone or altered, or the licence is
  // another.
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
