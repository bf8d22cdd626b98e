#include "collect/sqlite/sqlite.h"

#include <sqlite3.h>

#include <optional>
#include <utility>

#include "base/error.h"
#include "base/filesystem.h"
#include "collect/job_labels.h"
#include "collect/schema.h"

namespace molen::collect {
namespace {

// SQLite's words for a call that failed.
class SqliteFailure : public Error {
 public:
  SqliteFailure(int code, const std::string& what) : Error(what), code_(code) {}
  int code() const { return code_ & 0xFF; }  // without the extension

 private:
  int code_;
};

// A prepared statement. Parameters count from 1, columns from 0.
class Statement {
 public:
  Statement(sqlite3* db, const std::string& sql) : db_(db) {
    check(sqlite3_prepare_v2(db, sql.c_str(), -1, &statement_, nullptr));
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // The text must live until the statement has run.
  Statement& bind(int at, const std::string& text) {
    check(sqlite3_bind_text(statement_, at, text.data(), static_cast<int>(text.size()), SQLITE_STATIC));
    return *this;
  }
  Statement& bind(int at, std::int64_t value) {
    check(sqlite3_bind_int64(statement_, at, value));
    return *this;
  }
  Statement& bind(int at, double value) {
    check(sqlite3_bind_double(statement_, at, value));
    return *this;
  }
  Statement& bind_null(int at) {
    check(sqlite3_bind_null(statement_, at));
    return *this;
  }
  Statement& bind_known(int at, const std::string& text) { return text.empty() ? bind_null(at) : bind(at, text); }

  // Runs the statement; returns the integer in the first column of its first row, if it has one.
  std::optional<std::int64_t> run() {
    const int code = sqlite3_step(statement_);
    std::optional<std::int64_t> value;
    if (code == SQLITE_ROW) value = sqlite3_column_int64(statement_, 0);
    sqlite3_reset(statement_);
    if (code != SQLITE_ROW && code != SQLITE_DONE) check(code);
    return value;
  }

  double number(int column) const { return sqlite3_column_double(statement_, column); }
  std::string text(int column) const {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return text != nullptr ? text : "";
  }
  void reset() { sqlite3_reset(statement_); }

  // Steps to the next row; false at the end.
  bool next() {
    const int code = sqlite3_step(statement_);
    if (code != SQLITE_ROW && code != SQLITE_DONE) check(code);
    return code == SQLITE_ROW;
  }
  // Returns the columns of the present row. Numbers have digits enough for the same double.
  std::vector<std::optional<std::string>> row() const {
    std::vector<std::optional<std::string>> columns;
    for (int i = 0; i < sqlite3_column_count(statement_); ++i) {
      const int type = sqlite3_column_type(statement_, i);
      if (type == SQLITE_NULL)
        columns.emplace_back();
      else if (type == SQLITE_FLOAT)
        columns.emplace_back(fmt::format("{}", sqlite3_column_double(statement_, i)));
      else
        columns.emplace_back(reinterpret_cast<const char*>(sqlite3_column_text(statement_, i)));
    }
    return columns;
  }

 private:
  void check(int code) const {
    if (code != SQLITE_OK) throw SqliteFailure(code, sqlite3_errmsg(db_));
  }

  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
};

// An open file with its prepared statements.
class Connected {
 public:
  Connected(const std::filesystem::path& file, double busy_s, bool create) {
    const int code = sqlite3_open_v2(
        file.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (create ? SQLITE_OPEN_CREATE : 0), nullptr);
    if (code != SQLITE_OK) {
      const std::string why = db_ != nullptr ? sqlite3_errmsg(db_) : sqlite3_errstr(code);
      sqlite3_close_v2(std::exchange(db_, nullptr));
      throw SqliteFailure(code, why);
    }
    sqlite3_busy_timeout(db_, static_cast<int>(busy_s * 1000.0));
  }
  ~Connected() { sqlite3_close_v2(db_); }
  Connected(const Connected&) = delete;
  Connected& operator=(const Connected&) = delete;

