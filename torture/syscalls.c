/* Loaded before libc (LD_PRELOAD): counts, records and spoils what a process does to files below one folder.

torture_watch sets the folder. torture_arm chooses the call that goes wrong, counted from 1, and how.
torture_trace sets a file for the records: every call as it begins ("C"), and every change as it is made ("E"),
with the bytes that were written behind its line. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, FAIL, FAIL_ON, KILL, HALF, TORN };

static char root[PATH_MAX];
static size_t root_length;
static long count, fatal;
static int action, error, trace = -1;
static char failing[256]; /* with FAIL_ON: calls of these names fail from then on */

void torture_watch(const char *folder) { strncpy(root, folder, PATH_MAX - 1); root_length = strlen(root); }
void torture_arm(long at, int how, int number, const char *names) {
    count = 0; fatal = at; action = how; error = number; strncpy(failing, names, 255);
}
long torture_count(void) { return count; }
void torture_trace(int file) { trace = file; }

/* A line and the bytes behind it, in one call: other threads write as well. */
static void put(const char *line, int length, const void *data, size_t size) {
    struct iovec parts[2] = {{(char *)line, length}, {(void *)data, size}};
    syscall(SYS_writev, trace, parts, size ? 2 : 1);
}

void torture_mark(const char *text) {
    char line[300];
    if (trace >= 0) put(line, snprintf(line, 300, "M\t%s\n", text), NULL, 0);
}

/* The absolute path of a name in a folder, or of an open file; whether it is watched. */
static int locate(int folder, const char *name, char *path) {
    char link[40];
    if (!root_length) return 0;
    if (name && *name == '/') { snprintf(path, PATH_MAX, "%s", name); }
    else {
        long length;
        if (folder == AT_FDCWD) strcpy(link, "/proc/self/cwd");
        else snprintf(link, 40, "/proc/self/fd/%d", folder);
        length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 300);
        if (length < 0) return 0;
        path[length] = 0;
        if (name && *name) snprintf(path + length, 300, "/%s", name);
    }
    return !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

/* Whether a call fails, now that it begins; 2 if half of it happens first. */
static int begin(const char *name, const char *path) {
    char line[PATH_MAX + 100];
    int saved = errno, now = 0;
    long at = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (trace >= 0) put(line, snprintf(line, sizeof line, "C\t%s\t%s\n", name, path), NULL, 0);
    if (fatal && at == fatal) {
        if (trace >= 0) put(line, snprintf(line, sizeof line, "X\t%s\t%s\n", name, path), NULL, 0);
        if (action == KILL || (action == TORN && strcmp(name, "write"))) syscall(SYS_kill, getpid(), SIGKILL);
        if (action == HALF || action == TORN) now = 2;
        else now = 1;
    } else if (fatal && at > fatal && action == FAIL_ON && strstr(failing, name)) now = 1;
    errno = saved;
    return now;
}

static void effect(const char *name, int file, long flags, long offset, const char *path, const char *other,
                   const void *data, size_t size) {
    char line[2 * PATH_MAX + 200];
    struct stat info = {0};
    int saved = errno;
    if (trace < 0) return;
    if (file >= 0) syscall(SYS_fstat, file, &info);
    put(line, snprintf(line, sizeof line, "E\t%s\t%lu\t%ld\t%ld\t%zu\t%s\t%s\n", name,
                       (unsigned long)info.st_ino, flags, offset, size, path, other), data, size);
    errno = saved;
}

#define REAL(type, name, ...) static type (*real)(__VA_ARGS__); if (!real) real = dlsym(RTLD_NEXT, #name)
#define REFUSE(value) do { errno = error; return value; } while (0)

/* Opening */
static int opened(int (*real)(int, const char *, int, ...), int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat info;
    int watched = locate(folder, name, path), is_new = 0, file;
    if (watched) {
        if (begin(flags & O_CREAT ? "create" : "open", path)) REFUSE(-1);
        is_new = (flags & O_CREAT) && syscall(SYS_newfstatat, folder, name, &info, AT_SYMLINK_NOFOLLOW);
        errno = 0;
    }
    file = real(folder, name, flags, mode);
    if (watched && file >= 0 && (is_new || (flags & O_TRUNC)))
        effect(is_new ? "create" : "truncate", file, flags, 0, path, "", NULL, 0);
    return file;
}
#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list list; va_start(list, flags); \
    mode = va_arg(list, mode_t); va_end(list); }
