#include "data/packages.h"

#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace molen::data {

UnpackedPackages::UnpackedPackages(const fs::path& fetched, const fs::path& scratch, Progress progress)
    : fetched_(fetched), scratch_(scratch), progress_(std::move(progress)), record_(read_fetch_record(fetched)) {
  make_directories(scratch_ / "root");
}

UnpackedPackages::~UnpackedPackages() {
  try {
    remove_tree(scratch_);
  } catch (const Error&) {  // the next run removes it
  }
}

const FetchedPackage& UnpackedPackages::find(const std::string& package) const {
  for (const FetchedPackage& p : record_.packages)
    if (p.package == package) return p;
  throw UsageError("{}: no package '{}' in fetch.json", fetched_.string(), package);
}

void UnpackedPackages::unpack(const FetchedPackage& p) {
  if (!unpacked_.insert(p.package).second) return;
  const fs::path archive = fetched_ / "archives" / p.archive;
  constexpr const char* kAgain = "run `molen data fetch` again";
  if (!path_exists(archive))
    throw UsageError("{}: is gone, and the text of a package is read from its archive; {}", archive.string(), kAgain);
  if (sha256_file(archive) != p.archive_sha256)
    throw UsageError("{}: its SHA-256 is not the one that fetch.json recorded: altered; {}", archive.string(), kAgain);
  if (p.checked.empty() && progress_)
    progress_(fmt::format("note: {} {} is in no signed package index, so nothing shows that it comes from Debian",
                          p.package, p.version));
  unpack_archive(archive, scratch_ / "root" / p.package);
}

fs::path UnpackedPackages::root(const std::string& package) {
  const FetchedPackage& p = find(package);
  unpack(p);
  // The copyright file may be in another package.
  const std::string owner = p.licence.evidence.substr(0, p.licence.evidence.find('/'));
  if (!owner.empty()) unpack(find(owner));
  const Licence held = licence_of_package(scratch_, package);
  if (held.spdx != p.licence.spdx || held.evidence_sha256 != p.licence.evidence_sha256)
    throw UsageError(
        "{}: fetch.json gives the licence {} to {}, and the copyright file in its archive gives it {}; run `molen data "
        "fetch` again",
        fetched_.string(), p.licence.spdx, package, held.spdx);
  return scratch_ / "root" / package;
}

}  // namespace molen::data