  void execute(const std::string& sql) {
    char* why = nullptr;
    const int code = sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, &why);
    if (code == SQLITE_OK) return;
    const std::string text = why != nullptr ? why : sqlite3_errstr(code);
    sqlite3_free(why);
    throw SqliteFailure(code, text);
  }
  bool in_transaction() const { return sqlite3_get_autocommit(db_) == 0; }
  sqlite3* get() const { return db_; }

 private:
  sqlite3* db_ = nullptr;
};

// Returns whether the file has tables of molen. Throws VersionError if they are those of another version.
bool sqlite_version_there(Connected& db, const std::string& name) {
  if (!Statement(db.get(), "SELECT 1 FROM sqlite_master WHERE name = 'energy_version'").run()) return false;
  require_version(Statement(db.get(), "SELECT version FROM energy_version").run().value_or(0), name);
  return true;
}

bool sqlite_version_there(Connected& db, const LaterTables& tables, const std::string& name) {
  const std::string& table = tables.version_table;
  if (!Statement(db.get(), "SELECT 1 FROM sqlite_master WHERE name = " + sql_text(table)).run()) return false;
  require_version(Statement(db.get(), "SELECT version FROM " + table).run().value_or(0), tables, name);
  return true;
}

// Rolls back unless `commit` was called.
class SqliteTransaction {
 public:
  explicit SqliteTransaction(Connected& db) : db_(db) { db_.execute("BEGIN IMMEDIATE"); }
  ~SqliteTransaction() {
    if (!db_.in_transaction()) return;
    try {
      db_.execute("ROLLBACK");
    } catch (const SqliteFailure&) {  // the connection is closed next, which rolls back too
    }
  }
  SqliteTransaction(const SqliteTransaction&) = delete;
  SqliteTransaction& operator=(const SqliteTransaction&) = delete;
  void commit() { db_.execute("COMMIT"); }

 private:
  Connected& db_;
};

struct SqliteStatements {
  explicit SqliteStatements(sqlite3* db)
      : enter_session(db,
                      "INSERT INTO energy_sessions (node, session, last_seq) VALUES (?, ?, 0) ON CONFLICT DO NOTHING"),
        session_id(db, "SELECT id FROM energy_sessions WHERE node = ? AND session = ?"),
        last_number(db, "SELECT last_seq FROM energy_sessions WHERE id = ?"),
        raise_number(db, "UPDATE energy_sessions SET last_seq = ? WHERE id = ?"),
        period(db, "INSERT INTO energy_periods VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
        event(db, "INSERT INTO energy_events VALUES (?, ?, ?, ?, ?, ?, ?)"),
        labels(db, "INSERT OR REPLACE INTO energy_jobs VALUES (?, ?, ?, ?, ?)"),
        limitable(db, "INSERT OR REPLACE INTO energy_limitable VALUES (?, ?, ?)"),
        limits(db, "SELECT until_s, limits FROM energy_limits WHERE node = ?"),
        order(db, "INSERT OR REPLACE INTO energy_limits VALUES (?, ?, ?)") {}

  Statement enter_session, session_id, last_number, raise_number, period, event, labels, limitable, limits, order;
};

class SqliteDatabase : public Database {
 public:
  SqliteDatabase(std::filesystem::path file, double busy_s) : file_(std::move(file)), busy_s_(busy_s) {}

  std::string name() const override { return "SQLite " + file_.string(); }

  // `create`: make the file if it is absent. It is made at the start only: one that vanishes later held records.
  void connect(bool create) {
    db_ = std::make_unique<Connected>(file_, busy_s_, create);
    // A commit is on the disk when it returns. Readers do not hold up the collector.
    db_->execute("PRAGMA journal_mode = WAL");
    db_->execute("PRAGMA synchronous = EXTRA");  // where a file system refuses WAL, the directory is synced as well
    create_tables();
    statements_ = std::make_unique<SqliteStatements>(db_->get());
    opened_ = present_file();
  }

