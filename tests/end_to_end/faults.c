/* Loaded into molen by LD_PRELOAD, for tests: the process ends within a move, or stands still within a save.
   DIE_AT_MOVE=N: ends at its (N+1)th rename to a name with ".abandoned-" or ".damaged-" in it.
   COUNT_OPENS=FILE: gets a line with the path of each state.json and index.json that is opened for reading.
   COUNT_READS=FILE: gets a line "RANK PATH BYTES" for each read of a file of a shard (.bin, .idx); RANK as mpirun numbers it.
   LOG_SYNCS=FILE: gets a line "sync PATH" for each fsync, and "rename PATH" with the new name of each rename.
   FAIL_OPEN=TEXT: opening a file for reading fails with EIO where its path has TEXT in it.
   SLOW_READS=FILE: has lines "BEGIN END HOW_MANY" with seconds of the monotonic clock; between them the first HOW_MANY
   loaders of the process do not read .bin files, as if their storage stood still.
   HOLD_SAVE=FILE: the first fsync within a checkpoint that is not finished makes FILE, and waits until it is gone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void log_call(const char* what, const char* path) {
  const char* file = getenv("LOG_SYNCS");
  int out = file ? ((int (*)(const char*, int, int))dlsym(RTLD_NEXT, "open"))(file, O_CREAT | O_WRONLY | O_APPEND, 0644) : -1;
  if (out < 0) return;
  dprintf(out, "%s %s\n", what, path);
  close(out);
}

int rename(const char* from, const char* to) {
  static int seen = 0;
  log_call("rename", to);
  const char* at = getenv("DIE_AT_MOVE");
  if (at && (strstr(to, ".abandoned-") || strstr(to, ".damaged-")) && seen++ == atoi(at)) _exit(9);
  return ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(from, to);
}

static int counted(const char* call, const char* path, int flags, int mode) {
  int (*real)(const char*, int, int) = (int (*)(const char*, int, int))dlsym(RTLD_NEXT, call);
  const char* fails = getenv("FAIL_OPEN");
  if (fails && (flags & O_ACCMODE) == O_RDONLY && strstr(path, fails)) {
    errno = EIO;
    return -1;
  }
  const char* file = getenv("COUNT_OPENS");
  if (file && (flags & O_ACCMODE) == O_RDONLY && (strstr(path, "/state.json") || strstr(path, "/index.json"))) {
    int out = real(file, O_CREAT | O_WRONLY | O_APPEND, 0644);
    dprintf(out, "%s\n", path);
    close(out);
  }
  return real(path, flags, mode);
}

static int mode_of(int flags, va_list rest) { return (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(rest, int) : 0; }

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  int mode = mode_of(flags, rest);
  va_end(rest);
  return counted("open", path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  int mode = mode_of(flags, rest);
  va_end(rest);
  return counted("open64", path, flags, mode);
}

/* The number of the calling thread among the loaders, in the order of their first reads; -1 for another thread. */
static int number_of_loader(void) {
  static __thread int number = -1;
  static atomic_int loaders;
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof name);
  if (number < 0 && !strcmp(name, "loader")) number = atomic_fetch_add(&loaders, 1);
  return number;
}

static void wait_for_storage(void) {
  const int loader = number_of_loader();
  FILE* windows = loader < 0 ? NULL : fopen(getenv("SLOW_READS"), "r");
  struct timespec now;
  double begin, end;
  int how_many;
  if (!windows) return;
  while (fscanf(windows, "%lf %lf %d", &begin, &end, &how_many) == 3) {
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double wait = end - (now.tv_sec + 1e-9 * now.tv_nsec);
    if (loader < how_many && wait > 0 && wait <= end - begin) usleep((useconds_t)(1e6 * wait));
  }
  fclose(windows);
}

ssize_t pread(int fd, void* to, size_t size, off_t offset) {
  const char* file = getenv("COUNT_READS");
  const char* rank = getenv("OMPI_COMM_WORLD_RANK");
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (getenv("SLOW_READS") && readlink(link, path, sizeof path - 1) > 0 && strstr(path, ".bin")) wait_for_storage();
  ssize_t got = ((ssize_t (*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, "pread"))(fd, to, size, offset);
  if (file && readlink(link, path, sizeof path - 1) > 0 && (strstr(path, ".bin") || strstr(path, ".idx"))) {
    int out = ((int (*)(const char*, int, int))dlsym(RTLD_NEXT, "open"))(file, O_CREAT | O_WRONLY | O_APPEND, 0644);
    dprintf(out, "%s %s %zd\n", rank ? rank : "0", path, got);
    close(out);
  }
  return got;
}

int fsync(int fd) {
  static int held = 0;
  const char* hold = getenv("HOLD_SAVE");
  char link[64], path[4096] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (readlink(link, path, sizeof path - 1) > 0) log_call("sync", path);
  if (hold && strstr(path, ".partial-") && !held++) {
    close(open(hold, O_CREAT | O_WRONLY, 0644));
    while (access(hold, F_OK) == 0) usleep(10000);
  }
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