static int real_openat(int folder, const char *name, int flags, ...) {
    MODE(flags) return syscall(SYS_openat, folder, name, flags | O_LARGEFILE, mode);
}
int open(const char *name, int flags, ...) { MODE(flags) return opened(real_openat, AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return opened(real_openat, AT_FDCWD, name, flags, mode); }
int openat(int at, const char *name, int flags, ...) { MODE(flags) return opened(real_openat, at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE(flags) return opened(real_openat, at, name, flags, mode); }

/* Open files */
#define OF_FILE(name, value) char path[PATH_MAX]; int watched = locate(file, NULL, path); \
    if (watched && begin(name, path)) REFUSE(value)
ssize_t read(int file, void *to, size_t size) { OF_FILE("read", -1); return syscall(SYS_read, file, to, size); }
ssize_t pread64(int file, void *to, size_t size, off64_t at) {
    OF_FILE("read", -1); return syscall(SYS_pread64, file, to, size, at);
}
static ssize_t written(int file, const void *data, size_t size, long at) {
    char path[PATH_MAX];
    ssize_t done;
    int watched = locate(file, NULL, path), how = watched ? begin("write", path) : 0;
    if (how == 1) REFUSE(-1);
    if (how == 2 && size > 1) size /= 2;
    if (at < 0 && watched) at = syscall(SYS_fcntl, file, F_GETFL) & O_APPEND ? -2 : syscall(SYS_lseek, file, 0, SEEK_CUR);
    else if (watched) at = -3 - at;
    if (at == -2) { struct stat info; syscall(SYS_fstat, file, &info); done = syscall(SYS_write, file, data, size); at = info.st_size; }
    else if (at <= -3) { at = -3 - at; done = syscall(SYS_pwrite64, file, data, size, at); }
    else done = syscall(SYS_write, file, data, size);
    if (how == 2 && action == TORN) syscall(SYS_kill, getpid(), SIGKILL);
    if (watched && done > 0) effect("write", file, 0, at, path, "", data, done);
    return done;
}
ssize_t write(int file, const void *data, size_t size) { return written(file, data, size, -1); }
/* numpy's tofile: libc would write from its buffer by a call of its own. Nothing stays in that buffer here. */
size_t fwrite(const void *data, size_t size, size_t n, FILE *stream) {
    REAL(size_t, fwrite, const void *, size_t, size_t, FILE *);
    char path[PATH_MAX];
    size_t done = 0;
    if (!size || !n || !locate(fileno(stream), NULL, path) || fflush(stream)) return real(data, size, n, stream);
    while (done < size * n) {
        ssize_t now = write(fileno(stream), (const char *)data + done, size * n - done);
        if (now < 0) break;
        done += now;
    }
    fseeko(stream, lseek(fileno(stream), 0, SEEK_CUR), SEEK_SET);
    return done / size;
}
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    char path[PATH_MAX];
    if (!locate(file, NULL, path)) return syscall(SYS_pwrite64, file, data, size, at);
    return written(file, data, size, at);
}
ssize_t writev(int file, const struct iovec *parts, int n) {
    char path[PATH_MAX];
    ssize_t total = 0;
    if (!locate(file, NULL, path)) return syscall(SYS_writev, file, parts, n);
    for (int i = 0; i < n; i++) {
        ssize_t done = written(file, parts[i].iov_base, parts[i].iov_len, -1);
        if (done < 0) return total ? total : done;
        total += done;
        if ((size_t)done < parts[i].iov_len) break;
    }
    return total;
}
static int flushed(int file, long number) {
    OF_FILE("fsync", -1);
    int result = syscall(number, file);
    if (watched && !result) effect("fsync", file, 0, 0, path, "", NULL, 0);
    return result;
}
int fsync(int file) { return flushed(file, SYS_fsync); }
int fdatasync(int file) { return flushed(file, SYS_fdatasync); }
int ftruncate64(int file, off64_t size) {
    OF_FILE("truncate", -1);
    int result = syscall(SYS_ftruncate, file, size);
    if (watched && !result) effect("truncate", file, 0, size, path, "", NULL, 0);
    return result;
}
int ftruncate(int file, off_t size) { return ftruncate64(file, size); }
int fchmod(int file, mode_t mode) { OF_FILE("chmod", -1); return syscall(SYS_fchmod, file, mode); }
int flock(int file, int how) { OF_FILE("flock", -1); return syscall(SYS_flock, file, how); }
int fstat64(int file, struct stat64 *info) { OF_FILE("stat", -1); return syscall(SYS_fstat, file, info); }
int fstat(int file, struct stat *info) { OF_FILE("stat", -1); return syscall(SYS_fstat, file, info); }
int __fxstat64(int v, int file, struct stat64 *info) { return fstat64(file, info); }
int __fxstat(int v, int file, struct stat *info) { return fstat(file, info); }
void *mmap64(void *at, size_t size, int protection, int flags, int file, off64_t offset) {
    if (file >= 0) { OF_FILE("mmap", MAP_FAILED); (void)watched; }
    return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}
void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
    return mmap64(at, size, protection, flags, file, offset);
}
ssize_t copy_file_range(int from, off64_t *a, int file, off64_t *b, size_t size, unsigned flags) {
    char path[PATH_MAX];
    if (locate(file, NULL, path) || locate(from, NULL, path)) REFUSE(-1); /* not used so far; say so if it is */
    return syscall(SYS_copy_file_range, from, a, file, b, size, flags);
}
ssize_t sendfile64(int to, int from, off64_t *at, size_t size) {
    char path[PATH_MAX];
    if (locate(to, NULL, path)) { errno = ENOTSOCK; return -1; } /* shutil then reads and writes */
    return syscall(SYS_sendfile, to, from, at, size);
}