  // SQLite takes some words for something else than a file, such as a database in memory, which is not durable.
  void require_file() const {
    if (!opened_) throw UsageError("{}: this is no name of a file; write ./{} if it is one", name(), file_.string());
  }

  Result<Stored> store(std::span<const Batch> batches) override {
    return in_file<Stored>([&] { return store_now(batches); });
  }
  Result<std::vector<LimitOrder>> answer(std::span<const Question> questions, double now_s) override {
    return in_file<std::vector<LimitOrder>>([&] { return answer_now(questions, now_s); });
  }
  Result<Stored> order(std::span<const NodeOrder> orders) override {
    return in_file<Stored>([&] { return order_now(orders); });
  }

 private:
  // Calls f() with the file open.
  template <class T, class F>
  Result<T> in_file(F f) {
    try {
      // SQLite would go on writing into a file that was removed, whose records nobody can read.
      const auto present = present_file();
      if (!present)
        return Failure{fmt::format("{}: the file is gone; put it back, or start the collector anew", name())};
      if (present != opened_) disconnect();
      if (!db_) connect(false);
      return f();
    } catch (const SqliteFailure& error) {
      disconnect();
      return Failure{fmt::format("{}: {}", name(), error.what())};
    } catch (const VersionError& error) {  // someone replaced the file; the right one may come back
      disconnect();
      return Failure{error.what()};
    }
  }

  // Device and number of the file that the path names now.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> present_file() const {
    FileStatus status;
    std::error_code none;
    const auto path = std::filesystem::canonical(file_, none);
    if (none || file_system().status(path, status) != 0) return std::nullopt;
    return std::pair(status.device, status.inode);
  }

  void disconnect() {
    statements_.reset();
    db_.reset();
  }

  void create_tables() {
    SqliteTransaction transaction(*db_);
    if (!sqlite_version_there(*db_, name()))
      for (const std::string& sql : schema_statements(Dialect::kSqlite)) db_->execute(sql);
    for (const LaterTables& tables : later_tables()) {
      if (sqlite_version_there(*db_, tables, name())) continue;
      for (const std::string& sql : tables.statements) db_->execute(sql);
      if (tables.from_events) enter_told_labels();
    }
    transaction.commit();
  }

  void enter_told_labels() {
    SqliteStatements statements(db_->get());
    for (Statement told(db_->get(), labels_told()); told.next();)
      if (const auto labels = job_labels_of({0, "job_labels", told.text(1), 0}))
        enter(statements.labels, static_cast<std::int64_t>(told.number(0)), *labels);
  }

  static void enter(Statement& s, std::int64_t id, const JobLabels& labels) {
    s.bind(1, id).bind(2, labels.job).bind_known(3, labels.group);
    s.bind_known(4, labels.account).bind_known(5, labels.tag).run();
  }

  Stored store_now(std::span<const Batch> batches) {
    SqliteStatements& s = *statements_;
    SqliteTransaction transaction(*db_);
    LastNumbers last = sessions_of(batches);
    std::map<std::pair<std::string, std::string>, std::int64_t> ids;
    for (auto& [key, number] : last) {
      s.enter_session.bind(1, key.first).bind(2, key.second).run();
      const auto id = s.session_id.bind(1, key.first).bind(2, key.second).run();
      MOLEN_CHECK(id.has_value(), "a session that was entered is not there");
      ids[key] = *id;
      number = s.last_number.bind(1, *id).run().value_or(0);
    }
    Stored stored;
    for (const std::size_t i : new_batches(batches, last)) {
      const std::int64_t id = ids[{batches[i].node, batches[i].session}];
      for (const Period& p : batches[i].periods) insert(id, batches[i], p);
      for (const Event& e : batches[i].events) insert(id, batches[i], e);
      stored += {1, 0, std::ssize(batches[i].periods), std::ssize(batches[i].events)};
    }
    for (const auto& [key, number] : last) s.raise_number.bind(1, number).bind(2, ids[key]).run();
    transaction.commit();
    stored.duplicates = std::ssize(batches) - stored.batches;
    return stored;
  }

