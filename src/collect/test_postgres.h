// A PostgreSQL server of the test's own: its files in a temporary directory, its socket too, no port.
#pragma once

#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/filesystem.h"

namespace molen::collect {

class PrivatePostgres {
 public:
  // Makes the files of a server; throws Error, with what to install, if the machine has no PostgreSQL.
  PrivatePostgres() {
    for (const auto& entry : fs::directory_iterator("/usr/lib/postgresql", none_))
      if (fs::exists(entry.path() / "bin/initdb")) programs_ = entry.path() / "bin";
    if (programs_.empty()) throw Error("no PostgreSQL in /usr/lib/postgresql; `tools/setup.sh test` brings it");
    folder_ = fs::temp_directory_path() / fmt::format("molen_pg_{}", ::getpid());
    fs::create_directories(folder_);
    if (::geteuid() == 0) {  // the server refuses to run as root
      const passwd* user = ::getpwnam("postgres");
      if (user == nullptr) throw Error("no user postgres; `tools/setup.sh test` brings it");
      if (::chown(folder_.c_str(), user->pw_uid, user->pw_gid) != 0) throw Error("chown {}", folder_.string());
      as_user_ = "runuser -u postgres -- ";
    }
    run("initdb -U molen -A trust -E UTF8 --locale=C --no-sync");
  }
  ~PrivatePostgres() {
    if (running_) stop("immediate");
    fs::remove_all(folder_, none_);
  }
  PrivatePostgres(const PrivatePostgres&) = delete;
  PrivatePostgres& operator=(const PrivatePostgres&) = delete;

  // `settings`: options of the server, such as "-c fsync=off".
  void start(const std::string& settings = "") {
    run(fmt::format("pg_ctl -w -t 60 -l {0}/log -o \"-k {0} -c listen_addresses= {1}\" start", folder_.string(),
                    settings));
    running_ = true;
  }
  // "immediate": as a crash; the next start recovers from the log. "fast": cuts connections and ends in order.
  void stop(const std::string& mode) {
    running_ = false;
    run(fmt::format("pg_ctl -w -t 60 -m {} stop", mode));
  }
  std::string uri(const std::string& database = "postgres") const {
    return fmt::format("postgresql://molen@/{}?host={}", database, folder_.string());
  }

  // The server that the tests of this program share. It runs.
  static PrivatePostgres& shared() {
    static PrivatePostgres server;
    if (!server.running_) server.start();
    return server;
  }

 private:
  void run(const std::string& words) {
    const std::string program = words.substr(0, words.find(' '));
    const std::string command = fmt::format("cd {0} && {1}{2}/{3} -D {0}/data{4} >>{0}/commands 2>&1", folder_.string(),
                                            as_user_, programs_.string(), program, words.substr(program.size()));
    if (std::system(command.c_str()) == 0) return;
    std::string said;
    for (const char* file : {"commands", "log"})
      if (fs::exists(folder_ / file)) {
        const File text = File::open(folder_ / file);
        std::string all(static_cast<std::size_t>(text.size()), '\0');
        text.read(all.data(), all.size(), 0);
        said += all;
      }
    throw Error("{} failed:\n{}", command, said);
  }

  fs::path programs_, folder_;
  std::string as_user_;
  bool running_ = false;
  std::error_code none_;
};

}  // namespace molen::collect