/* Names */
#define OF_NAME(call, folder, name, value) char path[PATH_MAX]; int watched = locate(folder, name, path); \
    if (watched && begin(call, path)) REFUSE(value)
#define THEN(call, other) if (watched && !result) effect(call, -1, 0, 0, path, other, NULL, 0); return result
static int renamed(int from, const char *old, int to, const char *new, unsigned flags) {
    char other[PATH_MAX];
    OF_NAME("rename", from, old, -1);
    int result = syscall(SYS_renameat2, from, old, to, new, flags);
    locate(to, new, other);
    THEN("rename", other);
}
int rename(const char *old, const char *new) { return renamed(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return renamed(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned f) { return renamed(from, old, to, new, f); }
int unlinkat(int folder, const char *name, int flags) {
    OF_NAME(flags & AT_REMOVEDIR ? "rmdir" : "unlink", folder, name, -1);
    int result = syscall(SYS_unlinkat, folder, name, flags);
    THEN(flags & AT_REMOVEDIR ? "rmdir" : "unlink", "");
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int mkdirat(int folder, const char *name, mode_t mode) {
    OF_NAME("mkdir", folder, name, -1);
    int result = syscall(SYS_mkdirat, folder, name, mode);
    THEN("mkdir", "");
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
int symlinkat(const char *target, int folder, const char *name) {
    OF_NAME("symlink", folder, name, -1);
    int result = syscall(SYS_symlinkat, target, folder, name);
    THEN("symlink", target);
}
int symlink(const char *target, const char *name) { return symlinkat(target, AT_FDCWD, name); }
int linkat(int from, const char *old, int to, const char *new, int flags) {
    OF_NAME("link", to, new, -1); (void)watched;
    return syscall(SYS_linkat, from, old, to, new, flags);
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }
int fchmodat(int folder, const char *name, mode_t mode, int flags) {
    OF_NAME("chmod", folder, name, -1); (void)watched;
    return syscall(SYS_fchmodat, folder, name, mode);
}
int chmod(const char *name, mode_t mode) { return fchmodat(AT_FDCWD, name, mode, 0); }
int fstatat64(int folder, const char *name, struct stat64 *info, int flags) {
    OF_NAME("stat", folder, name, -1); (void)watched;
    return syscall(SYS_newfstatat, folder, name, info, flags);
}
int stat64(const char *name, struct stat64 *info) { return fstatat64(AT_FDCWD, name, info, 0); }
int lstat64(const char *name, struct stat64 *info) { return fstatat64(AT_FDCWD, name, info, AT_SYMLINK_NOFOLLOW); }
int __xstat64(int v, const char *name, struct stat64 *info) { return stat64(name, info); }
int __lxstat64(int v, const char *name, struct stat64 *info) { return lstat64(name, info); }
int statx(int folder, const char *restrict name, int flags, unsigned mask, struct statx *restrict info) {
    OF_NAME("stat", folder, name, -1); (void)watched;
    return syscall(SYS_statx, folder, name, flags, mask, info);
}
int faccessat(int folder, const char *name, int mode, int flags) {
    OF_NAME("access", folder, name, -1); (void)watched;
    REAL(int, faccessat, int, const char *, int, int);
    return real(folder, name, mode, flags);
}
int access(const char *name, int mode) { return faccessat(AT_FDCWD, name, mode, 0); }
DIR *opendir(const char *name) {
    OF_NAME("list", AT_FDCWD, name, NULL); (void)watched;
    REAL(DIR *, opendir, const char *);
    return real(name);
}
DIR *fdopendir(int file) {
    OF_FILE("list", NULL);
    REAL(DIR *, fdopendir, int);
    return real(file);
}
struct dirent64 *readdir64(DIR *folder) {
    char path[PATH_MAX];
    if (locate(dirfd(folder), NULL, path) && begin("readdir", path)) REFUSE(NULL);
    REAL(struct dirent64 *, readdir64, DIR *);
    return real(folder);
}