  std::vector<LimitOrder> answer_now(std::span<const Question> questions, double now_s) {
    SqliteTransaction transaction(*db_);
    std::vector<LimitOrder> orders;
    for (const Question& q : questions) {
      const std::string limitable = to_json(q.limits).dump();
      statements_->limitable.bind(1, q.node).bind(2, now_s).bind(3, limitable).run();
      Statement& s = statements_->limits.bind(1, q.node);
      orders.push_back(s.next() ? order_from_row(s.text(1), s.number(0), now_s, q.node) : LimitOrder{});
      s.reset();
    }
    transaction.commit();
    return orders;
  }

  Stored order_now(std::span<const NodeOrder> orders) {
    SqliteTransaction transaction(*db_);
    for (const NodeOrder& o : orders) {
      const std::string limits = to_json(o.limits).dump();
      statements_->order.bind(1, o.node).bind(2, o.until_s).bind(3, limits).run();
    }
    transaction.commit();
    return {};
  }

  void insert(std::int64_t id, const Batch& batch, const Period& p) {
    Statement& s = statements_->period;
    const std::string source = energy::name_of(p.source);
    s.bind(1, id).bind(2, batch.seq).bind(3, batch.node).bind(4, p.scope).bind(5, p.start_s).bind(6, p.end_s);
    if (p.joules)
      s.bind(7, *p.joules);
    else
      s.bind_null(7);
    s.bind_known(8, p.reason).bind(9, p.meter).bind(10, source).bind(11, std::int64_t{p.counted});
    s.bind_known(12, p.job).bind_known(13, p.step).bind_known(14, p.user).run();
  }

  void insert(std::int64_t id, const Batch& batch, const Event& e) {
    statements_->event.bind(1, id).bind(2, batch.seq).bind(3, batch.node).bind(4, e.time_s).bind(5, e.kind);
    statements_->event.bind(6, e.text).bind(7, e.count).run();
    if (const auto labels = job_labels_of(e)) enter(statements_->labels, id, *labels);
  }

  const std::filesystem::path file_;
  const double busy_s_;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> opened_;
  std::unique_ptr<Connected> db_;
  std::unique_ptr<SqliteStatements> statements_;  // after db_: destroyed first
};

}  // namespace

std::unique_ptr<Database> open_sqlite(const std::filesystem::path& file, double busy_s) {
  auto database = std::make_unique<SqliteDatabase>(file, busy_s);
  try {
    database->connect(true);
    database->require_file();
  } catch (const SqliteFailure& error) {
    const bool unusable = error.code() == SQLITE_CANTOPEN || error.code() == SQLITE_NOTADB ||
                          error.code() == SQLITE_READONLY || error.code() == SQLITE_PERM;
    const std::string text = fmt::format("{}: {}", database->name(), error.what());
    if (unusable) throw UsageError("{}; name a file that may be written in a directory that exists", text);
    throw Error("{}", text);
  }
  return database;
}

DatabaseRows sqlite_rows(const std::filesystem::path& file, const std::string& sql) {
  const std::string name = "SQLite " + file.string();
  if (!std::filesystem::exists(file)) throw MissingFileError("{}: no such file", name);
  try {
    Connected db(file, 5.0, false);
    if (!sqlite_version_there(db, name)) throw no_tables(name);
    for (const LaterTables& tables : later_tables()) (void)sqlite_version_there(db, tables, name);
    DatabaseRows rows;
    for (Statement statement(db.get(), sql); statement.next();) rows.push_back(statement.row());
    return rows;
  } catch (const SqliteFailure& error) {
    throw Error("{}: {}", name, error.what());
  }
}

}  // namespace molen::collect
